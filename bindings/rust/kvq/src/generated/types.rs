// Made by bindings/generate/generate.py from include/kvq.h; edit that instead.
//! Enumerations, and what the library tells of its objects.
use crate::convert::{count, text_at, text_of};
use kvq_sys as sys;

/// Result of a call: [`Status::Ok`](crate::Status::Ok) or one of the negative codes. Numbers never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Done.
    Ok,
    /// An argument is NULL, out of range, or inconsistent with another one.
    Argument,
    /// The allocator returned NULL.
    Memory,
    /// A byte limit of the context or of the cache would be exceeded.
    Limit,
    /// The object is not in a state that allows the call, for example a rollback into a sealed page.
    State,
    /// A policy, snapshot or other input is malformed.
    Format,
    /// The input is well-formed but belongs to another model, cache shape, policy or version.
    Mismatch,
    /// The request is valid but this build or machine cannot serve it.
    Unsupported,
    /// The device or the caller's own hook reported a failure; see `backend_code`.
    Backend,
    /// A defect of the library.
    Internal,
    /// The caller's progress hook asked to stop.
    Cancelled,
    /// The caller's buffer is too small; the call says how many bytes it takes.
    BufferSize,
    /// A number of a newer library, which this crate has no name for.
    Other(i32),
}

impl Status {
    /// The number in C.
    pub fn code(self) -> i32 {
        match self {
            Status::Ok => sys::KVQ_OK,
            Status::Argument => sys::KVQ_E_ARGUMENT,
            Status::Memory => sys::KVQ_E_MEMORY,
            Status::Limit => sys::KVQ_E_LIMIT,
            Status::State => sys::KVQ_E_STATE,
            Status::Format => sys::KVQ_E_FORMAT,
            Status::Mismatch => sys::KVQ_E_MISMATCH,
            Status::Unsupported => sys::KVQ_E_UNSUPPORTED,
            Status::Backend => sys::KVQ_E_BACKEND,
            Status::Internal => sys::KVQ_E_INTERNAL,
            Status::Cancelled => sys::KVQ_E_CANCELLED,
            Status::BufferSize => sys::KVQ_E_BUFFER_SIZE,
            Status::Other(code) => code,
        }
    }

    /// What a number in C means.
    pub fn from_code(code: i32) -> Self {
        match code {
            sys::KVQ_OK => Status::Ok,
            sys::KVQ_E_ARGUMENT => Status::Argument,
            sys::KVQ_E_MEMORY => Status::Memory,
            sys::KVQ_E_LIMIT => Status::Limit,
            sys::KVQ_E_STATE => Status::State,
            sys::KVQ_E_FORMAT => Status::Format,
            sys::KVQ_E_MISMATCH => Status::Mismatch,
            sys::KVQ_E_UNSUPPORTED => Status::Unsupported,
            sys::KVQ_E_BACKEND => Status::Backend,
            sys::KVQ_E_INTERNAL => Status::Internal,
            sys::KVQ_E_CANCELLED => Status::Cancelled,
            sys::KVQ_E_BUFFER_SIZE => Status::BufferSize,
            code => Status::Other(code),
        }
    }
}

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of binary32.
    Bf16,
    /// A number of a newer library, which this crate has no name for.
    Other(i32),
}

impl Dtype {
    /// The number in C.
    pub fn code(self) -> i32 {
        match self {
            Dtype::F32 => sys::KVQ_F32,
            Dtype::F16 => sys::KVQ_F16,
            Dtype::Bf16 => sys::KVQ_BF16,
            Dtype::Other(code) => code,
        }
    }

    /// What a number in C means.
    pub fn from_code(code: i32) -> Self {
        match code {
            sys::KVQ_F32 => Dtype::F32,
            sys::KVQ_F16 => Dtype::F16,
            sys::KVQ_BF16 => Dtype::Bf16,
            code => Dtype::Other(code),
        }
    }
}

/// Where a context computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// Here.
    Cpu,
    /// On an NVIDIA GPU, by way of libkvq_cuda.so.
    Cuda,
    /// A number of a newer library, which this crate has no name for.
    Other(i32),
}

impl Device {
    /// The number in C.
    pub fn code(self) -> i32 {
        match self {
            Device::Cpu => sys::KVQ_DEVICE_CPU,
            Device::Cuda => sys::KVQ_DEVICE_CUDA,
            Device::Other(code) => code,
        }
    }

    /// What a number in C means.
    pub fn from_code(code: i32) -> Self {
        match code {
            sys::KVQ_DEVICE_CPU => Device::Cpu,
            sys::KVQ_DEVICE_CUDA => Device::Cuda,
            code => Device::Other(code),
        }
    }
}

/// How the library rotates queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rope {
    /// Not: the caller passes them rotated, or the model has no rotary embedding.
    None,
    /// Channels (j, j + rotary_dim/2) form a pair: Hugging Face Llama, Mistral, Qwen.
    Half,
    /// Channels (2j, 2j+1) form a pair: original Llama, GPT-J.
    Interleaved,
    /// A number of a newer library, which this crate has no name for.
    Other(i32),
}

impl Rope {
    /// The number in C.
    pub fn code(self) -> i32 {
        match self {
            Rope::None => sys::KVQ_ROPE_NONE,
            Rope::Half => sys::KVQ_ROPE_HALF,
            Rope::Interleaved => sys::KVQ_ROPE_INTERLEAVED,
            Rope::Other(code) => code,
        }
    }

    /// What a number in C means.
    pub fn from_code(code: i32) -> Self {
        match code {
            sys::KVQ_ROPE_NONE => Rope::None,
            sys::KVQ_ROPE_HALF => Rope::Half,
            sys::KVQ_ROPE_INTERLEAVED => Rope::Interleaved,
            code => Rope::Other(code),
        }
    }
}

/// Importance of a log message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something is not as it should be.
    Warning,
    /// Something worth knowing.
    Info,
    /// A number of a newer library, which this crate has no name for.
    Other(i32),
}

impl LogLevel {
    /// The number in C.
    pub fn code(self) -> i32 {
        match self {
            LogLevel::Error => sys::KVQ_LOG_ERROR,
            LogLevel::Warning => sys::KVQ_LOG_WARNING,
            LogLevel::Info => sys::KVQ_LOG_INFO,
            LogLevel::Other(code) => code,
        }
    }

    /// What a number in C means.
    pub fn from_code(code: i32) -> Self {
        match code {
            sys::KVQ_LOG_ERROR => LogLevel::Error,
            sys::KVQ_LOG_WARNING => LogLevel::Warning,
            sys::KVQ_LOG_INFO => LogLevel::Info,
            code => LogLevel::Other(code),
        }
    }
}

/// Slots of a page: the unit of encoding, sharing and rollback, in tokens.
pub const PAGE_SLOTS: usize = sys::KVQ_PAGE_SLOTS as usize;

/// What shares a code, or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// All KV heads of a token in a layer.
    Layer,
    /// One KV head of a token.
    Head,
    /// A number of a newer library, which this crate has no name for.
    Other(i32),
}

impl Scope {
    /// The number in C.
    pub fn code(self) -> i32 {
        match self {
            Scope::Layer => sys::KVQ_SCOPE_LAYER,
            Scope::Head => sys::KVQ_SCOPE_HEAD,
            Scope::Other(code) => code,
        }
    }

    /// What a number in C means.
    pub fn from_code(code: i32) -> Self {
        match code {
            sys::KVQ_SCOPE_LAYER => Scope::Layer,
            sys::KVQ_SCOPE_HEAD => Scope::Head,
            code => Scope::Other(code),
        }
    }
}

/// The most stages that codes for keys can have.
pub const MAX_KEY_STAGES: usize = sys::KVQ_MAX_KEY_STAGES as usize;

/// The most formats that a router can choose among.
pub const MAX_EXPERTS: usize = sys::KVQ_MAX_EXPERTS as usize;

/// How routers are trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RouterMethod {
    /// On the cheapest format of each page that leaves the attention as good as it has to be.
    Label,
    /// By the loss of the MoQAE paper, for comparison: it tends to one format for all.
    Paper,
    /// A number of a newer library, which this crate has no name for.
    Other(i32),
}

impl RouterMethod {
    /// The number in C.
    pub fn code(self) -> i32 {
        match self {
            RouterMethod::Label => sys::KVQ_ROUTER_LABEL,
            RouterMethod::Paper => sys::KVQ_ROUTER_PAPER,
            RouterMethod::Other(code) => code,
        }
    }

    /// What a number in C means.
    pub fn from_code(code: i32) -> Self {
        match code {
            sys::KVQ_ROUTER_LABEL => RouterMethod::Label,
            sys::KVQ_ROUTER_PAPER => RouterMethod::Paper,
            code => RouterMethod::Other(code),
        }
    }
}

/// How a Hessian is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rounding {
    /// Columns are coded from the last one to the first, each corrected for the errors of those behind it (block
    /// LDLQ).
    Ldlq,
    /// Every weight, pair or tile is rounded to what is nearest; the Hessian only tells
    /// [`MatrixInfo::proxy_error`](crate::MatrixInfo::proxy_error).
    Nearest,
    /// A number of a newer library, which this crate has no name for.
    Other(i32),
}

impl Rounding {
    /// The number in C.
    pub fn code(self) -> i32 {
        match self {
            Rounding::Ldlq => sys::QP_ROUNDING_LDLQ,
            Rounding::Nearest => sys::QP_ROUNDING_NEAREST,
            Rounding::Other(code) => code,
        }
    }

    /// What a number in C means.
    pub fn from_code(code: i32) -> Self {
        match code {
            sys::QP_ROUNDING_LDLQ => Rounding::Ldlq,
            sys::QP_ROUNDING_NEAREST => Rounding::Nearest,
            code => Rounding::Other(code),
        }
    }
}

/// What a context runs on and uses.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ContextInfo {
    pub device: Device,
    /// 0 when the caller's `parallel_for` hook is used.
    pub n_threads: usize,
    /// "cpu" or "cuda".
    pub backend: String,
    /// Instruction set in use, for example "avx512vnni" or "sm_90".
    pub isa: String,
    /// Allocated now.
    pub bytes: u64,
    /// Largest value of `bytes` so far.
    pub peak_bytes: u64,
    /// The limit, 0 if none.
    pub max_bytes: u64,
}

impl ContextInfo {
    /// # Safety
    /// The library has filled `raw`, and its strings are still there.
    pub(crate) unsafe fn from_raw(raw: &sys::kvq_context_info) -> Self {
        // SAFETY: the caller's word for the strings.
        Self {
            device: Device::from_code(raw.device),
            n_threads: count(raw.n_threads),
            backend: unsafe { text_at(raw.backend) },
            isa: unsafe { text_at(raw.isa) },
            bytes: raw.bytes,
            peak_bytes: raw.peak_bytes,
            max_bytes: raw.max_bytes,
        }
    }
}

/// A device that contexts can be created on.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Devices of this kind.
    pub n_devices: usize,
    /// For example "NVIDIA H100 80GB HBM3".
    pub name: String,
    /// 90 for 9.0.
    pub compute_capability: usize,
    /// Newest CUDA version that the driver supports, 13000 for 13.0.
    pub driver_version: usize,
    /// Of the device.
    pub memory_bytes: u64,
}

impl DeviceInfo {
    pub(crate) fn from_raw(raw: &sys::kvq_device_info) -> Self {
        Self {
            n_devices: count(raw.n_devices),
            name: text_of(&raw.name),
            compute_capability: count(raw.compute_capability),
            driver_version: count(raw.driver_version),
            memory_bytes: raw.memory_bytes,
        }
    }
}

/// What a host has to know of a policy.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PolicyInfo {
    /// Tokens of a KV head that [`Sequence::compress`](crate::Sequence::compress) keeps; INT32_MAX: a share; 0: it
    /// evicts none.
    pub eviction_budget: usize,
    /// Newest tokens that it always keeps, of every head.
    pub eviction_window: usize,
}

impl PolicyInfo {
    pub(crate) fn from_raw(raw: &sys::kvq_policy_info) -> Self {
        Self { eviction_budget: count(raw.eviction_budget), eviction_window: count(raw.eviction_window) }
    }
}

/// What codebooks are made for and how well they do. Errors are ‖x̂ − x‖² / ‖x‖² of training, averaged over the
/// layers that are present; 0 for a side without codes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CodebookInfo {
    pub n_layers: usize,
    /// Fewer than `n_layers`: training was not finished; no cache takes such codebooks.
    pub layers_present: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// How channels of a key pair up: [`Rope::Half`](crate::Rope::Half) or
    /// [`Rope::Interleaved`](crate::Rope::Interleaved).
    pub rope: Rope,
    /// R, 0: no codes for keys.
    pub key_stages: usize,
    /// Nc, of a stage.
    pub key_codes: usize,
    /// g, successive pairs that share their indices.
    pub key_group: usize,
    /// What shares a norm.
    pub key_norms: Scope,
    /// Code bits of a value scalar, 0: no codes for values.
    pub value_bits: usize,
    /// What shares a code.
    pub value_scope: Scope,
    /// Bits of a key scalar, codes and norms.
    pub key_true_bits: f64,
    /// Bits of a value scalar, codes and scales.
    pub value_true_bits: f64,
    pub key_error: f64,
    pub value_error: f64,
    /// Trained on, the fewest of any layer.
    pub tokens: usize,
    /// Of everything random in training.
    pub seed: u64,
    /// As in [`CacheOptions`](crate::CacheOptions).
    pub model_id: u64,
    /// Of the numbers, in memory.
    pub bytes: u64,
    /// Where the codebooks come from, as their trainer said.
    pub note: String,
}

impl CodebookInfo {
    /// # Safety
    /// The library has filled `raw`, and its strings are still there.
    pub(crate) unsafe fn from_raw(raw: &sys::kvq_codebook_info) -> Self {
        // SAFETY: the caller's word for the strings.
        Self {
            n_layers: count(raw.n_layers),
            layers_present: count(raw.layers_present),
            kv_heads: count(raw.kv_heads),
            head_dim: count(raw.head_dim),
            rope: Rope::from_code(raw.rope),
            key_stages: count(raw.key_stages),
            key_codes: count(raw.key_codes),
            key_group: count(raw.key_group),
            key_norms: Scope::from_code(raw.key_norms),
            value_bits: count(raw.value_bits),
            value_scope: Scope::from_code(raw.value_scope),
            key_true_bits: raw.key_true_bits,
            value_true_bits: raw.value_true_bits,
            key_error: raw.key_error,
            value_error: raw.value_error,
            tokens: count(raw.tokens),
            seed: raw.seed,
            model_id: raw.model_id,
            bytes: raw.bytes,
            note: unsafe { text_at(raw.note) },
        }
    }
}

/// One layer of codebooks; see [`CodebookInfo`](crate::CodebookInfo).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CodebookLayerInfo {
    /// If not, the layer is missing and everything below is 0.
    pub present: bool,
    pub tokens: usize,
    pub key_error: f64,
    pub value_error: f64,
    /// The key error of a decoder that knows only the first stage, the first two, …: the last of `key_stages` is
    /// `key_error`, then 0.
    pub key_stage_errors: [f64; 64],
}

impl CodebookLayerInfo {
    pub(crate) fn from_raw(raw: &sys::kvq_codebook_layer_info) -> Self {
        Self {
            present: raw.present != 0,
            tokens: count(raw.tokens),
            key_error: raw.key_error,
            value_error: raw.value_error,
            key_stage_errors: raw.key_stage_errors,
        }
    }
}

/// What centres are made for and how much they take away. Residuals are ‖x − c‖² / ‖x‖² of training, with the
/// nearest centre c, averaged over the layers that are present; 0 for a side without centres.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CentresInfo {
    pub n_layers: usize,
    /// Fewer than `n_layers`: training was not finished; no cache takes such centres.
    pub layers_present: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Of the keys that follow; centres are before it.
    pub rope: Rope,
    /// Of a head; 0: keys have none.
    pub key_centres: usize,
    /// Of a head; 0: values have none.
    pub value_centres: usize,
    pub key_residual: f64,
    pub value_residual: f64,
    /// Trained on, the fewest of any layer.
    pub tokens: usize,
    /// Of everything random in training.
    pub seed: u64,
    /// As in [`CacheOptions`](crate::CacheOptions).
    pub model_id: u64,
    /// Of the numbers, in memory.
    pub bytes: u64,
    /// Where the centres come from, as their trainer said.
    pub note: String,
}

impl CentresInfo {
    /// # Safety
    /// The library has filled `raw`, and its strings are still there.
    pub(crate) unsafe fn from_raw(raw: &sys::kvq_centres_info) -> Self {
        // SAFETY: the caller's word for the strings.
        Self {
            n_layers: count(raw.n_layers),
            layers_present: count(raw.layers_present),
            kv_heads: count(raw.kv_heads),
            head_dim: count(raw.head_dim),
            rope: Rope::from_code(raw.rope),
            key_centres: count(raw.key_centres),
            value_centres: count(raw.value_centres),
            key_residual: raw.key_residual,
            value_residual: raw.value_residual,
            tokens: count(raw.tokens),
            seed: raw.seed,
            model_id: raw.model_id,
            bytes: raw.bytes,
            note: unsafe { text_at(raw.note) },
        }
    }
}

/// One layer of centres; see [`CentresInfo`](crate::CentresInfo).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CentresLayerInfo {
    /// If not, the layer is missing and everything below is 0.
    pub present: bool,
    pub tokens: usize,
    pub key_residual: f64,
    pub value_residual: f64,
}

impl CentresLayerInfo {
    pub(crate) fn from_raw(raw: &sys::kvq_centres_layer_info) -> Self {
        Self {
            present: raw.present != 0,
            tokens: count(raw.tokens),
            key_residual: raw.key_residual,
            value_residual: raw.value_residual,
        }
    }
}

/// What routers are made for, and what they do on the pages that they were trained on.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RouterInfo {
    pub n_layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Of the keys that follow; routers see them before.
    pub rope: Rope,
    /// Successive layers that share the decisions of the first of them.
    pub sharing: usize,
    /// Of such layers; each has a network.
    pub groups: usize,
    /// Formats to choose among, 2 … [`MAX_EXPERTS`](crate::MAX_EXPERTS).
    pub n_experts: usize,
    /// It was trained with.
    pub method: RouterMethod,
    /// Of training by the paper's loss; 0 for labels.
    pub loss_weight: f64,
    /// True bits of a scalar, as pages are stored; the first and the open one not counted.
    pub mean_bits: f64,
    /// Labels: the error of attention up to which a format was good enough for a page.
    pub tolerance: f64,
    /// Labels: the share of pages that get the format they were labelled with.
    pub accuracy: f64,
    /// Trained on.
    pub tokens: usize,
    /// Of everything random in training.
    pub seed: u64,
    /// As in [`CacheOptions`](crate::CacheOptions).
    pub model_id: u64,
    /// Of one network in a file.
    pub bytes: u64,
    /// Names of the formats as in a policy, those with more bits first, separated by ", ".
    pub experts: String,
    /// Where the routers come from, as their trainer said.
    pub note: String,
}

impl RouterInfo {
    /// # Safety
    /// The library has filled `raw`, and its strings are still there.
    pub(crate) unsafe fn from_raw(raw: &sys::kvq_router_info) -> Self {
        // SAFETY: the caller's word for the strings.
        Self {
            n_layers: count(raw.n_layers),
            kv_heads: count(raw.kv_heads),
            head_dim: count(raw.head_dim),
            rope: Rope::from_code(raw.rope),
            sharing: count(raw.sharing),
            groups: count(raw.groups),
            n_experts: count(raw.n_experts),
            method: RouterMethod::from_code(raw.method),
            loss_weight: raw.loss_weight,
            mean_bits: raw.mean_bits,
            tolerance: raw.tolerance,
            accuracy: raw.accuracy,
            tokens: count(raw.tokens),
            seed: raw.seed,
            model_id: raw.model_id,
            bytes: raw.bytes,
            experts: unsafe { text_at(raw.experts) },
            note: unsafe { text_at(raw.note) },
        }
    }
}

/// One group of layers; see [`RouterInfo`](crate::RouterInfo).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RouterGroupInfo {
    /// Whose keys decide.
    pub first_layer: usize,
    pub last_layer: usize,
    /// As in [`RouterInfo`](crate::RouterInfo), of these layers.
    pub mean_bits: f64,
    /// As in [`RouterInfo`](crate::RouterInfo), of these layers.
    pub accuracy: f64,
    /// Of the pages that each format gets; 0 beyond `n_experts`.
    pub shares: [f64; 8],
}

impl RouterGroupInfo {
    pub(crate) fn from_raw(raw: &sys::kvq_router_group_info) -> Self {
        Self {
            first_layer: count(raw.first_layer),
            last_layer: count(raw.last_layer),
            mean_bits: raw.mean_bits,
            accuracy: raw.accuracy,
            shares: raw.shares,
        }
    }
}

/// What a cache was made with, defaults filled in.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CacheInfo {
    pub n_layers: usize,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rope: Rope,
    /// 0 without RoPE.
    pub rotary_dim: usize,
    pub scale: f32,
    /// First pages of a list that stay FP16.
    pub sink: usize,
    /// Newest pages that stay FP16.
    pub recent: usize,
    /// As in [`PolicyInfo`](crate::PolicyInfo).
    pub eviction_budget: usize,
    /// As in [`PolicyInfo`](crate::PolicyInfo).
    pub eviction_window: usize,
    pub max_bytes: u64,
    pub model_id: u64,
}

impl CacheInfo {
    pub(crate) fn from_raw(raw: &sys::kvq_cache_info) -> Self {
        Self {
            n_layers: count(raw.n_layers),
            q_heads: count(raw.q_heads),
            kv_heads: count(raw.kv_heads),
            head_dim: count(raw.head_dim),
            rope: Rope::from_code(raw.rope),
            rotary_dim: count(raw.rotary_dim),
            scale: raw.scale,
            sink: count(raw.sink),
            recent: count(raw.recent),
            eviction_budget: count(raw.eviction_budget),
            eviction_window: count(raw.eviction_window),
            max_bytes: raw.max_bytes,
            model_id: raw.model_id,
        }
    }
}

/// How a layer stores what is sealed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LayerInfo {
    /// 1, or those that a router chooses among.
    pub n_formats: usize,
    /// Their names, keys/values where these differ, separated by ", ".
    pub formats: String,
}

impl LayerInfo {
    pub(crate) fn from_raw(raw: &sys::kvq_layer_info) -> Self {
        Self { n_formats: count(raw.n_formats), formats: text_of(&raw.formats) }
    }
}

/// Where the bytes are. All sizes are bytes as allocated, padding and bookkeeping included.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Usage {
    /// Key and value scalars held: 2 · head_dim · slots over all layers and KV heads.
    pub scalars: usize,
    /// Pages in their final compressed format.
    pub sealed_bytes: u64,
    /// FP16 pages: open, recent, sink, or of an fp16 policy.
    pub fp16_bytes: u64,
    /// Page records, positions, page lists, the sequence objects.
    pub metadata_bytes: u64,
    /// Work space of [`Cache::attend`](crate::Cache::attend) and the cache object; 0 when asked for one sequence.
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

impl Usage {
    pub(crate) fn from_raw(raw: &sys::kvq_usage) -> Self {
        Self {
            scalars: count(raw.scalars),
            sealed_bytes: raw.sealed_bytes,
            fp16_bytes: raw.fp16_bytes,
            metadata_bytes: raw.metadata_bytes,
            workspace_bytes: raw.workspace_bytes,
            total_bytes: raw.total_bytes,
            plain_fp16_bytes: raw.plain_fp16_bytes,
            sealed_pages: raw.sealed_pages,
            fp16_pages: raw.fp16_pages,
            shared_pages: raw.shared_pages,
            bits_per_scalar: raw.bits_per_scalar,
        }
    }
}

/// What a matrix is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MatrixInfo {
    pub has_bias: bool,
    pub rows: usize,
    pub columns: usize,
    /// Of codes, scales, signs and bias.
    pub bytes: u64,
    /// 8 · bytes / (rows · columns), without the bias: true bits of a weight.
    pub bits: f64,
    /// ‖Ŵ − W‖² / ‖W‖² when it was quantized; 0 for a matrix of zeros.
    pub error: f64,
    /// tr(E·H·Eᵀ) / tr(W·H·Wᵀ) with E = Ŵ − W and the Hessian as given; 0 without one.
    pub proxy_error: f64,
    /// As in [`QuantizeOptions`](crate::QuantizeOptions).
    pub scheme: String,
}

impl MatrixInfo {
    /// # Safety
    /// The library has filled `raw`, and its strings are still there.
    pub(crate) unsafe fn from_raw(raw: &sys::qp_matrix_info) -> Self {
        // SAFETY: the caller's word for the strings.
        Self {
            has_bias: raw.has_bias != 0,
            rows: count(raw.rows),
            columns: count(raw.columns),
            bytes: raw.bytes,
            bits: raw.bits,
            error: raw.error,
            proxy_error: raw.proxy_error,
            scheme: unsafe { text_at(raw.scheme) },
        }
    }
}
