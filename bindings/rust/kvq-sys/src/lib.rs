// Made by bindings/generate/generate.py from include/kvq.h; edit that instead.
//! The C interface of kvq 1.0.0 as it is: every function, struct, constant and hook.
//!
//! Programs use the crate `kvq`, which is safe. What follows is the comment of `kvq.h`.
//!
//! kvq: a compressed key/value cache for language models, attended to in compressed form.
//!
//! An inference engine computes queries, keys and values; this library keeps the keys and values in 1 to 16
//! bits per scalar and computes attention directly on them.
//!
//! ```text
//! context   memory, threads, limits and the device          kvq_context_create
//! policy    which page format each layer uses               kvq_policy_load
//! codebook  vector quantization trained for one model       kvq_codebook_load
//! centres   what pages of one model are stored relative to  kvq_centres_load
//! router    which page format each page gets, by its keys   kvq_router_load
//! cache     the shape of one model's attention layers       kvq_cache_create
//! sequence  one conversation: lists of pages per head       kvq_sequence_create, kvq_append, kvq_attend
//! matrix    weights of a linear layer in few bits           qp_quantize, qp_linear
//! ```
//!
//! Rules that hold for every function:
//!
//! - A call that can fail returns a [`kvq_status`] and takes, last, a caller-owned [`kvq_error`] or NULL. On
//!   failure the message names the argument and its value, and every object is as it was before the call.
//! - Structs begin with `struct_size`. Call the struct's `*_init(&it, sizeof(it))` first, or set `struct_size`
//!   of one that the library fills. A struct only ever grows at its end: an older program's shorter one gets
//!   the defaults of what it lacks, of a newer program's longer one the rest must be zero. Reserved fields must
//!   be 0 and are filled with 0. No struct has more than 4096 bytes.
//! - Handles come out through the parameter `result`, which is NULL after a failure. Objects may be destroyed
//!   in any order: what others still need goes with the last of them. Destroying NULL does nothing.
//! - Any number of threads may use a context, and a cache, at once, but for what a function's \\threads line
//!   says. Of other handles, `const` ones may be used from several threads at once, others need exclusive use.
//!   Destroying needs exclusive use of the handle.
//! - Beside the statuses that a function names, any may return [`KVQ_E_INTERNAL`]; one that is given a newer
//!   header's struct with something in it that this library does not know, [`KVQ_E_UNSUPPORTED`]; one on a CUDA
//!   context, [`KVQ_E_BACKEND`]; and one of a sequence that a CUDA graph appends to, which first learns how far
//!   the graph has come, [`KVQ_E_MEMORY`] or [`KVQ_E_LIMIT`].
//! - The library never prints, aborts, reads environment variables, installs signal handlers, or starts threads
//!   that were not asked for. In a child process after a `fork()` at which no other thread was inside a call,
//!   contexts of a CPU compute on the calling thread alone and may be destroyed; contexts of a GPU may not be
//!   used.
//! - Hooks return, they do not unwind: an exception that a C++ hook throws nevertheless is caught and taken for
//!   the hook's failure; unwinding by other means (longjmp, a foreign runtime's panic) is undefined.
//! - Tensors are row-major. "Host memory" is memory that the CPU can read.
//! - Text is UTF-8; names of files are what the system's loader takes, UTF-8 in practice.
//! - A CUDA context works asynchronously: calls issue work to its stream and return. Appending and attending
//!   synchronise with nothing; saving, loading and decoding wait for the stream. An error that the device
//!   reports later is returned by a later call, and once the device's own state is broken every call returns
//!   it. What the host passes in host memory has been read when a call returns.
//!
//! What is declared if KVQ_EXPERIMENTAL is defined before this file is included may change in a minor version;
//! everything else only grows until version 2.
#![allow(non_camel_case_types)]

use std::marker::{PhantomData, PhantomPinned};
use std::mem::{align_of, size_of};
use std::os::raw::{c_char, c_void};

/// What is behind a handle: only the library knows.
#[repr(C)]
struct Opaque {
    _bytes: [u8; 0],
    _neither_send_nor_sync: PhantomData<(*mut u8, PhantomPinned)>,
}

/// Version of this header, after Semantic Versioning.
pub const KVQ_VERSION_MAJOR: i32 = 1;

/// Version of this header, after Semantic Versioning.
pub const KVQ_VERSION_MINOR: i32 = 0;

/// Version of this header, after Semantic Versioning.
pub const KVQ_VERSION_PATCH: i32 = 0;

/// Counts up by one with every release that adds to this header.
pub const KVQ_API_VERSION: i32 = 1;

/// Result of a call: [`KVQ_OK`] or one of the negative codes. Numbers never change.
pub type kvq_status = i32;

/// Done.
pub const KVQ_OK: kvq_status = 0;

/// An argument is NULL, out of range, or inconsistent with another one.
pub const KVQ_E_ARGUMENT: kvq_status = -1;

/// The allocator returned NULL.
pub const KVQ_E_MEMORY: kvq_status = -2;

/// A byte limit of the context or of the cache would be exceeded.
pub const KVQ_E_LIMIT: kvq_status = -3;

/// The object is not in a state that allows the call, for example a rollback into a sealed page.
pub const KVQ_E_STATE: kvq_status = -4;

/// A policy, snapshot or other input is malformed.
pub const KVQ_E_FORMAT: kvq_status = -5;

/// The input is well-formed but belongs to another model, cache shape, policy or version.
pub const KVQ_E_MISMATCH: kvq_status = -6;

/// The request is valid but this build or machine cannot serve it.
pub const KVQ_E_UNSUPPORTED: kvq_status = -7;

/// The device or the caller's own hook reported a failure; see `backend_code`.
pub const KVQ_E_BACKEND: kvq_status = -8;

/// A defect of the library.
pub const KVQ_E_INTERNAL: kvq_status = -9;

/// The caller's progress hook asked to stop.
pub const KVQ_E_CANCELLED: kvq_status = -10;

/// The caller's buffer is too small; the call says how many bytes it takes.
pub const KVQ_E_BUFFER_SIZE: kvq_status = -11;

/// Element type of a tensor.
pub type kvq_dtype = i32;

/// IEEE 754 binary32.
pub const KVQ_F32: kvq_dtype = 0;

/// IEEE 754 binary16.
pub const KVQ_F16: kvq_dtype = 1;

/// bfloat16: the upper half of binary32.
pub const KVQ_BF16: kvq_dtype = 2;

/// Where a context computes.
pub type kvq_device = i32;

/// Here.
pub const KVQ_DEVICE_CPU: kvq_device = 0;

/// On an NVIDIA GPU, by way of libkvq_cuda.so.
pub const KVQ_DEVICE_CUDA: kvq_device = 1;

/// How the library rotates queries and keys.
pub type kvq_rope = i32;

/// Not: the caller passes them rotated, or the model has no rotary embedding.
pub const KVQ_ROPE_NONE: kvq_rope = 0;

/// Channels (j, j + rotary_dim/2) form a pair: Hugging Face Llama, Mistral, Qwen.
pub const KVQ_ROPE_HALF: kvq_rope = 1;

/// Channels (2j, 2j+1) form a pair: original Llama, GPT-J.
pub const KVQ_ROPE_INTERLEAVED: kvq_rope = 2;

/// Importance of a log message.
pub type kvq_log_level = i32;

/// Something failed.
pub const KVQ_LOG_ERROR: kvq_log_level = 0;

/// Something is not as it should be.
pub const KVQ_LOG_WARNING: kvq_log_level = 1;

/// Something worth knowing.
pub const KVQ_LOG_INFO: kvq_log_level = 2;

/// Slots of a page: the unit of encoding, sharing and rollback, in tokens.
pub const KVQ_PAGE_SLOTS: i32 = 32;

/// What shares a code, or a number.
pub type kvq_scope = i32;

/// All KV heads of a token in a layer.
pub const KVQ_SCOPE_LAYER: kvq_scope = 0;

/// One KV head of a token.
pub const KVQ_SCOPE_HEAD: kvq_scope = 1;

/// The most stages that codes for keys can have.
pub const KVQ_MAX_KEY_STAGES: i32 = 64;

/// The most formats that a router can choose among.
pub const KVQ_MAX_EXPERTS: i32 = 8;

/// The most matrices that a plan multiplies together.
pub const KVQ_MAX_FUSED: i32 = 4;

/// Bytes of [`kvq_layer_info::formats`].
pub const KVQ_FORMATS_SIZE: i32 = 256;

/// How routers are trained.
pub type kvq_router_method = i32;

/// On the cheapest format of each page that leaves the attention as good as it has to be.
pub const KVQ_ROUTER_LABEL: kvq_router_method = 0;

/// By the loss of the MoQAE paper, for comparison: it tends to one format for all.
pub const KVQ_ROUTER_PAPER: kvq_router_method = 1;

/// How a Hessian is used.
pub type qp_rounding = i32;

/// Columns are coded from the last one to the first, each corrected for the errors of those behind it (block
/// LDLQ).
pub const QP_ROUNDING_LDLQ: qp_rounding = 0;

/// Every weight, pair or tile is rounded to what is nearest; the Hessian only tells
/// [`qp_matrix_info::proxy_error`].
pub const QP_ROUNDING_NEAREST: qp_rounding = 1;

/// How codes of values are trained, and how their bits are proposed when values are encoded.
#[cfg(feature = "experimental")]
pub type kvq_value_method = i32;

/// Alternating least squares; a linear map proposes bits.
#[cfg(feature = "experimental")]
pub const KVQ_VALUES_LEAST_SQUARES: kvq_value_method = 0;

/// The CommVQ paper's way: a network of one hidden layer proposes bits; it is trained together with the codes
/// by gradient descent.
#[cfg(feature = "experimental")]
pub const KVQ_VALUES_NETWORK: kvq_value_method = 1;

/// What a plan makes as small as possible.
#[cfg(feature = "experimental")]
pub type kvq_plan_goal = i32;

/// Memory.
#[cfg(feature = "experimental")]
pub const KVQ_PLAN_BYTES: kvq_plan_goal = 0;

/// Time, of a step of decoding for example.
#[cfg(feature = "experimental")]
pub const KVQ_PLAN_SECONDS: kvq_plan_goal = 1;

/// What is lost, in nats of divergence from the uncompressed model for example.
#[cfg(feature = "experimental")]
pub const KVQ_PLAN_LOSS: kvq_plan_goal = 2;

/// Memory, threads, limits and device shared by any number of caches.
///
/// It is ended by [`kvq_context_destroy`].
#[repr(C)]
pub struct kvq_context {
    _opaque: Opaque,
}

/// Which format pages are sealed in, per layer, how many stay FP16, and which tokens are evicted. Immutable.
///
/// It is ended by [`kvq_policy_destroy`].
#[repr(C)]
pub struct kvq_policy {
    _opaque: Opaque,
}

/// CommVQ codebooks for the layers of one model. Immutable; caches that use it share it. Files are in the
/// safetensors format and hold about half of [`kvq_codebook_info::bytes`].
///
/// It is ended by [`kvq_codebook_destroy`].
#[repr(C)]
pub struct kvq_codebook {
    _opaque: Opaque,
}

/// Centres of the keys and values of one model, for the formats gs and gt: a vector is stored relative to the
/// nearest centre of its head. Immutable; caches that use them share them. Files are in the safetensors format
/// and hold half of [`kvq_centres_info::bytes`].
///
/// It is ended by [`kvq_centres_destroy`].
#[repr(C)]
pub struct kvq_centres {
    _opaque: Opaque,
}

/// Routers for the layers of one model (MoQAE): small networks that choose the format of every page by the keys
/// in it, before RoPE. Immutable; caches that use it share it. Files are in the safetensors format.
///
/// It is ended by [`kvq_router_destroy`].
#[repr(C)]
pub struct kvq_router {
    _opaque: Opaque,
}

/// The attention layers of one model; owns the page formats and the work space of [`kvq_attend`].
///
/// It is ended by [`kvq_cache_destroy`].
#[repr(C)]
pub struct kvq_cache {
    _opaque: Opaque,
}

/// The pages of one conversation. Belongs to the cache that made it.
///
/// It is ended by [`kvq_sequence_destroy`].
#[repr(C)]
pub struct kvq_sequence {
    _opaque: Opaque,
}

/// A linear layer y = x·Wᵀ + b on weights of 1 to 8 bits: NUQ, VQ and TCQ of Q-Palette, and trellises of single
/// weights. Immutable; may be used by several threads at once.
///
/// Inputs are rotated before a matrix sees them: random signs, then a Hadamard matrix. Matrices whose options
/// have the same `seed` and that have the same number of columns share the rotation, which [`qp_linear_shared`]
/// does once.
///
/// It is ended by [`qp_matrix_destroy`].
#[repr(C)]
pub struct qp_matrix {
    _opaque: Opaque,
}

/// Trains codebooks from keys and values that the caller's engine computed on some texts.
///
/// ```text
/// kvq_codebook_trainer_create(context, &options, &trainer, &error);
/// for every text, for every layer: kvq_codebook_trainer_add(trainer, layer, n, k, v, KVQ_BF16, &error);
/// for every layer:                 kvq_codebook_trainer_run(trainer, layer, hook, user, &error);
/// kvq_codebook_trainer_result(trainer, &codebook, &error);
/// ```
///
/// Layers are independent: where memory is short, add and run a few at a time. Mix the texts that the model
/// will see, and take tens of thousands of tokens: what matters most is that codes meet in use what they were
/// trained on.
///
/// It is ended by [`kvq_codebook_trainer_destroy`].
#[cfg(feature = "experimental")]
#[repr(C)]
pub struct kvq_codebook_trainer {
    _opaque: Opaque,
}

/// Trains centres from keys and values that the caller's engine computed on some texts.
///
/// ```text
/// kvq_centres_trainer_create(context, &options, &trainer, &error);
/// for every text, for every layer: kvq_centres_trainer_add(trainer, layer, n, k, v, KVQ_BF16, &error);
/// for every layer:                 kvq_centres_trainer_run(trainer, layer, hook, user, &error);
/// kvq_centres_trainer_result(trainer, &centres, &error);
/// ```
///
/// Layers are independent: where memory is short, add and run a few at a time. Mix the texts that the model
/// will see, and take some hundred tokens for each centre of a head.
///
/// It is ended by [`kvq_centres_trainer_destroy`].
#[cfg(feature = "experimental")]
#[repr(C)]
pub struct kvq_centres_trainer {
    _opaque: Opaque,
}

/// Trains routers from queries, keys and values that the caller's engine computed on some texts.
///
/// ```text
/// kvq_router_trainer_create(context, &cache_options, policy, &options, &trainer, &error);
/// for every text, for every layer: kvq_router_trainer_add(trainer, layer, n, q, k, v, KVQ_BF16, &error);
/// kvq_router_trainer_run(trainer, loss, hook, user, &error);
/// kvq_router_trainer_result(trainer, &router, &error);
/// ```
///
/// Texts should be as long as those that the model will see, a few thousand tokens each, and tens of thousands
/// together: how much a page matters depends on what comes after it.
///
/// It is ended by [`kvq_router_trainer_destroy`].
#[cfg(feature = "experimental")]
#[repr(C)]
pub struct kvq_router_trainer {
    _opaque: Opaque,
}

/// All ways to group matrices that read the same inputs and to write them: for engines whose kernels fuse only
/// equal schemes. Those that another one beats in bytes, seconds and loss are left out; the others are the
/// options of one choice for [`kvq_plan_solve`]. Immutable.
///
/// It is ended by [`kvq_plan_fusion_destroy`].
#[cfg(feature = "experimental")]
#[repr(C)]
pub struct kvq_plan_fusion {
    _opaque: Opaque,
}

/// What a planner decided, as a file: the scheme of each matrix and how caches store pages. Immutable.
///
/// It is ended by [`kvq_plan_destroy`].
#[cfg(feature = "experimental")]
#[repr(C)]
pub struct kvq_plan {
    _opaque: Opaque,
}

/// Allocate `bytes` (\> 0) aligned to `alignment` (a power of two), or return NULL. Called from any thread,
/// also from several at once. Like all hooks it may not use the context or what was made from it.
pub type kvq_allocate_hook =
    Option<unsafe extern "C" fn(user: *mut c_void, bytes: usize, alignment: usize) -> *mut c_void>;

/// Free what [`kvq_allocate_hook`] returned, with the same `bytes` and `alignment`. Called from any thread,
/// also from several at once.
pub type kvq_free_hook =
    Option<unsafe extern "C" fn(user: *mut c_void, pointer: *mut c_void, bytes: usize, alignment: usize)>;

/// One message, NUL-terminated, without newline, valid until the hook returns. Called from any thread, also
/// from several at once.
pub type kvq_log_hook = Option<unsafe extern "C" fn(user: *mut c_void, level: kvq_log_level, message: *const c_char)>;

/// Body of a parallel loop.
pub type kvq_parallel_body = Option<unsafe extern "C" fn(argument: *mut c_void, index: i32)>;

/// Run `body(argument, i)` once for every i in \[0, n), on any threads in any order, and return when all that
/// began are done. Results do not depend on the order or on the number of threads. Loops too short to be shared
/// do not get here. Called from the thread of the call that needs it, so from several at once if these use the
/// context at once.
///
/// Returns 0; anything else, or fewer calls of `body` than n, says that the hook could not do it all: the
/// calling thread then does what is left.
pub type kvq_parallel_for_hook =
    Option<unsafe extern "C" fn(user: *mut c_void, n: i32, body: kvq_parallel_body, argument: *mut c_void) -> i32>;

/// The last call of a context's hooks: none is used any more, and their `user` may go. Called by the thread
/// that destroys the context or the last object made from it; may use other contexts. Not called where a
/// context could not be created.
pub type kvq_released_hook = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// Allocate `bytes` (\> 0) of device memory aligned to 256 bytes, or return NULL. The memory is used in the
/// order of `stream`, the context's stream at that time. Called from the thread of the call that needs it.
pub type kvq_device_allocate_hook =
    Option<unsafe extern "C" fn(user: *mut c_void, bytes: usize, stream: *mut c_void) -> *mut c_void>;

/// Free what [`kvq_device_allocate_hook`] returned, once the work issued to `stream` so far is done: the hook
/// may not give it to another stream before.
pub type kvq_device_free_hook =
    Option<unsafe extern "C" fn(user: *mut c_void, pointer: *mut c_void, bytes: usize, stream: *mut c_void)>;

/// Told how far a long call has come, and asked whether to go on. Called now and then from the calling thread;
/// may not use the objects of the call.
///
/// - `done`: 0 … 1, an estimate of the share of the time, never falling.
///
/// Returns 0 to go on, anything else to end the call with [`KVQ_E_CANCELLED`].
pub type kvq_progress_hook = Option<unsafe extern "C" fn(user: *mut c_void, done: f64) -> i32>;

/// What went wrong. Owned by the caller; [`kvq_error_init`] before use.
///
/// Filled with defaults by [`kvq_error_init`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_error {
    /// Of the caller's struct.
    pub struct_size: u32,
    /// Same value as the call returned.
    pub code: kvq_status,
    /// Code of the device's own library or of a hook, 0 if none.
    pub backend_code: i32,
    /// English text, UTF-8, NUL-terminated, empty on success.
    pub message: [c_char; 256],
}

/// What a context runs on, and the hooks that it calls.
///
/// Filled with defaults by [`kvq_context_options_init`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_context_options {
    pub struct_size: u32,
    /// [`KVQ_DEVICE_CPU`] by default.
    pub device: kvq_device,
    /// Threads for one call, the caller's included; 1 (default) starts none. At most 1024. Ignored when
    /// `parallel_for` is set.
    pub n_threads: i32,
    /// 0.
    pub reserved: i32,
    /// Limit on everything allocated through the context, on the host and on the device together, the context
    /// included; 0 (default): none.
    pub max_bytes: u64,
    /// Name from [`kvq_cpu_isa_name`]; NULL (default): the best of this machine. (may be NULL; ends with a NUL)
    pub cpu_isa: *const c_char,
    /// NULL (default): the C++ runtime's aligned operator new. (may be NULL; used until `released` has been called)
    pub allocate: kvq_allocate_hook,
    /// NULL exactly when `allocate` is NULL. (may be NULL; used until `released` has been called)
    pub free: kvq_free_hook,
    /// Passed to `allocate` and `free`. (may be NULL; used until `released` has been called)
    pub allocator_user: *mut c_void,
    /// NULL (default): no messages. (may be NULL; used until `released` has been called)
    pub log: kvq_log_hook,
    /// Passed to `log`. (may be NULL; used until `released` has been called)
    pub log_user: *mut c_void,
    /// NULL (default): the library's own `n_threads`. (may be NULL; used until `released` has been called)
    pub parallel_for: kvq_parallel_for_hook,
    /// Passed to `parallel_for`. (may be NULL; used until `released` has been called)
    pub parallel_for_user: *mut c_void,
    /// Ordinal of the GPU; 0 by default.
    pub device_index: i32,
    /// 0.
    pub reserved2: i32,
    /// Path of libkvq_cuda.so; NULL (default): beside the library that holds this function, then where the loader
    /// searches. (may be NULL; ends with a NUL)
    pub plugin: *const c_char,
    /// cudaStream_t that everything is issued to; NULL (default): the legacy default stream. See
    /// [`kvq_context_set_stream`]. (may be NULL; used until `released` has been called)
    pub stream: *mut c_void,
    /// NULL (default): a memory pool of the context's own. (may be NULL; used until `released` has been called)
    pub device_allocate: kvq_device_allocate_hook,
    /// NULL exactly when `device_allocate` is NULL. (may be NULL; used until `released` has been called)
    pub device_free: kvq_device_free_hook,
    /// Passed to both. (may be NULL; used until `released` has been called)
    pub device_allocator_user: *mut c_void,
    /// Called when the context is gone, which objects made from it may put off: hooks and what they need live until
    /// then. NULL (default): nobody is told. (may be NULL; used until `released` has been called)
    pub released: kvq_released_hook,
    /// Passed to `released`. (may be NULL; used until `released` has been called)
    pub released_user: *mut c_void,
}

/// What a context runs on and uses.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_context_info {
    pub struct_size: u32,
    pub device: kvq_device,
    /// 0 when the caller's `parallel_for` hook is used.
    pub n_threads: i32,
    /// 0.
    pub reserved: i32,
    /// "cpu" or "cuda". (ends with a NUL; used for ever)
    pub backend: *const c_char,
    /// Instruction set in use, for example "avx512vnni" or "sm_90". (ends with a NUL; used as long as the handle
    /// lives)
    pub isa: *const c_char,
    /// Allocated now.
    pub bytes: u64,
    /// Largest value of `bytes` so far.
    pub peak_bytes: u64,
    /// The limit, 0 if none.
    pub max_bytes: u64,
}

/// A device that contexts can be created on.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_device_info {
    pub struct_size: u32,
    /// Devices of this kind.
    pub n_devices: i32,
    /// For example "NVIDIA H100 80GB HBM3".
    pub name: [c_char; 128],
    /// 90 for 9.0.
    pub compute_capability: i32,
    /// Newest CUDA version that the driver supports, 13000 for 13.0.
    pub driver_version: i32,
    /// Of the device.
    pub memory_bytes: u64,
}

/// What a host has to know of a policy.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_policy_info {
    pub struct_size: u32,
    /// Tokens of a KV head that [`kvq_compress`] keeps; INT32_MAX: a share; 0: it evicts none.
    pub eviction_budget: i32,
    /// Newest tokens that it always keeps, of every head.
    pub eviction_window: i32,
    /// 0.
    pub reserved: i32,
}

/// What codebooks are made for and how well they do. Errors are ‖x̂ − x‖² / ‖x‖² of training, averaged over the
/// layers that are present; 0 for a side without codes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_codebook_info {
    pub struct_size: u32,
    pub n_layers: i32,
    /// Fewer than `n_layers`: training was not finished; no cache takes such codebooks.
    pub layers_present: i32,
    pub kv_heads: i32,
    pub head_dim: i32,
    /// How channels of a key pair up: [`KVQ_ROPE_HALF`] or [`KVQ_ROPE_INTERLEAVED`].
    pub rope: kvq_rope,
    /// R, 0: no codes for keys.
    pub key_stages: i32,
    /// Nc, of a stage.
    pub key_codes: i32,
    /// g, successive pairs that share their indices.
    pub key_group: i32,
    /// What shares a norm.
    pub key_norms: kvq_scope,
    /// Code bits of a value scalar, 0: no codes for values.
    pub value_bits: i32,
    /// What shares a code.
    pub value_scope: kvq_scope,
    /// Bits of a key scalar, codes and norms.
    pub key_true_bits: f64,
    /// Bits of a value scalar, codes and scales.
    pub value_true_bits: f64,
    pub key_error: f64,
    pub value_error: f64,
    /// Trained on, the fewest of any layer.
    pub tokens: i64,
    /// Of everything random in training.
    pub seed: u64,
    /// As in [`kvq_cache_options`].
    pub model_id: u64,
    /// Of the numbers, in memory.
    pub bytes: u64,
    /// Where the codebooks come from, as their trainer said. (ends with a NUL; used as long as the handle lives)
    pub note: *const c_char,
}

/// One layer of codebooks; see [`kvq_codebook_info`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_codebook_layer_info {
    pub struct_size: u32,
    /// 1; 0: the layer is missing and everything below is 0.
    pub present: i32,
    pub tokens: i64,
    pub key_error: f64,
    pub value_error: f64,
    /// The key error of a decoder that knows only the first stage, the first two, …: the last of `key_stages` is
    /// `key_error`, then 0.
    pub key_stage_errors: [f64; 64],
}

/// What centres are made for and how much they take away. Residuals are ‖x − c‖² / ‖x‖² of training, with the
/// nearest centre c, averaged over the layers that are present; 0 for a side without centres.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_centres_info {
    pub struct_size: u32,
    pub n_layers: i32,
    /// Fewer than `n_layers`: training was not finished; no cache takes such centres.
    pub layers_present: i32,
    pub kv_heads: i32,
    pub head_dim: i32,
    /// Of the keys that follow; centres are before it.
    pub rope: kvq_rope,
    /// Of a head; 0: keys have none.
    pub key_centres: i32,
    /// Of a head; 0: values have none.
    pub value_centres: i32,
    pub key_residual: f64,
    pub value_residual: f64,
    /// Trained on, the fewest of any layer.
    pub tokens: i64,
    /// Of everything random in training.
    pub seed: u64,
    /// As in [`kvq_cache_options`].
    pub model_id: u64,
    /// Of the numbers, in memory.
    pub bytes: u64,
    /// Where the centres come from, as their trainer said. (ends with a NUL; used as long as the handle lives)
    pub note: *const c_char,
}

/// One layer of centres; see [`kvq_centres_info`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_centres_layer_info {
    pub struct_size: u32,
    /// 1; 0: the layer is missing and everything below is 0.
    pub present: i32,
    pub tokens: i64,
    pub key_residual: f64,
    pub value_residual: f64,
}

/// What routers are made for, and what they do on the pages that they were trained on.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_router_info {
    pub struct_size: u32,
    pub n_layers: i32,
    pub kv_heads: i32,
    pub head_dim: i32,
    /// Of the keys that follow; routers see them before.
    pub rope: kvq_rope,
    /// Successive layers that share the decisions of the first of them.
    pub sharing: i32,
    /// Of such layers; each has a network.
    pub groups: i32,
    /// Formats to choose among, 2 … [`KVQ_MAX_EXPERTS`].
    pub n_experts: i32,
    /// It was trained with.
    pub method: kvq_router_method,
    /// 0.
    pub reserved: i32,
    /// Of training by the paper's loss; 0 for labels.
    pub loss_weight: f64,
    /// True bits of a scalar, as pages are stored; the first and the open one not counted.
    pub mean_bits: f64,
    /// Labels: the error of attention up to which a format was good enough for a page.
    pub tolerance: f64,
    /// Labels: the share of pages that get the format they were labelled with.
    pub accuracy: f64,
    /// Trained on.
    pub tokens: i64,
    /// Of everything random in training.
    pub seed: u64,
    /// As in [`kvq_cache_options`].
    pub model_id: u64,
    /// Of one network in a file.
    pub bytes: u64,
    /// Names of the formats as in a policy, those with more bits first, separated by ", ". (ends with a NUL; used
    /// as long as the handle lives)
    pub experts: *const c_char,
    /// Where the routers come from, as their trainer said. (ends with a NUL; used as long as the handle lives)
    pub note: *const c_char,
}

/// One group of layers; see [`kvq_router_info`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_router_group_info {
    pub struct_size: u32,
    /// Whose keys decide.
    pub first_layer: i32,
    pub last_layer: i32,
    /// 0.
    pub reserved: i32,
    /// As in [`kvq_router_info`], of these layers.
    pub mean_bits: f64,
    /// As in [`kvq_router_info`], of these layers.
    pub accuracy: f64,
    /// Of the pages that each format gets; 0 beyond `n_experts`.
    pub shares: [f64; 8],
}

/// The shape of a model's attention layers, and what their pages need.
///
/// Filled with defaults by [`kvq_cache_options_init`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_cache_options {
    pub struct_size: u32,
    /// 1 … 65536.
    pub n_layers: i32,
    /// Query heads, 1 … 65536; a multiple of `kv_heads`.
    pub q_heads: i32,
    /// Key/value heads, 1 … 4096.
    pub kv_heads: i32,
    /// A multiple of 8, 8 … 256.
    pub head_dim: i32,
    /// [`KVQ_ROPE_HALF`] by default.
    pub rope: kvq_rope,
    /// Leading channels that are rotated, even; 0 (default): `head_dim`.
    pub rotary_dim: i32,
    /// 10000 by default; frequencies must be finite. Unused when `inv_freq` is given.
    pub rope_base: f32,
    /// Radians per position, head_dim / 2 where `rotary_dim` is 0; NULL (default): rope_base^(-2j / rotary_dim).
    /// (may be NULL; length `rotary_dim / 2`)
    pub inv_freq: *const f32,
    /// Factor on q·k; 0 (default): 1 / sqrt(head_dim).
    pub scale: f32,
    /// 0.
    pub reserved: i32,
    /// Limit on what this cache allocates, its own object included; 0 (default): only the context's.
    pub max_bytes: u64,
    /// Any number that identifies the model's weights; snapshots of another one are refused.
    pub model_id: u64,
    /// What the format `commvq` of a policy needs: of this context, complete, for this many layers and KV heads,
    /// this `head_dim` and `rope`, and this `model_id` unless one of them is 0. Any number of caches share it. NULL
    /// (default): none. (may be NULL)
    pub codebook: *const kvq_codebook,
    /// What `router` in a policy needs: of this context, trained for this shape, `rope`, `model_id` unless one of
    /// them is 0, and the policy's experts. Any number of caches share it. NULL (default): none. (may be NULL)
    pub router: *const kvq_router,
    /// What the formats gs and gt with trained centres need: of this context, complete, for this many layers and KV
    /// heads, this `head_dim` and, for keys, `rope`, and this `model_id` unless one of them is 0. Any number of
    /// caches share it. A policy may need `codebook` or `centres`, not both. NULL (default): none. (may be NULL)
    pub centres: *const kvq_centres,
}

/// What a cache was made with, defaults filled in.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_cache_info {
    pub struct_size: u32,
    pub n_layers: i32,
    pub q_heads: i32,
    pub kv_heads: i32,
    pub head_dim: i32,
    pub rope: kvq_rope,
    /// 0 without RoPE.
    pub rotary_dim: i32,
    pub scale: f32,
    /// First pages of a list that stay FP16.
    pub sink: i32,
    /// Newest pages that stay FP16.
    pub recent: i32,
    /// As in [`kvq_policy_info`].
    pub eviction_budget: i32,
    /// As in [`kvq_policy_info`].
    pub eviction_window: i32,
    pub max_bytes: u64,
    pub model_id: u64,
}

/// How a layer stores what is sealed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_layer_info {
    pub struct_size: u32,
    /// 1, or those that a router chooses among.
    pub n_formats: i32,
    /// Their names, keys/values where these differ, separated by ", ".
    pub formats: [c_char; 256],
}

/// Tokens for one layer of several sequences. Rows of `k` and `v`, a token's, follow sequence by sequence.
///
/// Filled with defaults by [`kvq_append_batch_init`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_append_batch {
    pub struct_size: u32,
    /// ≥ 1.
    pub n_sequences: i32,
    /// All of this cache, none twice. (length `n_sequences`)
    pub sequences: *const *mut kvq_sequence,
    /// Each ≥ 1; NULL (default): one token each. (may be NULL; length `n_sequences`)
    pub token_counts: *const i32,
    /// As for [`kvq_append`]; NULL (default): consecutive in each sequence. (may be NULL; length
    /// `sum(token_counts)`)
    pub positions: *const i32,
    /// As for [`kvq_append`]. (length `strided(sum(token_counts), cache.kv_heads, cache.head_dim)`; in the memory
    /// of the context)
    pub k: *const c_void,
    /// As for [`kvq_append`]. (length `strided(sum(token_counts), cache.kv_heads, cache.head_dim)`; in the memory
    /// of the context)
    pub v: *const c_void,
    /// Of `k` and `v`; [`KVQ_F32`] by default.
    pub dtype: kvq_dtype,
    /// 0.
    pub reserved: i32,
    /// Elements from a token's keys to the next one's, not negative; 0 (default): dense, as many as its heads take.
    /// The channels of a head are always neighbours, and rows need no more alignment than their elements.
    pub k_token_stride: i64,
    /// Elements from a head to the next one, not negative; 0 (default): dense, head_dim.
    pub k_head_stride: i64,
    /// As for keys.
    pub v_token_stride: i64,
    /// As for keys.
    pub v_head_stride: i64,
}

/// What to compress to, and where to report.
///
/// Filled with defaults by [`kvq_compress_options_init`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_compress_options {
    pub struct_size: u32,
    /// Tokens of a KV head that are kept on average; 0 (default): the policy's.
    pub budget: i32,
    /// `[n_layers, kv_heads]` receives the tokens that each head holds afterwards; NULL: skip. (may be NULL; length
    /// `cache.n_layers * cache.kv_heads`)
    pub kept: *mut i32,
    /// Receives by how much the bytes of the sequence fell; NULL: skip. (may be NULL; length `1`)
    pub bytes_freed: *mut u64,
}

/// Queries of one or several sequences, and where their results go.
///
/// Filled with defaults by [`kvq_attend_batch_init`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_attend_batch {
    pub struct_size: u32,
    /// ≥ 1.
    pub n_sequences: i32,
    /// All of this cache; the same one may occur repeatedly. (length `n_sequences`)
    pub sequences: *const *const kvq_sequence,
    /// Each ≥ 1; NULL (default): one query each. (may be NULL; length `n_sequences`)
    pub query_counts: *const i32,
    /// ≥ 0; NULL (default): the last `query_counts[i]` tokens of each sequence, so append before attending. (may be
    /// NULL; length `sum(query_counts)`)
    pub query_positions: *const i32,
    /// `[total queries, q_heads, head_dim]`, before RoPE unless the cache was made with [`KVQ_ROPE_NONE`]. Finite,
    /// as its logits are: what comes of others means nothing. (length `strided(sum(query_counts), cache.q_heads,
    /// cache.head_dim)`; in the memory of the context)
    pub q: *const c_void,
    /// [`KVQ_F32`] by default.
    pub q_dtype: kvq_dtype,
    /// [`KVQ_F32`] by default.
    pub output_dtype: kvq_dtype,
    /// `[total queries, q_heads, head_dim]`; from the first row to the last, its memory may not overlap that of `q`
    /// or `sinks`. (length `strided(sum(query_counts), cache.q_heads, cache.head_dim)`; in the memory of the
    /// context)
    pub output: *mut c_void,
    /// A query at position p sees positions \> p − window; 0 (default): all.
    pub sliding_window: i32,
    /// cap·tanh(logit / cap); 0 (default): none.
    pub logit_softcap: f32,
    /// Elements from a query's row to the next one's, not negative; 0 (default): dense, as many as its heads take.
    /// The channels of a head are always neighbours, and rows need no more alignment than their elements.
    pub q_token_stride: i64,
    /// Elements from a head to the next one, not negative; 0 (default): dense, head_dim.
    pub q_head_stride: i64,
    /// As for queries. No two rows may overlap: all heads of a query lie before the next query's (token stride ≥
    /// (q_heads − 1) · head stride + head_dim), or all queries of a head before the next head's. What is between is
    /// left alone.
    pub output_token_stride: i64,
    /// As for queries.
    pub output_head_stride: i64,
    /// `[total queries, q_heads]` receives the natural logarithm of the sum of exp of the logits, after scale and
    /// cap, sinks included; -infinity for a query that sees nothing and has no sink. Results over parts of a
    /// context merge by it, where one part alone has the sinks: Σᵢ exp(lseᵢ − lse) · outputᵢ with lse = log Σᵢ exp
    /// lseᵢ. It may not overlap `q`, `output` or `sinks`. NULL (default): skip. (may be NULL; length
    /// `sum(query_counts) * cache.q_heads`; in the memory of the context)
    pub lse: *mut f32,
    /// `[q_heads]` learned logits: each adds exp(sink) to the softmax denominator of its head and nothing to the
    /// sum of values; neither scaled nor capped; -infinity is none; NaN and +infinity are refused on a CPU. NULL
    /// (default): none. (may be NULL; length `cache.q_heads`; in the memory of the context)
    pub sinks: *const f32,
}

/// Where the bytes are. All sizes are bytes as allocated, padding and bookkeeping included.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_usage {
    pub struct_size: u32,
    /// 0.
    pub reserved: i32,
    /// Key and value scalars held: 2 · head_dim · slots over all layers and KV heads.
    pub scalars: i64,
    /// Pages in their final compressed format.
    pub sealed_bytes: u64,
    /// FP16 pages: open, recent, sink, or of an fp16 policy.
    pub fp16_bytes: u64,
    /// Page records, positions, page lists, the sequence objects.
    pub metadata_bytes: u64,
    /// Work space of [`kvq_attend`] and the cache object; 0 when asked for one sequence.
    pub workspace_bytes: u64,
    /// Sum of the four.
    pub total_bytes: u64,
    /// 2 · scalars: what an uncompressed FP16 cache needs.
    pub plain_fp16_bytes: u64,
    pub sealed_pages: u64,
    pub fp16_pages: u64,
    /// Pages that more than one sequence holds. For one sequence they are counted in full.
    pub shared_pages: u64,
    /// 8 · (sealed + fp16 + metadata bytes) / scalars; 0 when empty.
    pub bits_per_scalar: f64,
}

/// How a matrix is written in few bits.
///
/// Filled with defaults by [`qp_quantize_options_init`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct qp_quantize_options {
    pub struct_size: u32,
    /// Of the weights; [`KVQ_F32`] by default.
    pub dtype: kvq_dtype,
    /// See [`qp_scheme_name`]; "nuq-4" by default. (ends with a NUL)
    pub scheme: *const c_char,
    /// Of the signs; 1 by default.
    pub seed: u64,
    /// `[columns, columns]`, the mean of x·xᵀ over inputs x; NULL (default): weights are rounded alone. (may be
    /// NULL; length `columns * columns`)
    pub hessian: *const f32,
    /// What the Hessian is for; [`QP_ROUNDING_LDLQ`] by default.
    pub rounding: qp_rounding,
    /// 0.
    pub reserved: i32,
    /// Share of the Hessian's mean diagonal that is added to its diagonal, 0 … 1; 0.01 by default.
    pub damping: f64,
    /// Kept as it is; NULL (default): none. (may be NULL; length `rows`)
    pub bias: *const f32,
    /// NULL (default): not called. (may be NULL)
    pub progress: kvq_progress_hook,
    /// Passed to `progress`. (may be NULL)
    pub progress_user: *mut c_void,
}

/// What a matrix is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct qp_matrix_info {
    pub struct_size: u32,
    /// 1 or 0.
    pub has_bias: i32,
    pub rows: i64,
    pub columns: i64,
    /// Of codes, scales, signs and bias.
    pub bytes: u64,
    /// 8 · bytes / (rows · columns), without the bias: true bits of a weight.
    pub bits: f64,
    /// ‖Ŵ − W‖² / ‖W‖² when it was quantized; 0 for a matrix of zeros.
    pub error: f64,
    /// tr(E·H·Eᵀ) / tr(W·H·Wᵀ) with E = Ŵ − W and the Hessian as given; 0 without one.
    pub proxy_error: f64,
    /// As in [`qp_quantize_options`]. (ends with a NUL; used for ever)
    pub scheme: *const c_char,
}

/// What codebooks are trained for, and how many codes they have.
///
/// Filled with defaults by [`kvq_codebook_trainer_options_init`].
#[cfg(feature = "experimental")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_codebook_trainer_options {
    pub struct_size: u32,
    /// 1 … 65536.
    pub n_layers: i32,
    /// 1 … 4096.
    pub kv_heads: i32,
    /// A multiple of 8, 8 … 256.
    pub head_dim: i32,
    /// [`KVQ_ROPE_HALF`] by default, or [`KVQ_ROPE_INTERLEAVED`].
    pub rope: kvq_rope,
    /// 0 … 64, 0: no codes for keys. A key scalar takes key_stages · log2(key_codes) / key_group bits: with groups
    /// of 64, 11 (default) give 1.03 and 21 give 1.97.
    pub key_stages: i32,
    /// A power of two, 2 … 256; 64 by default.
    pub key_codes: i32,
    /// A divisor of head_dim / 2; 0 (default): head_dim / 2, one group a head.
    pub key_group: i32,
    /// [`KVQ_SCOPE_HEAD`] by default.
    pub key_norms: kvq_scope,
    /// 0, 1 (default) or 2, 0: no codes for values.
    pub value_bits: i32,
    /// [`KVQ_SCOPE_LAYER`] by default: smaller errors, but tokens can be evicted only for all heads of a layer at
    /// once.
    pub value_scope: kvq_scope,
    /// Rounds of joint refinement of all stages, at most 1000; 0 (default): the library's.
    pub key_rounds: i32,
    /// Rounds of least squares, or of 50 steps of the network each, at most 1000; 0 (default): the library's
    /// choice.
    pub value_rounds: i32,
    /// [`KVQ_VALUES_LEAST_SQUARES`] by default.
    pub value_method: kvq_value_method,
    /// Of everything random; 1 by default.
    pub seed: u64,
    /// Any number that identifies the model's weights, as in [`kvq_cache_options`].
    pub model_id: u64,
    /// Limit on tokens kept and work space; 0 (default): only the context's.
    pub max_bytes: u64,
    /// At most 4096 bytes: where the codebooks come from, for example. NULL (default): "". (may be NULL; ends with
    /// a NUL)
    pub note: *const c_char,
}

/// What centres are trained for, and how many there are.
///
/// Filled with defaults by [`kvq_centres_trainer_options_init`].
#[cfg(feature = "experimental")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_centres_trainer_options {
    pub struct_size: u32,
    /// 1 … 65536.
    pub n_layers: i32,
    /// 1 … 4096.
    pub kv_heads: i32,
    /// A multiple of 8, 8 … 256.
    pub head_dim: i32,
    /// That follows the keys; [`KVQ_ROPE_HALF`] by default.
    pub rope: kvq_rope,
    /// Of a head, 0 … 256; 256 by default, 1: the mean, 0: none for keys.
    pub key_centres: i32,
    /// The same for values.
    pub value_centres: i32,
    /// Of k-means over all tokens, at most 1000; 0 (default): the library's choice.
    pub rounds: i32,
    /// Of everything random; 1 by default.
    pub seed: u64,
    /// Any number that identifies the model's weights, as in [`kvq_cache_options`].
    pub model_id: u64,
    /// Limit on tokens kept and work space; 0 (default): only the context's.
    pub max_bytes: u64,
    /// At most 4096 bytes: where the centres come from, for example. NULL (default): "". (may be NULL; ends with a
    /// NUL)
    pub note: *const c_char,
}

/// How routers are trained, and for how many bits.
///
/// Filled with defaults by [`kvq_router_trainer_options_init`].
#[cfg(feature = "experimental")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_router_trainer_options {
    pub struct_size: u32,
    /// [`KVQ_ROUTER_LABEL`] by default.
    pub method: kvq_router_method,
    /// Successive layers that share decisions, 1 … 65536; 3 by default.
    pub sharing: i32,
    /// Passes over the keys, at most 10000; 0 (default): the library's choice.
    pub epochs: i32,
    /// For [`KVQ_ROUTER_LABEL`], which needs it: the wanted mean of true bits of a scalar over routed pages, from
    /// those of the last expert to those of the first. 0 by default.
    pub mean_bits: f64,
    /// For [`KVQ_ROUTER_PAPER`]: the weight of the model's loss against that of memory (the paper's λ), 0 … 1; 0.5
    /// by default.
    pub loss_weight: f64,
    /// Of AdamW, above 0, at most 1; 3e-4 by default.
    pub learning_rate: f64,
    /// Of everything random; 1 by default.
    pub seed: u64,
    /// Limit on keys kept and work space; 0 (default): only the context's.
    pub max_bytes: u64,
    /// At most 4096 bytes. NULL (default): "". (may be NULL; ends with a NUL)
    pub note: *const c_char,
}

/// Choices, of each of which a plan takes one option: the scheme of a matrix, the format of a layer's keys.
/// Costs add up; the library knows nothing else of them.
///
/// Filled with defaults by [`kvq_plan_problem_init`].
#[cfg(feature = "experimental")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_plan_problem {
    pub struct_size: u32,
    /// [`KVQ_PLAN_LOSS`] by default.
    pub goal: kvq_plan_goal,
    /// 1 … 2^20.
    pub n_choices: i32,
    /// 0.
    pub reserved: i32,
    /// Options of each choice, at least 1; 2^24 together at most. (length `n_choices`)
    pub option_counts: *const i32,
    /// Of the options of the first choice, then of the second, …; finite, not negative. NULL (default): 0. (may be
    /// NULL; length `sum(option_counts)`)
    pub bytes: *const f64,
    /// The same. (may be NULL; length `sum(option_counts)`)
    pub seconds: *const f64,
    /// The same. (may be NULL; length `sum(option_counts)`)
    pub loss: *const f64,
    /// That all options taken may have together; infinity (default): any.
    pub max_bytes: f64,
    /// The same.
    pub max_seconds: f64,
    /// The same.
    pub max_loss: f64,
    /// Share of the smallest goal by which the plan's may be above it, 0 … 1; 0.0001 by default.
    pub tolerance: f64,
}

/// What a plan costs.
#[cfg(feature = "experimental")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_plan_costs {
    pub struct_size: u32,
    /// 0.
    pub reserved: i32,
    pub bytes: f64,
    pub seconds: f64,
    pub loss: f64,
    /// No plan that keeps the limits has a smaller goal. It is within the tolerance of this plan's, but for the
    /// hardest problems with two limits.
    pub bound: f64,
}

/// Matrices that read the same inputs, of which some may be multiplied together if they have one scheme. A
/// group is a set of members, bit i for member i.
///
/// Filled with defaults by [`kvq_plan_fusion_options_init`].
#[cfg(feature = "experimental")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_plan_fusion_options {
    pub struct_size: u32,
    /// 1 … [`KVQ_MAX_FUSED`], for example 3: q, k and v.
    pub n_members: i32,
    /// 1 … 1024.
    pub n_schemes: i32,
    /// Groups that can be multiplied together, those of one member, too; 1 … 15.
    pub n_groups: i32,
    /// All different; every member must be in one. (length `n_groups`)
    pub groups: *const i32,
    /// `[n_members, n_schemes]`, finite, not negative. (length `n_members * n_schemes`)
    pub bytes: *const f64,
    /// The same. (length `n_members * n_schemes`)
    pub loss: *const f64,
    /// `[n_groups, n_schemes]`, of each group as a whole; the same, or infinity where a group cannot have a scheme.
    /// (length `n_groups * n_schemes`)
    pub seconds: *const f64,
}

/// How many groupings there are.
#[cfg(feature = "experimental")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_plan_fusion_info {
    pub struct_size: u32,
    pub n_members: i32,
    /// 0: no grouping has a time.
    pub n_groupings: i32,
    /// 0.
    pub reserved: i32,
}

/// One grouping.
#[cfg(feature = "experimental")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_plan_grouping_info {
    pub struct_size: u32,
    /// 0.
    pub reserved: i32,
    pub bytes: f64,
    pub seconds: f64,
    pub loss: f64,
    /// Of each member, the group that it is multiplied in; then 0.
    pub groups: [i32; 4],
    /// Of each member, the number of its scheme; then 0.
    pub schemes: [i32; 4],
}

/// What is in a plan.
///
/// Filled with defaults by [`kvq_plan_content_init`].
#[cfg(feature = "experimental")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_plan_content {
    pub struct_size: u32,
    /// 0 … 2^20.
    pub n_matrices: i32,
    /// Of the matrices, all different, each a string of 1 to 200 bytes without control characters. (may be NULL;
    /// length `n_matrices`)
    pub names: *const *const c_char,
    /// As in [`qp_quantize_options`], each a string. (may be NULL; length `n_matrices`)
    pub schemes: *const *const c_char,
    /// Of the context. NULL (default): the plan says nothing of caches. (may be NULL)
    pub policy: *const kvq_policy,
    /// Expected; finite, not negative, 0 by default.
    pub bytes: f64,
    /// The same.
    pub seconds: f64,
    /// The same.
    pub loss: f64,
    /// At most 4096 bytes, UTF-8 without control characters. NULL (default): "". (may be NULL; ends with a NUL)
    pub note: *const c_char,
}

/// What is in a plan.
#[cfg(feature = "experimental")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_plan_info {
    pub struct_size: u32,
    pub n_matrices: i32,
    /// 1 or 0.
    pub has_policy: i32,
    /// 0.
    pub reserved: i32,
    pub bytes: f64,
    pub seconds: f64,
    pub loss: f64,
    /// (ends with a NUL; used as long as the handle lives)
    pub note: *const c_char,
}

/// One matrix of a plan.
#[cfg(feature = "experimental")]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvq_plan_matrix_info {
    pub struct_size: u32,
    /// 0.
    pub reserved: i32,
    /// (ends with a NUL; used as long as the handle lives)
    pub name: *const c_char,
    /// (ends with a NUL; used for ever)
    pub scheme: *const c_char,
}

extern "C" {
    /// Clear an error.
    ///
    /// - `error`: (may be NULL)
    /// - `size`: sizeof([`kvq_error`]).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_error_init(error: *mut kvq_error, size: usize);

    /// Name of a status code, for example "[`KVQ_E_LIMIT`]"; "unknown status" for other numbers.
    ///
    /// Returns (ends with a NUL; used for ever)
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_status_name(status: kvq_status) -> *const c_char;

    /// The [`KVQ_API_VERSION`] that the loaded library implements: it has everything that a header of this or a
    /// smaller number declares, apart from experimental parts.
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_api_version() -> i32;

    /// Version of the loaded library, "major.minor.patch".
    ///
    /// Returns (ends with a NUL; used for ever)
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_version_string() -> *const c_char;

    /// Fill with defaults.
    ///
    /// - `options`: (may be NULL)
    /// - `size`: sizeof([`kvq_context_options`]).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_context_options_init(options: *mut kvq_context_options, size: usize);

    /// Create a context.
    ///
    /// - `options`: NULL: defaults. (may be NULL)
    /// - `result`: receives the handle.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_UNSUPPORTED`] (device or instruction set not available here,
    /// with the reason); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`]; [`KVQ_E_BACKEND`] (a thread could not be started, or
    /// the device failed).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_context_create(
        options: *const kvq_context_options,
        result: *mut *mut kvq_context,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Destroy a handle. What was made from the context keeps it alive.
    ///
    /// - `context`: (may be NULL)
    ///
    /// Threads: exclusive use of the handle.
    ///
    /// Since 1.0.
    pub fn kvq_context_destroy(context: *mut kvq_context);

    /// Describe a context.
    ///
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_context_describe(
        context: *const kvq_context,
        info: *mut kvq_context_info,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Issue later calls of a CUDA context to another stream, ordered after everything issued before.
    ///
    /// - `stream`: cudaStream_t, NULL for the legacy default stream. It must live until another one is set or the
    ///   context is gone. (may be NULL; used as long as the handle lives)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_UNSUPPORTED`] (a CPU context); [`KVQ_E_BACKEND`].
    ///
    /// Threads: exclusive use of `context`.
    ///
    /// Since 1.0.
    pub fn kvq_context_set_stream(context: *mut kvq_context, stream: *mut c_void, error: *mut kvq_error) -> kvq_status;

    /// Ask whether contexts can be created on a device, and on what.
    ///
    /// - `device`: [`KVQ_DEVICE_CUDA`].
    /// - `index`: as [`kvq_context_options::device_index`].
    /// - `plugin`: as [`kvq_context_options::plugin`]. (may be NULL; ends with a NUL)
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_UNSUPPORTED`] with the reason: no plug-in library, one of
    /// another version, a library it needs is missing (its name), no driver, a driver too old, no such device.
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_device_describe(
        device: kvq_device,
        index: i32,
        plugin: *const c_char,
        info: *mut kvq_device_info,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Number of CPU instruction sets that this build has kernels for and this machine can run.
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_cpu_isa_count() -> i32;

    /// Name of instruction set `index`, best first ("amx", "avx512vnni", "avx512", "avx2", "baseline"). "amx" is
    /// "avx512vnni" with products of tiles for linear layers on five rows and more. Where a processor has tiles,
    /// the first call that looks for instruction sets asks Linux to let this process use them; alternate signal
    /// stacks that are set up later must then have room for them (AT_MINSIGSTKSZ).
    ///
    /// Returns NULL if `index` is out of range. (may be NULL; ends with a NUL; used for ever)
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_cpu_isa_name(index: i32) -> *const c_char;

    /// Read a policy from YAML, or from the short form of one or two formats.
    ///
    /// The short form is the name of a format for keys and values of all layers, or two with a slash, KEYS/VALUES,
    /// and optionally `+METHOD:BUDGET` of eviction at the end, like `gs2`, `gt2/gt1`, `int4+adasnap:128`. The
    /// formats:
    ///
    /// - `gs4`, `gs3`, `gs2`, `gs1`: gain-shape pages. Codes of 4 to 1 bits after a Hadamard rotation, and a gain
    ///   of 8 bits for each token and side, chosen so that what is decoded is unbiased. Keys are encoded relative
    ///   to the mean of their page's, which a page has in 8 bits, and values as they are; with `+nocentre` keys,
    ///   too. Nothing is trained for these two. With `+centres` a side is encoded relative to the nearest of its
    ///   head's trained centres, which [`kvq_cache_options`] has, those of keys turned by RoPE to where the key is;
    ///   a page then has a byte for each token that says which, unless there is but one.
    /// - `gt3`, `gt2`, `gt1`: the same with codes of 3 to 1 bits that are a path through a trellis of 64 states:
    ///   their error is a quarter to a half smaller, and they take longer to encode and to attend to.
    /// - `fp16`; `int8`, `int4`, `int3`, `int2`: integers with a scale and a minimum for each channel of a page's
    ///   keys and for each token and group of channels of values; optionally with `+hadamard`, encoded after a
    ///   Hadamard rotation.
    /// - `commvq`: codes of a codebook that was trained for the model.
    ///
    /// The long form:
    ///
    /// ```text
    /// version: 1
    /// keys: int4+hadamard            # a format name, or a map:
    /// values: {format: int2, hadamard: false, group: 32}
    /// sink: 1                        # first pages that stay FP16
    /// recent: 1                      # newest pages that stay FP16, the open one included
    /// layers:                        # later entries win
    ///   - {range: [0, 1], keys: fp16, values: int8}
    ///   - {range: [2, 3], keys: {format: gs2, centres: none}}   # or page, trained: +nocentre, nothing, +centres
    /// centres: page                  # of all gain-shape formats, of experts too, that do not say it themselves
    /// commvq:                        # for the format commvq, which needs a codebook
    ///   beam: 4                      # sums of codes kept while a key is encoded, 1 to 16
    ///   flips: 100                   # bits of a value's code flipped to lower its error, at most
    ///   attention: auto              # or tables, rebuild, decode
    ///
    /// eviction: {method: adasnap, budget: 128}   # what kvq_compress does, see there
    /// ```
    ///
    /// and instead of `keys`, `values` and `layers`, for pages that each get a format of their own:
    ///
    /// ```text
    /// router:                        # needs a router that was trained for these experts
    ///   experts: [fp16, int4, int2]  # 2 to 8 formats, those with more bits first; int8/int4: keys/values
    ///   votes: layer                 # tokens of all heads choose together; or head
    /// ```
    ///
    /// `group` is the number of channels that share a scale in an integer value page (32, 64 or 128). Defaults:
    /// fp16, recent 1, centres page, beam 1, as many flips as help, attention auto; sink 1 if any page gets
    /// gain-shape codes of three bits or fewer, else 0: models give their first tokens much attention.
    ///
    /// `attention` says how the CPU attends to keys with codes; results are the same but for rounding. `tables`:
    /// products of each query with all codes, which are then summed for each token; `rebuild`: keys summed up from
    /// their codes once for all queries of a KV head; `decode`: keys and values decoded one by one, tens of times
    /// slower, for comparison; `auto` takes the faster of the first two.
    ///
    /// - `yaml`: text, not necessarily NUL-terminated; at most 1 MiB, nested at most 16 deep. (length `length`)
    /// - `length`: bytes of `yaml`.
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_FORMAT`] (with the line); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_policy_load(
        context: *mut kvq_context,
        yaml: *const c_char,
        length: usize,
        result: *mut *mut kvq_policy,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// A policy that evicts tokens and otherwise says what another one says.
    ///
    /// - `policy`: of this context. If it evicts, all but the method and the budget stays.
    /// - `method`: name of a method, see [`kvq_compress`]. (ends with a NUL)
    /// - `budget`: tokens of a KV head that stay, on average.
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (also: an unknown method, a budget smaller than the window);
    /// [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_policy_with_eviction(
        context: *mut kvq_context,
        policy: *const kvq_policy,
        method: *const c_char,
        budget: i32,
        result: *mut *mut kvq_policy,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// A policy whose layers `first_layer` to `last_layer` are stored in other formats and that otherwise says what
    /// another one says.
    ///
    /// - `policy`: of this context, without a router.
    /// - `first_layer`: 0 … `last_layer`.
    /// - `last_layer`: at most 65535; creating a cache with fewer layers fails.
    /// - `keys`: name of a format, see [`kvq_policy_load`]; NULL: as before. (may be NULL; ends with a NUL)
    /// - `values`: the same for values. (may be NULL; ends with a NUL)
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (also: the name of no format, a policy with a router);
    /// [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_policy_with_layer(
        context: *mut kvq_context,
        policy: *const kvq_policy,
        first_layer: i32,
        last_layer: i32,
        keys: *const c_char,
        values: *const c_char,
        result: *mut *mut kvq_policy,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Write a policy in the long form, which [`kvq_policy_load`] reads: the same is then said of every layer.
    /// Reading and writing again gives the same bytes.
    ///
    /// - `buffer`: receives the text, without a NUL. NULL: only the size is asked for. (may be NULL; length
    ///   `capacity`)
    /// - `capacity`: bytes available at `buffer`.
    /// - `size`: receives the size of the text in bytes; also when `capacity` is too small. (length `1`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_BUFFER_SIZE`] (nothing is written); [`KVQ_E_UNSUPPORTED`]
    /// (so many layers differ that the text would be longer than can be read); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_policy_save(
        policy: *const kvq_policy,
        buffer: *mut c_char,
        capacity: usize,
        size: *mut usize,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Describe a policy.
    ///
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_policy_describe(
        policy: *const kvq_policy,
        info: *mut kvq_policy_info,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Destroy a policy. Caches made with it keep what they need.
    ///
    /// - `policy`: (may be NULL)
    ///
    /// Threads: exclusive use of the handle.
    ///
    /// Since 1.0.
    pub fn kvq_policy_destroy(policy: *mut kvq_policy);

    /// Read codebooks from a file in memory. Every byte is checked; saving the result again gives the same bytes.
    ///
    /// - `buffer`: bytes of a file written by [`kvq_codebook_save`]. (length `size`)
    /// - `size`: bytes at `buffer`.
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_FORMAT`] (damaged, truncated, or no codebook; the message
    /// names the tensor or field); [`KVQ_E_MISMATCH`] (a file of another version); [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_codebook_load(
        context: *mut kvq_context,
        buffer: *const c_void,
        size: usize,
        result: *mut *mut kvq_codebook,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Write codebooks as a file. The same codebooks give the same bytes.
    ///
    /// - `buffer`: NULL: only the size is asked for. (may be NULL; length `capacity`)
    /// - `capacity`: bytes available at `buffer`.
    /// - `size`: receives the size of the file in bytes; also when `capacity` is too small. (length `1`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_BUFFER_SIZE`] (nothing is written); [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_codebook_save(
        codebook: *const kvq_codebook,
        buffer: *mut c_void,
        capacity: usize,
        size: *mut usize,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Describe codebooks.
    ///
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_codebook_describe(
        codebook: *const kvq_codebook,
        info: *mut kvq_codebook_info,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Describe one layer of codebooks.
    ///
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_codebook_describe_layer(
        codebook: *const kvq_codebook,
        layer: i32,
        info: *mut kvq_codebook_layer_info,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Destroy a handle.
    ///
    /// - `codebook`: (may be NULL)
    ///
    /// Threads: exclusive use of the handle.
    ///
    /// Since 1.0.
    pub fn kvq_codebook_destroy(codebook: *mut kvq_codebook);

    /// Read centres from a file in memory. Every byte is checked; saving the result again gives the same bytes.
    ///
    /// - `buffer`: bytes of a file written by [`kvq_centres_save`]. (length `size`)
    /// - `size`: bytes at `buffer`.
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_FORMAT`] (damaged, truncated, or no centres; the message
    /// names the tensor or field); [`KVQ_E_MISMATCH`] (a file of another version); [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_centres_load(
        context: *mut kvq_context,
        buffer: *const c_void,
        size: usize,
        result: *mut *mut kvq_centres,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Write centres as a file. The same centres give the same bytes.
    ///
    /// - `buffer`: NULL: only the size is asked for. (may be NULL; length `capacity`)
    /// - `capacity`: bytes available at `buffer`.
    /// - `size`: receives the size of the file in bytes; also when `capacity` is too small. (length `1`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_BUFFER_SIZE`] (nothing is written); [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_centres_save(
        centres: *const kvq_centres,
        buffer: *mut c_void,
        capacity: usize,
        size: *mut usize,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Describe centres.
    ///
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_centres_describe(
        centres: *const kvq_centres,
        info: *mut kvq_centres_info,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Describe one layer of centres.
    ///
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_centres_describe_layer(
        centres: *const kvq_centres,
        layer: i32,
        info: *mut kvq_centres_layer_info,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Destroy a handle.
    ///
    /// - `centres`: (may be NULL)
    ///
    /// Threads: exclusive use of the handle.
    ///
    /// Since 1.0.
    pub fn kvq_centres_destroy(centres: *mut kvq_centres);

    /// Read routers from a file in memory. Every byte is checked; saving the result again gives the same bytes.
    ///
    /// - `buffer`: bytes of a file written by [`kvq_router_save`]. (length `size`)
    /// - `size`: bytes at `buffer`.
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_FORMAT`] (damaged, truncated, or no router; the message
    /// names the tensor or field); [`KVQ_E_MISMATCH`] (a file of another version); [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_router_load(
        context: *mut kvq_context,
        buffer: *const c_void,
        size: usize,
        result: *mut *mut kvq_router,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Write routers as a file. The same routers give the same bytes.
    ///
    /// - `buffer`: NULL: only the size is asked for. (may be NULL; length `capacity`)
    /// - `capacity`: bytes available at `buffer`.
    /// - `size`: receives the size of the file in bytes; also when `capacity` is too small. (length `1`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_BUFFER_SIZE`] (nothing is written); [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_router_save(
        router: *const kvq_router,
        buffer: *mut c_void,
        capacity: usize,
        size: *mut usize,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Describe routers.
    ///
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_router_describe(
        router: *const kvq_router,
        info: *mut kvq_router_info,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Describe one group of layers.
    ///
    /// - `group`: 0 … groups − 1.
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_router_describe_group(
        router: *const kvq_router,
        group: i32,
        info: *mut kvq_router_group_info,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Destroy a handle.
    ///
    /// - `router`: (may be NULL)
    ///
    /// Threads: exclusive use of the handle.
    ///
    /// Since 1.0.
    pub fn kvq_router_destroy(router: *mut kvq_router);

    /// Fill with defaults; the four sizes are left 0 and must be set.
    ///
    /// - `options`: (may be NULL)
    /// - `size`: sizeof([`kvq_cache_options`]).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_cache_options_init(options: *mut kvq_cache_options, size: usize);

    /// Create a cache.
    ///
    /// - `policy`: of this or another context; NULL: fp16. (may be NULL)
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (also: the policy needs a codebook, centres or a router and there is
    /// none); [`KVQ_E_MISMATCH`] (a codebook, centres or router for another model, with the difference);
    /// [`KVQ_E_UNSUPPORTED`] (a format that the context's device does not compute with; formats of which some need
    /// a codebook and others centres); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_cache_create(
        context: *mut kvq_context,
        options: *const kvq_cache_options,
        policy: *const kvq_policy,
        result: *mut *mut kvq_cache,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Destroy a handle. Sequences of the cache keep it alive.
    ///
    /// - `cache`: (may be NULL)
    ///
    /// Threads: exclusive use of the handle.
    ///
    /// Since 1.0.
    pub fn kvq_cache_destroy(cache: *mut kvq_cache);

    /// Describe a cache.
    ///
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_cache_describe(cache: *const kvq_cache, info: *mut kvq_cache_info, error: *mut kvq_error) -> kvq_status;

    /// Describe a layer of a cache.
    ///
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_cache_describe_layer(
        cache: *const kvq_cache,
        layer: i32,
        info: *mut kvq_layer_info,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// The context that a cache was created from, which lives as long as the cache does.
    ///
    /// Returns NULL for NULL. (may be NULL; used as long as the handle lives)
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_cache_context(cache: *const kvq_cache) -> *mut kvq_context;

    /// Create an empty sequence.
    ///
    /// - `result`: receives the handle. (keeps `cache` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: any number of sequences of one cache may be created, used and destroyed concurrently.
    ///
    /// Since 1.0.
    pub fn kvq_sequence_create(
        cache: *mut kvq_cache,
        result: *mut *mut kvq_sequence,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Create a sequence that starts with everything `parent` holds. Pages are shared until one side changes them.
    ///
    /// - `result`: receives the handle. (keeps `cache` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (NULL, or `parent` belongs to another cache); [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`].
    ///
    /// Threads: `parent` may be read concurrently.
    ///
    /// Since 1.0.
    pub fn kvq_sequence_fork(
        cache: *mut kvq_cache,
        parent: *const kvq_sequence,
        result: *mut *mut kvq_sequence,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Drop tokens from the end of every layer, so that each layer keeps the first `length` tokens.
    ///
    /// Exact while the cut lies in an FP16 page or on a page border (a multiple of [`KVQ_PAGE_SLOTS`]). A cut
    /// inside a sealed page is refused: keep `recent: 2` or more pages in FP16 to be able to roll back at least 32
    /// tokens. On a border, a page that had been sealed stays sealed.
    ///
    /// - `length`: 0 … the shortest layer's length.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (negative or beyond the length); [`KVQ_E_STATE`] (inside a sealed
    /// page; the message gives the nearest lengths that work; or evicted tokens had gaps in their positions);
    /// [`KVQ_E_MEMORY`], [`KVQ_E_LIMIT`] (a shared page had to be copied).
    ///
    /// Threads: exclusive use of `sequence`.
    ///
    /// Since 1.0.
    pub fn kvq_sequence_truncate(
        cache: *mut kvq_cache,
        sequence: *mut kvq_sequence,
        length: i32,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Destroy a sequence; pages shared with a fork live on.
    ///
    /// - `sequence`: (may be NULL)
    ///
    /// Threads: exclusive use of the handle.
    ///
    /// Since 1.0.
    pub fn kvq_sequence_destroy(sequence: *mut kvq_sequence);

    /// The cache that a sequence belongs to, which lives as long as the sequence does.
    ///
    /// Returns NULL for NULL. (may be NULL; used as long as the handle lives)
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_sequence_cache(sequence: *const kvq_sequence) -> *mut kvq_cache;

    /// Make pages ahead, so that every layer has room for `tokens` more tokens.
    ///
    /// Appends then take these pages: while there is room, no append of up to [`KVQ_PAGE_SLOTS`] tokens allocates
    /// page memory, and on a CPU the pages of a head lie next to each other from the start. On a GPU this is what a
    /// CUDA graph needs:
    ///
    /// ```text
    /// kvq_context_set_stream(context, stream);
    /// kvq_attend(…)                                  // once with the graph's batch: it allocates its work space
    /// kvq_sequence_reserve(cache, sequence, 4096, …);
    /// cudaStreamBeginCapture(stream, …);
    /// kvq_append(…, 1, k, v, …); kvq_attend(…);      // of every layer
    /// cudaStreamEndCapture(stream, &graph);
    /// ```
    ///
    /// Every launch of the graph appends one token more and attends to all: lengths, positions and page tables live
    /// on the device. While a stream is captured, [`kvq_append`] takes at most [`KVQ_PAGE_SLOTS`] tokens and no
    /// positions, [`kvq_attend`] takes no query positions, and other functions of the sequence may not be called.
    /// Afterwards they may: each first waits for the context's stream to learn how far the graph has come, so
    /// launch graphs on it, or let it wait for them. A launch without room appends nothing, and a later call on the
    /// context returns [`KVQ_E_LIMIT`]. A graph stays valid until [`kvq_sequence_reserve`] is called again, or
    /// something it refers to is destroyed. Forks of a sequence with pages made ahead copy its open pages. Layers
    /// with a codebook's codes cannot be captured, nor can attention where a policy evicts by what queries look at:
    /// these calls return [`KVQ_E_UNSUPPORTED`].
    ///
    /// - `tokens`: ≥ 0, per layer; 0 gives back the pages that are left.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (NULL; a sequence of another cache; negative, or more than a layer
    /// can hold); [`KVQ_E_STATE`] (a stream is captured); [`KVQ_E_UNSUPPORTED`] (above 0 where a router chooses the
    /// formats); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`]; [`KVQ_E_BACKEND`].
    ///
    /// Threads: exclusive use of `sequence`.
    ///
    /// Since 1.0.
    pub fn kvq_sequence_reserve(
        cache: *mut kvq_cache,
        sequence: *mut kvq_sequence,
        tokens: i32,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Number of tokens that `layer` has pages for, made by [`kvq_sequence_reserve`]. Truncating makes room again,
    /// except for pages that a fork still holds.
    ///
    /// - `room`: receives the number; unchanged on failure. (length `1`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_BACKEND`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_sequence_room(
        sequence: *const kvq_sequence,
        layer: i32,
        room: *mut i32,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Number of tokens appended to `layer`, evicted ones included.
    ///
    /// - `length`: receives the number; unchanged on failure. (length `1`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_BACKEND`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_sequence_length(
        sequence: *const kvq_sequence,
        layer: i32,
        length: *mut i32,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Number of tokens that a KV head of `layer` holds: what eviction has left. [`kvq_sequence_decode`] tells
    /// their positions.
    ///
    /// - `kv_head`: 0 … kv_heads − 1.
    /// - `slots`: receives the number; unchanged on failure. (length `1`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_BACKEND`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn kvq_sequence_slots(
        sequence: *const kvq_sequence,
        layer: i32,
        kv_head: i32,
        slots: *mut i32,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Write a snapshot of a sequence.
    ///
    /// - `buffer`: NULL: only the size is asked for. (may be NULL; length `capacity`)
    /// - `capacity`: bytes available at `buffer`.
    /// - `size`: receives the size of the snapshot in bytes; also when `capacity` is too small. (length `1`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_BUFFER_SIZE`] (nothing is written); [`KVQ_E_BACKEND`].
    ///
    /// Threads: `sequence` may be read concurrently.
    ///
    /// Since 1.0.
    pub fn kvq_sequence_save(
        cache: *mut kvq_cache,
        sequence: *const kvq_sequence,
        buffer: *mut c_void,
        capacity: usize,
        size: *mut usize,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Make a sequence from a snapshot. Every byte is checked; saving the result again gives the same bytes.
    ///
    /// - `buffer`: what [`kvq_sequence_save`] wrote. (length `size`)
    /// - `size`: bytes at `buffer`.
    /// - `result`: receives the handle. (keeps `cache` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_FORMAT`] (damaged or truncated); [`KVQ_E_MISMATCH`] (another
    /// model, shape, policy format or version; tokens were evicted, which the cache's policy never does);
    /// [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`]; [`KVQ_E_BACKEND`].
    ///
    /// Threads: see [`kvq_sequence_create`].
    ///
    /// Since 1.0.
    pub fn kvq_sequence_load(
        cache: *mut kvq_cache,
        buffer: *const c_void,
        size: usize,
        result: *mut *mut kvq_sequence,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Append tokens to one layer of a sequence, from dense tensors.
    ///
    /// Fills the layer's open page; a full page is sealed (encoded in its final format) when it leaves the newest
    /// `recent` pages, that is when the next token arrives. Either all `n` tokens are appended or none.
    ///
    /// - `n`: number of tokens, ≥ 1.
    /// - `k`: keys `[n, kv_heads, head_dim]`, before RoPE unless the cache was made with [`KVQ_ROPE_NONE`]; of a
    ///   CUDA context read in stream order. Finite, magnitude at most 65504 (FP16) after rotation, in layers stored
    ///   with `+hadamard` or in gain-shape pages after that rotation too. (length `n * cache.kv_heads *
    ///   cache.head_dim`; in the memory of the context)
    /// - `v`: values, same shape and rules. (length `n * cache.kv_heads * cache.head_dim`; in the memory of the
    ///   context)
    /// - `dtype`: element type of `k` and `v`.
    /// - `positions`: original positions, ≥ 0, strictly increasing and beyond the layer's last one; NULL:
    ///   consecutive. (may be NULL; length `n`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (NULL, shape, dtype, position, value not representable: a CUDA
    /// context stores the nearest representable number, 0 for NaN, and a later call reports it); [`KVQ_E_STATE`] (a
    /// CUDA graph is captured or lives, see [`kvq_sequence_reserve`]; the layer takes the formats of its pages from
    /// another one, which would hold fewer tokens: append to layers in their order); [`KVQ_E_LIMIT`];
    /// [`KVQ_E_MEMORY`]; [`KVQ_E_BACKEND`].
    ///
    /// Threads: exclusive use of `sequence`; other sequences of the cache may be appended to, attended to, saved
    /// and so on concurrently.
    ///
    /// Since 1.0.
    pub fn kvq_append(
        cache: *mut kvq_cache,
        sequence: *mut kvq_sequence,
        layer: i32,
        n: i32,
        k: *const c_void,
        v: *const c_void,
        dtype: kvq_dtype,
        positions: *const i32,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Fill with defaults (one dense F32 token a sequence).
    ///
    /// - `batch`: (may be NULL)
    /// - `size`: sizeof([`kvq_append_batch`]).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_append_batch_init(batch: *mut kvq_append_batch, size: usize);

    /// Append tokens to one layer of several sequences: to all of them, or to none.
    ///
    /// Strides reach tokens and heads in tensors of any layout, such as queries, keys and values in one: `k` then
    /// points to the first key, and `k_token_stride` is (q_heads + 2 · kv_heads) · head_dim. What is stored is what
    /// [`kvq_append`] stores. A batch shares the work on all sequences among threads, and on a GPU takes one launch
    /// (in a CUDA graph one for each sequence).
    ///
    /// Returns as [`kvq_append`]; [`KVQ_E_ARGUMENT`] also if a sequence occurs twice, or an offset by the strides
    /// is too large. Messages count tokens over all sequences.
    ///
    /// Threads: exclusive use of these sequences; others of the cache may be used concurrently.
    ///
    /// Since 1.0.
    pub fn kvq_append_sequences(
        cache: *mut kvq_cache,
        layer: i32,
        batch: *const kvq_append_batch,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Decode stored keys and values, for inspection and tests. Not fast.
    ///
    /// - `kv_head`: 0 … kv_heads − 1.
    /// - `begin`: first slot of the head's list.
    /// - `n`: slots from there on, ≥ 1.
    /// - `k`: receives `[n, head_dim]` keys as attention sees them (after RoPE); NULL: skip. (may be NULL; length
    ///   `n * cache.head_dim`)
    /// - `v`: receives `[n, head_dim]` values; NULL: skip. (may be NULL; length `n * cache.head_dim`)
    /// - `positions`: receives original positions; NULL: skip. (may be NULL; length `n`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`]; [`KVQ_E_BACKEND`].
    ///
    /// Threads: `sequence` may be read concurrently.
    ///
    /// Since 1.0.
    pub fn kvq_sequence_decode(
        cache: *const kvq_cache,
        sequence: *const kvq_sequence,
        layer: i32,
        kv_head: i32,
        begin: i32,
        n: i32,
        k: *mut f32,
        v: *mut f32,
        positions: *mut i32,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Fill with defaults.
    ///
    /// - `options`: (may be NULL)
    /// - `size`: sizeof([`kvq_compress_options`]).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_compress_options_init(options: *mut kvq_compress_options, size: usize);

    /// Evict tokens as the `eviction` of the cache's policy says, at a moment of the caller's choice: after a
    /// prompt, and again when a conversation has grown.
    ///
    /// Tokens are judged by the queries that [`kvq_attend`] has seen: by the last `window` of them (of a prompt, if
    /// this follows it), or by all. A policy names one of the papers' methods and a budget, the tokens that a KV
    /// head keeps on average:
    ///
    /// ```text
    /// eviction:
    ///   method: adasnap  # streaming: the first and the newest tokens (StreamingLLM)
    ///                    # h2o: most attention from all queries (H2O)
    ///                    # snapkv: most attention from the newest queries (SnapKV)
    ///                    # pyramid: the same, more in the first layers and less in the last (PyramidKV)
    ///                    # adasnap, adapyramid: and heads share a layer's budget as they need it (Ada-KV)
    ///   budget: 128      # the window included; or a share of the tokens that were appended, like 25%
    /// ```
    ///
    /// or the parts of a method: `score` (window, streaming, mass), `layers` (uniform, pyramid) and `heads`
    /// (uniform, adaptive, reserved, together: the same tokens for all heads, as CommVQ values of scope layer
    /// need). Further: `window` (32) newest tokens that are always kept; `kernel` (7, odd) and `pooling` (max,
    /// mean) of scores along positions; `group` (mean, max) of the query heads of a KV head; `first` (4) tokens for
    /// streaming; `alpha` (0.5), from 0, which splits freely, to 1, uniformly; with `reserved` the part of the
    /// budget that every head has for itself; `beta` (20): the last layer of a pyramid keeps budget / beta.
    ///
    /// What stays keeps its positions and moves to new, dense pages in the policy's formats; forks keep what they
    /// have. Nothing happens to layers that hold no more than their budget. Lengths of sequences still count the
    /// evicted tokens, and [`kvq_sequence_truncate`] drops what lies beyond the position. What has been observed is
    /// not part of a snapshot: after [`kvq_sequence_load`], attend before compressing.
    ///
    /// - `options`: NULL: defaults. (may be NULL)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (also: a budget smaller than the window); [`KVQ_E_STATE`] (the policy
    /// has no eviction, a layer is empty, no query has been observed or more than `window` tokens have come since,
    /// pages have been made ahead); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: exclusive use of `sequence`.
    ///
    /// Since 1.0.
    pub fn kvq_compress(
        cache: *mut kvq_cache,
        sequence: *mut kvq_sequence,
        options: *const kvq_compress_options,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Fill with defaults (one dense F32 query a sequence).
    ///
    /// - `batch`: (may be NULL)
    /// - `size`: sizeof([`kvq_attend_batch`]).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_attend_batch_init(batch: *mut kvq_attend_batch, size: usize);

    /// Attention of a batch of queries over one layer.
    ///
    /// `output = softmax(scale · q·kᵀ) v` for every query head, where query head h reads KV head h / (q_heads /
    /// kv_heads) and a query at position p sees the tokens at positions ≤ p. A query that sees no token gives
    /// zeros, with a sink too. Accumulation is in FP32. On a CPU the result is the same, bit for bit, for any
    /// number of threads and any composition of the batch; on a GPU it is the same for the same batch. Allocates
    /// only when a batch needs more work space than any before it, more calls come at once than ever before, or the
    /// policy evicts.
    ///
    /// Relative to exact attention over the decoded pages, the error is rounding of FP32 for FP16 pages. On
    /// instruction sets with int8 dot products ("avx512vnni", "amx") integer pages multiply 16-bit (INT8) or 8-bit
    /// (INT4, INT3, INT2) fixed-point queries and probabilities, whose error stays well below that of the format
    /// itself; select "avx512" or "avx2" in [`kvq_context_options`] for FP32 products. On a GPU queries,
    /// probabilities and their products with a page's scales are rounded to FP16.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_STATE`] (a CUDA graph is captured, see
    /// [`kvq_sequence_reserve`]); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`] (work space); [`KVQ_E_BACKEND`].
    ///
    /// Threads: any number of calls on a cache at once; the sequences are only read, but for what [`kvq_compress`]
    /// judges by: if the policy evicts, exclusive use of the sequences.
    ///
    /// Since 1.0.
    pub fn kvq_attend(
        cache: *mut kvq_cache,
        layer: i32,
        batch: *const kvq_attend_batch,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Bytes used by one sequence, or by the whole cache with shared pages counted once.
    ///
    /// - `sequence`: NULL: the whole cache. (may be NULL)
    /// - `usage`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_BACKEND`].
    ///
    /// Threads: read-only for one sequence; exclusive use of all sequences when `sequence` is NULL.
    ///
    /// Since 1.0.
    pub fn kvq_cache_usage(
        cache: *const kvq_cache,
        sequence: *const kvq_sequence,
        usage: *mut kvq_usage,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// What [`kvq_cache_usage`] would say of the whole cache if it held nothing but new sequences, to the byte.
    /// Computed from sizes: no page is made, and what the cache holds now does not matter.
    ///
    /// Each sequence is one for which [`kvq_sequence_reserve`] made pages for `tokens` tokens, and to every layer
    /// of which these were then appended: at consecutive positions, up to [`KVQ_PAGE_SLOTS`] at once or all at
    /// once. With `queries`, [`kvq_attend`] was then called for each layer, with `queries` queries of each sequence
    /// in one batch and without sinks; calls of several threads at once take a work space each.
    ///
    /// - `sequences`: ≥ 1.
    /// - `tokens`: of each sequence, ≥ 0.
    /// - `queries`: of each sequence, ≥ 0; 0: nothing is attended to.
    /// - `usage`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (NULL; a number out of range; more pages or queries than are
    /// counted); [`KVQ_E_UNSUPPORTED`] (a router chooses the formats of pages, so nobody knows their sizes before;
    /// `queries` above 0 on a CUDA context, whose work space depends on the device); [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn kvq_cache_predict_usage(
        cache: *const kvq_cache,
        sequences: i32,
        tokens: i32,
        queries: i32,
        usage: *mut kvq_usage,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Number of schemes that [`qp_quantize_options::scheme`] may name.
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn qp_scheme_count() -> i32;

    /// "nuq-4", "vq-2.5", "tcq-2.75", "tcx-3", "fp16", …: a family and the bits of a weight.
    ///
    /// - `nuq`: every weight is one of 2^bits levels. 1, 2, 3, 4, 5, 6 and 8 bits.
    /// - `vq`: every pair of weights is one of 4^bits points. 1.5 to 5 bits in steps of a half.
    /// - `tcq`: pairs on a path through a trellis of 65 536 states, levels from a table. 1.5 to 5 bits in steps of
    ///   a quarter; odd quarters write half of each row in a quarter bit less and half in a quarter bit more.
    /// - `tcx`: single weights on such a path, of 256 levels: less error and faster. 1.5 to 5 bits in steps of a
    ///   half.
    /// - `fp16`: the weights as they are, rounded to FP16 and not rotated.
    ///
    /// Returns NULL if `index` is out of range. (may be NULL; ends with a NUL; used for ever)
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn qp_scheme_name(index: i32) -> *const c_char;

    /// Bits of a weight in a scheme, without scales and signs; 0 for a name that is no scheme.
    ///
    /// - `name`: (may be NULL; ends with a NUL)
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn qp_scheme_bits(name: *const c_char) -> f64;

    /// Fill with defaults.
    ///
    /// - `options`: (may be NULL)
    /// - `size`: sizeof([`qp_quantize_options`]).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn qp_quantize_options_init(options: *mut qp_quantize_options, size: usize);

    /// Write a matrix in few bits. The result depends on the arguments alone, not on threads or instruction sets.
    ///
    /// - `w`: weights `[rows, columns]` of `options->dtype`. (length `rows * columns`)
    /// - `rows`: outputs of the layer, from 1 to 2^24.
    /// - `columns`: its inputs, a multiple of 64 from 64 to 2^20.
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (shape, dtype, a scheme that does not exist, weights, bias or Hessian
    /// that are not finite, a Hessian that is not symmetric or, damped, not positive definite);
    /// [`KVQ_E_CANCELLED`]; [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`]. Rows of zeros stay zeros.
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn qp_quantize(
        context: *mut kvq_context,
        options: *const qp_quantize_options,
        w: *const c_void,
        rows: i64,
        columns: i64,
        result: *mut *mut qp_matrix,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Rows of the matrix that [`qp_linear`] multiplies by, in the order of the original.
    ///
    /// - `w`: receives `[rows, columns]` floats. (length `rows * matrix.columns`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (NULL, rows beyond the last one); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn qp_matrix_dequantize(
        matrix: *const qp_matrix,
        first_row: i64,
        rows: i64,
        w: *mut f32,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// y = x·Wᵀ + b.
    ///
    /// Inputs are rotated in FP32 and, but for `fp16`, rounded to integers of 8 bits with a scale for every 256 of
    /// them; products are summed exactly within these and in FP32 beyond, in the same order on every processor: a
    /// row of `y` depends on its row of `x` alone. Allocates nothing once a batch of this size has been seen.
    ///
    /// - `x`: `[batch, columns]` of `dtype`. (length `batch * matrix.columns`; in the memory of the context)
    /// - `batch`: rows of `x` and `y`, at least 1.
    /// - `y`: receives `[batch, rows]` of `dtype`; may not overlap `x`. (length `batch * matrix.rows`; in the
    ///   memory of the context)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_UNSUPPORTED`] (the context's device does not multiply by
    /// packed matrices); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`]. NaN or infinity in a row of `x` makes its row of `y`
    /// NaN.
    ///
    /// Threads: any, on the same matrix too.
    ///
    /// Since 1.0.
    pub fn qp_linear(
        matrix: *const qp_matrix,
        x: *const c_void,
        batch: i32,
        y: *mut c_void,
        dtype: kvq_dtype,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Several matrices on the same inputs in one call: y\[i\] = x·Wᵢᵀ + bᵢ, the same numbers as one by one.
    /// Schemes and numbers of rows may differ.
    ///
    /// - `matrices`: of one context, with the same columns and, those that rotate, the same signs. (length `n`)
    /// - `n`: matrices, 1 … 1024.
    /// - `x`: as for [`qp_linear`]. (length `batch * matrices.columns`; in the memory of the context)
    /// - `y`: outputs, `[batch, rows of matrix i]` each, in the context's memory, apart from each other and from
    ///   `x`. (length `n`)
    ///
    /// Returns as [`qp_linear`]; [`KVQ_E_MISMATCH`] (matrices that do not share their inputs).
    ///
    /// Threads: any, on the same matrices too.
    ///
    /// Since 1.0.
    pub fn qp_linear_shared(
        matrices: *const *const qp_matrix,
        n: i32,
        x: *const c_void,
        batch: i32,
        y: *const *mut c_void,
        dtype: kvq_dtype,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Describe a matrix.
    ///
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn qp_matrix_describe(matrix: *const qp_matrix, info: *mut qp_matrix_info, error: *mut kvq_error)
        -> kvq_status;

    /// Write matrices as a safetensors file; docs/weights.md has its layout. The same matrices give the same bytes.
    ///
    /// - `matrices`: (length `n`)
    /// - `names`: different names, each a string of up to 200 bytes. (length `n`)
    /// - `n`: matrices, at least 1.
    /// - `buffer`: NULL: only the size is asked for. (may be NULL; length `capacity`)
    /// - `capacity`: bytes available at `buffer`.
    /// - `size`: receives the size of the file in bytes; also when `capacity` is too small. (length `1`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (NULL; names); [`KVQ_E_BUFFER_SIZE`] (nothing is written);
    /// [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    pub fn qp_matrix_save(
        matrices: *const *const qp_matrix,
        names: *const *const c_char,
        n: i32,
        buffer: *mut c_void,
        capacity: usize,
        size: *mut usize,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Read one matrix from a safetensors file in memory, which may hold other tensors and matrices too.
    ///
    /// - `buffer`: bytes of the file. (length `size`)
    /// - `size`: bytes at `buffer`.
    /// - `name`: as given to [`qp_matrix_save`]. (ends with a NUL)
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (NULL, no matrix of that name); [`KVQ_E_FORMAT`] (damaged, truncated,
    /// sizes that do not fit together; the message names the tensor or field); [`KVQ_E_MISMATCH`] (a file of
    /// another version); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn qp_matrix_load(
        context: *mut kvq_context,
        buffer: *const c_void,
        size: usize,
        name: *const c_char,
        result: *mut *mut qp_matrix,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Destroy a matrix.
    ///
    /// - `matrix`: (may be NULL)
    ///
    /// Threads: exclusive use of the handle.
    ///
    /// Since 1.0.
    pub fn qp_matrix_destroy(matrix: *mut qp_matrix);

    /// How large a matrix will be, before there is one.
    ///
    /// - `scheme`: as in [`qp_quantize_options`]. (ends with a NUL)
    /// - `rows`: as for [`qp_quantize`].
    /// - `columns`: as for [`qp_quantize`].
    /// - `has_bias`: 1 or 0.
    /// - `bytes`: receives what [`qp_matrix_info::bytes`] will be; unchanged on failure. (length `1`)
    /// - `allocated`: receives by how much [`kvq_context_info::bytes`] of a CPU context grows with such a matrix,
    ///   by [`qp_quantize`] or [`qp_matrix_load`]: padding and the object included; unchanged on failure. NULL: not
    ///   wanted. (may be NULL; length `1`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (NULL, a scheme that does not exist, shape, `has_bias`).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    pub fn qp_matrix_predict_bytes(
        scheme: *const c_char,
        rows: i64,
        columns: i64,
        has_bias: i32,
        bytes: *mut u64,
        allocated: *mut u64,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Measure which of a device's kernels are the fastest for calls of [`qp_linear_shared`] like this one, instead
    /// of going by an estimate, which was made on an H100. It holds for all matrices of the context of the same
    /// schemes and shapes, with exactly this batch; what is known already is not measured again.
    ///
    /// Another kernel adds numbers up in another order, so that the last bits may change, now and from one
    /// measurement to the next: keep what was measured ([`qp_tuning_save`]) where results are to stay the same.
    ///
    /// Takes tenths of a second, waits for the context's stream and for measurements, and meanwhile allocates
    /// inputs, outputs and as many copies of the codes as twice the device's L2 cache holds. Not while a graph is
    /// captured.
    ///
    /// - `matrices`: as for [`qp_linear_shared`]. (length `n`)
    /// - `n`: matrices, 1 … 1024.
    /// - `batch`: rows, at least 1. Calls of more than 1024 go in pieces of so many, which are measured.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_MISMATCH`] (matrices that do not share their inputs);
    /// [`KVQ_E_UNSUPPORTED`] (a CPU context, a stream that is captured); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`];
    /// [`KVQ_E_BACKEND`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn qp_tune(matrices: *const *const qp_matrix, n: i32, batch: i32, error: *mut kvq_error) -> kvq_status;

    /// Write what [`qp_tune`] measured and what [`qp_tuning_load`] read, as a text: a line for each device, scheme
    /// and shape.
    ///
    /// - `buffer`: receives the text, without a NUL. NULL: only the size is asked for. (may be NULL; length
    ///   `capacity`)
    /// - `capacity`: bytes available at `buffer`.
    /// - `size`: receives the size of the text in bytes; also when `capacity` is too small. (length `1`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_BUFFER_SIZE`] (nothing is written); [`KVQ_E_UNSUPPORTED`] (a
    /// CPU context); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn qp_tuning_save(
        context: *mut kvq_context,
        buffer: *mut c_char,
        capacity: usize,
        size: *mut usize,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Go by what was measured before. What was measured on another device or by another version of the library is
    /// kept for [`qp_tuning_save`] and not used.
    ///
    /// - `text`: as [`qp_tuning_save`] wrote it. (length `length`)
    /// - `length`: bytes of `text`.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_FORMAT`] (the message names the line); [`KVQ_E_MISMATCH`] (a
    /// text of another version); [`KVQ_E_UNSUPPORTED`] (a CPU context); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`]. Nothing
    /// is taken over on failure.
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn qp_tuning_load(
        context: *mut kvq_context,
        text: *const c_char,
        length: usize,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Fill with defaults; the three sizes are left 0 and must be set.
    ///
    /// - `options`: (may be NULL)
    /// - `size`: sizeof([`kvq_codebook_trainer_options`]).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_codebook_trainer_options_init(options: *mut kvq_codebook_trainer_options, size: usize);

    /// Create a trainer. It works on the device of the context; networks of values, on the host.
    ///
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_codebook_trainer_create(
        context: *mut kvq_context,
        options: *const kvq_codebook_trainer_options,
        result: *mut *mut kvq_codebook_trainer,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Take over finished layers of an earlier, unfinished result. Tokens already added to these layers are
    /// dropped.
    ///
    /// - `codebook`: of the trainer's context, of the same shape, seed, model and note.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (also: of another context); [`KVQ_E_MISMATCH`] (with the difference).
    ///
    /// Threads: exclusive use of `trainer`.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_codebook_trainer_resume(
        trainer: *mut kvq_codebook_trainer,
        codebook: *const kvq_codebook,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Add tokens to a layer that is not finished. They are kept as FP16 until the layer is.
    ///
    /// - `n`: number of tokens, ≥ 1.
    /// - `k`: keys before RoPE, `[n, kv_heads, head_dim]`; finite, magnitude at most 65504. NULL is allowed without
    ///   codes for keys. (may be NULL; length `n * trainer.kv_heads * trainer.head_dim`)
    /// - `v`: values, same shape and rules. (may be NULL; length `n * trainer.kv_heads * trainer.head_dim`)
    /// - `dtype`: element type of `k` and `v`.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_STATE`] (the layer is finished); [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`].
    ///
    /// Threads: exclusive use of `trainer`.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_codebook_trainer_add(
        trainer: *mut kvq_codebook_trainer,
        layer: i32,
        n: i32,
        k: *const c_void,
        v: *const c_void,
        dtype: kvq_dtype,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Train one layer on the tokens added to it, and drop them. Takes minutes for a large model; uses the threads
    /// of the context. The result depends on the options, the tokens and the kind of device alone.
    ///
    /// - `progress`: it may not use `trainer`. NULL: not called. (may be NULL)
    /// - `user`: passed to `progress`. (may be NULL)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (also: too few tokens); [`KVQ_E_STATE`] (the layer is finished, or
    /// has no tokens); [`KVQ_E_CANCELLED`]; [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`]. After a failure the layer has its
    /// tokens still.
    ///
    /// Threads: exclusive use of `trainer`.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_codebook_trainer_run(
        trainer: *mut kvq_codebook_trainer,
        layer: i32,
        progress: kvq_progress_hook,
        user: *mut c_void,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// The codebooks of the layers finished so far. They share memory with the trainer and outlive it.
    ///
    /// - `result`: receives the handle. (keeps `trainer.context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_codebook_trainer_result(
        trainer: *const kvq_codebook_trainer,
        result: *mut *mut kvq_codebook,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Destroy a trainer.
    ///
    /// - `trainer`: (may be NULL)
    ///
    /// Threads: exclusive use of the handle.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_codebook_trainer_destroy(trainer: *mut kvq_codebook_trainer);

    /// Fill with defaults; the three sizes are left 0 and must be set.
    ///
    /// - `options`: (may be NULL)
    /// - `size`: sizeof([`kvq_centres_trainer_options`]).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_centres_trainer_options_init(options: *mut kvq_centres_trainer_options, size: usize);

    /// Create a trainer. It works on the device of the context.
    ///
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_centres_trainer_create(
        context: *mut kvq_context,
        options: *const kvq_centres_trainer_options,
        result: *mut *mut kvq_centres_trainer,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Add tokens to a layer that is not finished. They are kept as FP16 until the layer is.
    ///
    /// - `n`: number of tokens, ≥ 1.
    /// - `k`: keys before RoPE, `[n, kv_heads, head_dim]`; finite, magnitude at most 65504. NULL is allowed without
    ///   centres for keys. (may be NULL; length `n * trainer.kv_heads * trainer.head_dim`)
    /// - `v`: values, same shape and rules. (may be NULL; length `n * trainer.kv_heads * trainer.head_dim`)
    /// - `dtype`: element type of `k` and `v`.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_STATE`] (the layer is finished); [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`].
    ///
    /// Threads: exclusive use of `trainer`.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_centres_trainer_add(
        trainer: *mut kvq_centres_trainer,
        layer: i32,
        n: i32,
        k: *const c_void,
        v: *const c_void,
        dtype: kvq_dtype,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Train one layer on the tokens added to it, and drop them. Uses the threads of the context. The result
    /// depends on the options and the tokens alone.
    ///
    /// - `progress`: it may not use `trainer`. NULL: not called. (may be NULL)
    /// - `user`: passed to `progress`. (may be NULL)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (also: fewer tokens than centres); [`KVQ_E_STATE`] (the layer is
    /// finished, or has no tokens); [`KVQ_E_CANCELLED`]; [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`]. After a failure the
    /// layer has its tokens still.
    ///
    /// Threads: exclusive use of `trainer`.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_centres_trainer_run(
        trainer: *mut kvq_centres_trainer,
        layer: i32,
        progress: kvq_progress_hook,
        user: *mut c_void,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// The centres of the layers finished so far. They share memory with the trainer and outlive it.
    ///
    /// - `result`: receives the handle. (keeps `trainer.context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_centres_trainer_result(
        trainer: *const kvq_centres_trainer,
        result: *mut *mut kvq_centres,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Destroy a trainer.
    ///
    /// - `trainer`: (may be NULL)
    ///
    /// Threads: exclusive use of the handle.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_centres_trainer_destroy(trainer: *mut kvq_centres_trainer);

    /// Fill with defaults; `mean_bits` is left 0 and must be set for labels.
    ///
    /// - `options`: (may be NULL)
    /// - `size`: sizeof([`kvq_router_trainer_options`]).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_router_trainer_options_init(options: *mut kvq_router_trainer_options, size: usize);

    /// Create a trainer.
    ///
    /// - `context`: computes on the CPU.
    /// - `cache`: what a cache of the model would be made with: its shape, RoPE, scale and `model_id`, and a
    ///   codebook if an expert is commvq.
    /// - `policy`: with a router's experts, those with more bits first; `votes` and the effort for commvq are used
    ///   too.
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_MISMATCH`] (a codebook for another model);
    /// [`KVQ_E_UNSUPPORTED`] (the context computes on a GPU); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_router_trainer_create(
        context: *mut kvq_context,
        cache: *const kvq_cache_options,
        policy: *const kvq_policy,
        options: *const kvq_router_trainer_options,
        result: *mut *mut kvq_router_trainer,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Add one text to a layer. Every layer needs the same texts in the same order; layers may come in any order.
    /// For labels this stores the text in every format and compares the attention of some of its queries, which
    /// takes most of the time of training. Only keys of the first layer of each group are kept, as FP16.
    ///
    /// - `n`: tokens of the text, ≥ 1, at positions 0, 1, …. Pages are judged by the quarter of the text's tokens
    ///   that follows them, so the first page and those in the last quarter are not learned from: a text of fewer
    ///   than 85 tokens teaches nothing.
    /// - `q`: queries before RoPE, `[n, q_heads, head_dim]`; finite. NULL is allowed for [`KVQ_ROUTER_PAPER`]. (may
    ///   be NULL; length `n * trainer.q_heads * trainer.head_dim`)
    /// - `k`: keys before RoPE, `[n, kv_heads, head_dim]`, as for [`kvq_append`]. (length `n * trainer.kv_heads *
    ///   trainer.head_dim`)
    /// - `v`: values, same shape and rules; NULL is allowed for [`KVQ_ROUTER_PAPER`]. (may be NULL; length `n *
    ///   trainer.kv_heads * trainer.head_dim`)
    /// - `dtype`: element type of the three.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`] (also: another length than in other layers); [`KVQ_E_STATE`] (the
    /// training is done); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: exclusive use of `trainer`.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_router_trainer_add(
        trainer: *mut kvq_router_trainer,
        layer: i32,
        n: i32,
        q: *const c_void,
        k: *const c_void,
        v: *const c_void,
        dtype: kvq_dtype,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Train the routers of all layers on the texts added, and drop them. Uses the threads of the context. The
    /// result depends on the options and the texts alone.
    ///
    /// - `loss`: for [`KVQ_ROUTER_PAPER`]: the model's mean negative log-likelihood of a token of the texts
    ///   (natural logarithm), above 0. Ignored for labels.
    /// - `progress`: it may not use `trainer`. NULL: not called. (may be NULL)
    /// - `user`: passed to `progress`. (may be NULL)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_STATE`] (the training is done; a layer lacks texts that
    /// another one has; no text is long enough; the training diverged); [`KVQ_E_CANCELLED`]; [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`]. After a failure the texts are there still.
    ///
    /// Threads: exclusive use of `trainer`.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_router_trainer_run(
        trainer: *mut kvq_router_trainer,
        loss: f64,
        progress: kvq_progress_hook,
        user: *mut c_void,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// The routers, after [`kvq_router_trainer_run`]. They outlive the trainer.
    ///
    /// - `result`: receives the handle. (keeps `trainer.context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_STATE`] (not trained yet); [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_router_trainer_result(
        trainer: *const kvq_router_trainer,
        result: *mut *mut kvq_router,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Destroy a trainer.
    ///
    /// - `trainer`: (may be NULL)
    ///
    /// Threads: exclusive use of the handle.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_router_trainer_destroy(trainer: *mut kvq_router_trainer);

    /// Fill with defaults.
    ///
    /// - `problem`: (may be NULL)
    /// - `size`: sizeof([`kvq_plan_problem`]).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_problem_init(problem: *mut kvq_plan_problem, size: usize);

    /// Take one option of every choice, so that the goal is as small as possible and the limits hold.
    ///
    /// With one limit this takes milliseconds for hundreds of choices with dozens of options, with two below a
    /// second.
    ///
    /// - `chosen`: receives the number of each choice's option, from 0. (length `n`)
    /// - `n`: as many as there are choices.
    /// - `costs`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_LIMIT`] (no plan keeps the limits; the message says what is
    /// missing, and the goal [`KVQ_PLAN_BYTES`] finds the smallest plan); [`KVQ_E_MEMORY`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_solve(
        context: *mut kvq_context,
        problem: *const kvq_plan_problem,
        chosen: *mut i32,
        n: i32,
        costs: *mut kvq_plan_costs,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Fill with defaults; the sizes and arrays are left 0 and must be set.
    ///
    /// - `options`: (may be NULL)
    /// - `size`: sizeof([`kvq_plan_fusion_options`]).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_fusion_options_init(options: *mut kvq_plan_fusion_options, size: usize);

    /// Find the groupings.
    ///
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_fusion_create(
        context: *mut kvq_context,
        options: *const kvq_plan_fusion_options,
        result: *mut *mut kvq_plan_fusion,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Describe groupings.
    ///
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_fusion_describe(
        fusion: *const kvq_plan_fusion,
        info: *mut kvq_plan_fusion_info,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Describe one grouping.
    ///
    /// - `index`: 0 … n_groupings − 1, those with the smallest loss first.
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_fusion_describe_grouping(
        fusion: *const kvq_plan_fusion,
        index: i32,
        info: *mut kvq_plan_grouping_info,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Destroy groupings.
    ///
    /// - `fusion`: (may be NULL)
    ///
    /// Threads: exclusive use of the handle.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_fusion_destroy(fusion: *mut kvq_plan_fusion);

    /// The bits that each matrix would get if codes were as good as codes of Gaussian numbers can be: an error of
    /// 2^(−2b) with b bits a weight. What is lost then is a lower bound for every plan (Q-Palette, theorem 3.1).
    ///
    /// - `n`: matrices, 1 … 2^20.
    /// - `weights`: numbers in each, above 0. (length `n`)
    /// - `sensitivities`: loss of each at a relative squared error of 1, not negative. (length `n`)
    /// - `least_bits`: of a weight, at least 0.
    /// - `total_bits`: of all weights, at least `least_bits` each.
    /// - `bits`: receives the bits of a weight of each matrix. (length `n`)
    /// - `loss`: receives what is lost. (length `1`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_rates(
        n: i32,
        weights: *const f64,
        sensitivities: *const f64,
        least_bits: f64,
        total_bits: f64,
        bits: *mut f64,
        loss: *mut f64,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Fill with defaults.
    ///
    /// - `content`: (may be NULL)
    /// - `size`: sizeof([`kvq_plan_content`]).
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_content_init(content: *mut kvq_plan_content, size: usize);

    /// Make a plan.
    ///
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_create(
        context: *mut kvq_context,
        content: *const kvq_plan_content,
        result: *mut *mut kvq_plan,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Read a plan from YAML:
    ///
    /// ```text
    /// version: 1
    /// note: "..."                                    # optional
    /// expected: {bytes: 1000, seconds: 0.01, loss: 0.02}  # optional
    /// weights:                                       # optional
    ///   "model.layers.0.mlp.up_proj": tcx-3
    /// cache: {keys: gs3, values: gs2}                # a policy, optional
    /// ```
    ///
    /// - `yaml`: text, not necessarily NUL-terminated; at most 64 MiB. (length `length`)
    /// - `length`: bytes of `yaml`.
    /// - `result`: receives the handle. (keeps `context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_FORMAT`] (with the line); [`KVQ_E_MEMORY`]; [`KVQ_E_LIMIT`].
    ///
    /// Threads: any.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_load(
        context: *mut kvq_context,
        yaml: *const c_char,
        length: usize,
        result: *mut *mut kvq_plan,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Write a plan as YAML. The same plan gives the same text.
    ///
    /// - `buffer`: NULL: only the size is asked for. (may be NULL; length `capacity`)
    /// - `capacity`: bytes available at `buffer`.
    /// - `size`: receives the size of the text in bytes, without NUL; also when `capacity` is too small. (length
    ///   `1`)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_BUFFER_SIZE`] (nothing is written); [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_save(
        plan: *const kvq_plan,
        buffer: *mut c_char,
        capacity: usize,
        size: *mut usize,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// Describe a plan.
    ///
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_describe(plan: *const kvq_plan, info: *mut kvq_plan_info, error: *mut kvq_error) -> kvq_status;

    /// Describe one matrix of a plan.
    ///
    /// - `index`: 0 … n_matrices − 1, in the order of the plan.
    /// - `info`: its `struct_size` must be set.
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_describe_matrix(
        plan: *const kvq_plan,
        index: i32,
        info: *mut kvq_plan_matrix_info,
        error: *mut kvq_error,
    ) -> kvq_status;

    /// The scheme that a plan gives a matrix; NULL if it does not name it.
    ///
    /// - `plan`: (may be NULL)
    /// - `name`: (may be NULL; ends with a NUL)
    ///
    /// Returns (may be NULL; ends with a NUL; used for ever)
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_scheme(plan: *const kvq_plan, name: *const c_char) -> *const c_char;

    /// The policy of a plan.
    ///
    /// - `result`: receives a handle of its own. (keeps `plan.context` alive)
    ///
    /// Returns [`KVQ_OK`]; [`KVQ_E_ARGUMENT`]; [`KVQ_E_STATE`] (the plan says nothing of caches); [`KVQ_E_MEMORY`];
    /// [`KVQ_E_LIMIT`].
    ///
    /// Threads: read-only.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_policy(plan: *const kvq_plan, result: *mut *mut kvq_policy, error: *mut kvq_error) -> kvq_status;

    /// Destroy a plan.
    ///
    /// - `plan`: (may be NULL)
    ///
    /// Threads: exclusive use of the handle.
    ///
    /// Since 1.0.
    #[cfg(feature = "experimental")]
    pub fn kvq_plan_destroy(plan: *mut kvq_plan);
}

/// Sizes as the library was compiled with.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<kvq_error>() == 268);
    assert!(align_of::<kvq_error>() == 4);
    assert!(size_of::<kvq_context_options>() == 152);
    assert!(align_of::<kvq_context_options>() == 8);
    assert!(size_of::<kvq_context_info>() == 56);
    assert!(align_of::<kvq_context_info>() == 8);
    assert!(size_of::<kvq_device_info>() == 152);
    assert!(align_of::<kvq_device_info>() == 8);
    assert!(size_of::<kvq_policy_info>() == 16);
    assert!(align_of::<kvq_policy_info>() == 4);
    assert!(size_of::<kvq_codebook_info>() == 120);
    assert!(align_of::<kvq_codebook_info>() == 8);
    assert!(size_of::<kvq_codebook_layer_info>() == 544);
    assert!(align_of::<kvq_codebook_layer_info>() == 8);
    assert!(size_of::<kvq_centres_info>() == 88);
    assert!(align_of::<kvq_centres_info>() == 8);
    assert!(size_of::<kvq_centres_layer_info>() == 32);
    assert!(align_of::<kvq_centres_layer_info>() == 8);
    assert!(size_of::<kvq_router_info>() == 120);
    assert!(align_of::<kvq_router_info>() == 8);
    assert!(size_of::<kvq_router_group_info>() == 96);
    assert!(align_of::<kvq_router_group_info>() == 8);
    assert!(size_of::<kvq_cache_options>() == 88);
    assert!(align_of::<kvq_cache_options>() == 8);
    assert!(size_of::<kvq_cache_info>() == 64);
    assert!(align_of::<kvq_cache_info>() == 8);
    assert!(size_of::<kvq_layer_info>() == 264);
    assert!(align_of::<kvq_layer_info>() == 4);
    assert!(size_of::<kvq_append_batch>() == 88);
    assert!(align_of::<kvq_append_batch>() == 8);
    assert!(size_of::<kvq_compress_options>() == 24);
    assert!(align_of::<kvq_compress_options>() == 8);
    assert!(size_of::<kvq_attend_batch>() == 112);
    assert!(align_of::<kvq_attend_batch>() == 8);
    assert!(size_of::<kvq_usage>() == 96);
    assert!(align_of::<kvq_usage>() == 8);
    assert!(size_of::<qp_quantize_options>() == 72);
    assert!(align_of::<qp_quantize_options>() == 8);
    assert!(size_of::<qp_matrix_info>() == 64);
    assert!(align_of::<qp_matrix_info>() == 8);
    #[cfg(feature = "experimental")]
    assert!(size_of::<kvq_codebook_trainer_options>() == 88);
    #[cfg(feature = "experimental")]
    assert!(align_of::<kvq_codebook_trainer_options>() == 8);
    #[cfg(feature = "experimental")]
    assert!(size_of::<kvq_centres_trainer_options>() == 64);
    #[cfg(feature = "experimental")]
    assert!(align_of::<kvq_centres_trainer_options>() == 8);
    #[cfg(feature = "experimental")]
    assert!(size_of::<kvq_router_trainer_options>() == 64);
    #[cfg(feature = "experimental")]
    assert!(align_of::<kvq_router_trainer_options>() == 8);
    #[cfg(feature = "experimental")]
    assert!(size_of::<kvq_plan_problem>() == 80);
    #[cfg(feature = "experimental")]
    assert!(align_of::<kvq_plan_problem>() == 8);
    #[cfg(feature = "experimental")]
    assert!(size_of::<kvq_plan_costs>() == 40);
    #[cfg(feature = "experimental")]
    assert!(align_of::<kvq_plan_costs>() == 8);
    #[cfg(feature = "experimental")]
    assert!(size_of::<kvq_plan_fusion_options>() == 48);
    #[cfg(feature = "experimental")]
    assert!(align_of::<kvq_plan_fusion_options>() == 8);
    #[cfg(feature = "experimental")]
    assert!(size_of::<kvq_plan_fusion_info>() == 16);
    #[cfg(feature = "experimental")]
    assert!(align_of::<kvq_plan_fusion_info>() == 4);
    #[cfg(feature = "experimental")]
    assert!(size_of::<kvq_plan_grouping_info>() == 64);
    #[cfg(feature = "experimental")]
    assert!(align_of::<kvq_plan_grouping_info>() == 8);
    #[cfg(feature = "experimental")]
    assert!(size_of::<kvq_plan_content>() == 64);
    #[cfg(feature = "experimental")]
    assert!(align_of::<kvq_plan_content>() == 8);
    #[cfg(feature = "experimental")]
    assert!(size_of::<kvq_plan_info>() == 48);
    #[cfg(feature = "experimental")]
    assert!(align_of::<kvq_plan_info>() == 8);
    #[cfg(feature = "experimental")]
    assert!(size_of::<kvq_plan_matrix_info>() == 24);
    #[cfg(feature = "experimental")]
    assert!(align_of::<kvq_plan_matrix_info>() == 8);
};
