/** \file kvq.h
 *  \brief kvq: a compressed key/value cache for language models, with attention computed on the compressed form.
 *
 *  An inference engine computes queries, keys and values; this library stores the keys and values in 1 to 16 bits per
 *  scalar and computes attention directly on them.
 *
 *      context   memory, threads, limits and the device       kvq_context_create
 *      policy    the page format of each layer                kvq_policy_load
 *      codebook  vector quantization trained for one model    kvq_codebook_load
 *      centres   scales of channels, trained vectors          kvq_centres_load
 *      router    chooses each page's format by its keys       kvq_router_load
 *      cache     the shape of one model's attention layers    kvq_cache_create
 *      sequence  one conversation: lists of pages per head    kvq_sequence_create, kvq_append, kvq_attend
 *      matrix    weights of a linear layer in few bits        qp_quantize, qp_linear
 *
 *  Rules that hold for every function:
 *
 *  - A call that can fail returns a ::kvq_status and takes, as its last argument, a caller-owned ::kvq_error or NULL.
 *    On failure the message names the argument and its value, and every object is as it was before the call.
 *  - Structs begin with `struct_size`. Call the struct's `*_init(&it, sizeof(it))` first; if the library fills the
 *    struct, set `struct_size` instead. Structs only grow at their end: fields that an older program's struct lacks get
 *    their defaults, and fields that this library does not know must be zero. Reserved fields must be 0; the library
 *    sets them to 0 in structs that it fills. No struct is larger than 4096 bytes.
 *  - Handles are returned through the parameter `result`, which is NULL after a failure. Objects may be destroyed in
 *    any order: whatever other objects still need is freed with the last of them. Destroying NULL does nothing.
 *  - Any number of threads may use a context or a cache at once, except where a function's \threads line says
 *    otherwise. Several threads may use other handles at once where they are `const`; everything else needs exclusive
 *    use. Destroying needs exclusive use of the handle.
 *  - Besides the statuses that a function lists, any function may return ::KVQ_E_INTERNAL; ::KVQ_E_UNSUPPORTED if a
 *    newer header's struct holds a value that this library does not know; ::KVQ_E_BACKEND on a CUDA context; and
 *    ::KVQ_E_MEMORY or ::KVQ_E_LIMIT for a sequence that a CUDA graph appends to, because the call first reads back how
 *    far the graph has come.
 *  - The library never prints, aborts, reads environment variables, installs signal handlers, or starts threads that
 *    the caller did not ask for. After a `fork()` during which no other thread was inside a call, the child may go on
 *    using CPU contexts, which then compute on the calling thread alone, and may destroy them; it may not use GPU
 *    contexts.
 *  - Hooks must return. An exception that a C++ hook throws is caught and counts as the hook's failure; unwinding by
 *    other means (longjmp, a foreign runtime's panic) is undefined.
 *  - Tensors are row-major. "Host memory" is memory that the CPU can read.
 *  - Text is UTF-8; file names are passed to the system's loader as they are, UTF-8 in practice.
 *  - A CUDA context is asynchronous: calls enqueue work on its stream and return. Appending and attending do not
 *    synchronise; saving, loading and decoding wait for the stream. An error that the device reports later is returned
 *    by a later call, and once the device's state is broken every call returns it. Arguments in host memory have been
 *    read when a call returns.
 *
 *  Declarations behind KVQ_EXPERIMENTAL, which must be defined before this file is included, may change in a minor
 *  version; everything else only grows until version 2.
 *
 *  Marks in the comments, from which bindings are generated. Every pointer has those that apply. Without marks, a
 *  pointer to a struct points to one struct in host memory that is used until the call returns, a handle is used until
 *  the call returns, and neither may be NULL except the `error` of every call. Handles that a function returns directly
 *  are borrowed and must not be destroyed.
 *
 *      \nullable         may be NULL; pointers without it may not
 *      \length EXPR      number of elements behind the pointer; for `void`, of the tensor's elements or of bytes. EXPR
 *                        has numbers, fields of the struct and parameters of the call; `cache.q_heads` is a field of
 *                        the cache's info, `layer.key_dim` of the info of the call's layer, `trainer.head_dim` of the
 *                        trainer's options; sum(a) adds up an array or, if
 *                        that is NULL, is its length; words(n) is the number of 32-bit words for n bits;
 *                        strided(tokens, heads, channels) is the extent that the strides reach; `string`: UTF-8 up to
 *                        a NUL
 *      \memory M         `host`; `context`: host memory, or device memory for a CUDA context; `device`
 *      \keeps K          how long the library uses the memory, or how long the returned memory lives: `call`: until
 *                        the call returns; `handle`: as long as the handle it belongs to; `released`: until the
 *                        context's `released` hook has been called; `static`: for the life of the process
 *      \parent P         the new handle keeps P alive
 *      \destroy F        the function that destroys the handle
 *      \values           the enumerators that follow are the values of this integer
 */
#ifndef KVQ_H
#define KVQ_H

#include <stddef.h>
#include <stdint.h>

/* On Windows, define KVQ_STATIC to link libkvq.a; CMake's target kvq::kvq_static does. */
#if defined(_WIN32) && !defined(KVQ_STATIC)
#define KVQ_API __declspec(dllimport)
#elif defined(__GNUC__) && !defined(_WIN32)
#define KVQ_API __attribute__((visibility("default")))
#else
#define KVQ_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------- status and errors */

/** Result of a call: ::KVQ_OK or a negative error code. The numbers never change. \values */
typedef int32_t kvq_status;
enum {
  KVQ_OK = 0,             /**< Success. */
  KVQ_E_ARGUMENT = -1,    /**< An argument is NULL, out of range, or inconsistent with another one. */
  KVQ_E_MEMORY = -2,      /**< The allocator returned NULL. */
  KVQ_E_LIMIT = -3,       /**< The call would exceed a byte limit of the context or of the cache. */
  KVQ_E_STATE = -4,       /**< The object's state does not allow the call, for example a rollback into a sealed page. */
  KVQ_E_FORMAT = -5,      /**< A policy, snapshot or other input is malformed. */
  KVQ_E_MISMATCH = -6,    /**< The input is well-formed but belongs to another model, cache shape, policy or version. */
  KVQ_E_UNSUPPORTED = -7, /**< The request is valid, but this build or machine does not support it. */
  KVQ_E_BACKEND = -8,     /**< The device or one of the caller's hooks failed; see `backend_code`. */
  KVQ_E_INTERNAL = -9,    /**< A bug in the library. */
  KVQ_E_CANCELLED = -10,  /**< The caller's progress hook cancelled the call. */
  KVQ_E_BUFFER_SIZE = -11 /**< The caller's buffer is too small; the call reports the size it needs. */
};

/** Description of a failure. Owned by the caller; call ::kvq_error_init before use. */
typedef struct kvq_error {
  uint32_t struct_size; /**< Size of the caller's struct. */
  kvq_status code;      /**< The status that the call returned. */
  int32_t backend_code; /**< Error code of the device's library or of a hook; 0 if none. */
  char message[256];    /**< English text, UTF-8, NUL-terminated; empty on success. */
} kvq_error;

/** Clear an error.
 *  \param error  \nullable
 *  \param size   sizeof(kvq_error).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_error_init(kvq_error* error, size_t size);

/** Return the name of a status code, for example "KVQ_E_LIMIT"; "unknown status" for any other number.
 *  \returns \length string \keeps static
 *  \threads any.  \since 1.0 */
KVQ_API const char* kvq_status_name(kvq_status status);

/* ------------------------------------------------------------------------------------------------------- version */

/** Version of this header (Semantic Versioning). */
#define KVQ_VERSION_MAJOR 1
#define KVQ_VERSION_MINOR 0
#define KVQ_VERSION_PATCH 0

/** Increases by one with every release that adds to this header. */
#define KVQ_API_VERSION 1

/** Return the ::KVQ_API_VERSION that the loaded library implements. The library has everything that headers of this or
 *  a smaller number declare, except experimental parts.
 *  \threads any.  \since 1.0 */
KVQ_API int32_t kvq_api_version(void);

/** Return the version of the loaded library, "major.minor.patch".
 *  \returns \length string \keeps static
 *  \threads any.  \since 1.0 */
KVQ_API const char* kvq_version_string(void);

/* ---------------------------------------------------------------------------------------------------- enumerations */

/** Element type of a tensor. \values */
typedef int32_t kvq_dtype;
enum {
  KVQ_F32 = 0, /**< IEEE 754 binary32. */
  KVQ_F16 = 1, /**< IEEE 754 binary16. */
  KVQ_BF16 = 2 /**< bfloat16: the upper half of binary32. */
};

/** Device that a context computes on. \values */
typedef int32_t kvq_device;
enum {
  KVQ_DEVICE_CPU = 0, /**< The host's CPU. */
  KVQ_DEVICE_CUDA = 1 /**< An NVIDIA GPU, through libkvq_cuda.so. */
};

/** Rotary embedding that the library applies to queries and keys. \values */
typedef int32_t kvq_rope;
enum {
  KVQ_ROPE_NONE = 0,       /**< None: the caller passes them rotated, or the model has no rotary embedding. */
  KVQ_ROPE_HALF = 1,       /**< Channels (j, j + rotary_dim/2) form a pair: Hugging Face Llama, Mistral, Qwen. */
  KVQ_ROPE_INTERLEAVED = 2 /**< Channels (2j, 2j+1) form a pair: original Llama, GPT-J. */
};

/** Severity of a log message. \values */
typedef int32_t kvq_log_level;
enum {
  KVQ_LOG_ERROR = 0,   /**< Something failed. */
  KVQ_LOG_WARNING = 1, /**< Something is wrong, but the call goes on. */
  KVQ_LOG_INFO = 2     /**< For information. */
};

/** Fixed sizes. */
enum {
  KVQ_PAGE_SLOTS = 32,      /**< Tokens per page: the unit of encoding, sharing and rollback. */
  KVQ_MAX_MASK_SLOTS = 1024 /**< Newest slots of a sequence that a mask can cover. */
};

/* --------------------------------------------------------------------------------------------------------- context */

/** Memory, threads, limits and a device, shared by any number of caches. \destroy kvq_context_destroy */
typedef struct kvq_context kvq_context;

/** Allocate `bytes` (> 0) aligned to `alignment` (a power of two), or return NULL. Called from any thread, also from
 *  several at once. Like every hook, it may not use the context or objects made from it. */
typedef void* (*kvq_allocate_hook)(void* user, size_t bytes, size_t alignment);
/** Free memory that ::kvq_allocate_hook returned, with the same `bytes` and `alignment`. Called from any thread, also
 *  from several at once. */
typedef void (*kvq_free_hook)(void* user, void* pointer, size_t bytes, size_t alignment);
/** Receive one message, NUL-terminated, without newline, valid until the hook returns. Called from any thread, also
 *  from several at once. */
typedef void (*kvq_log_hook)(void* user, kvq_log_level level, const char* message);
/** Body of a parallel loop. */
typedef void (*kvq_parallel_body)(void* argument, int32_t index);
/** Run `body(argument, i)` once for every i in [0, n), on any threads in any order, and return when all calls of
 *  `body` have returned. Results do not depend on the order or on the number of threads. The library runs short loops
 *  itself without this hook. Called from the thread that made the call, so from several at once if several use the
 *  context.
 *  \returns 0; anything else, or fewer than n calls of `body`, means that the hook could not run them all: the calling
 *           thread then runs the rest. */
typedef int32_t (*kvq_parallel_for_hook)(void* user, int32_t n, kvq_parallel_body body, void* argument);
/** Last call of a context's hooks: no hook is used any more, and their `user` pointers may be freed. Called by the
 *  thread that destroys the context or the last object made from it; may use other contexts. Not called if the context
 *  could not be created. */
typedef void (*kvq_released_hook)(void* user);

/** Allocate `bytes` (> 0) of device memory aligned to 256 bytes, or return NULL. The library uses the memory in the
 *  order of `stream`, the context's stream at that time. Called from the thread that made the call. */
typedef void* (*kvq_device_allocate_hook)(void* user, size_t bytes, void* stream);
/** Free memory that ::kvq_device_allocate_hook returned, once the work enqueued on `stream` so far is done: the hook
 *  may not reuse it on another stream before that. */
typedef void (*kvq_device_free_hook)(void* user, void* pointer, size_t bytes, void* stream);

/** Options of a context: device, threads, limits and hooks. */
typedef struct kvq_context_options {
  uint32_t struct_size;
  kvq_device device;          /**< ::KVQ_DEVICE_CPU by default. */
  int32_t n_threads;          /**< Threads per call, including the caller's; 1 (default) starts none. At most 1024.
                                   Ignored if `parallel_for` is set. */
  int32_t reserved;           /**< 0. */
  uint64_t max_bytes;         /**< Limit on all memory allocated through the context, host and device together,
                                   including the context itself; 0 (default): none. */
  const char* cpu_isa;        /**< Name from ::kvq_cpu_isa_name; NULL (default): the best that this machine supports.
                                   A CUDA context takes `sm_80` or `sm_86`, to run the kernels of such GPUs on a newer
                                   one, for tests. \nullable \length string \memory host \keeps call */
  kvq_allocate_hook allocate; /**< NULL (default): the C++ runtime's aligned operator new. \nullable \keeps released */
  kvq_free_hook free;         /**< NULL if and only if `allocate` is NULL. \nullable \keeps released */
  void* allocator_user;       /**< Passed to `allocate` and `free`. \nullable \keeps released */
  kvq_log_hook log;           /**< NULL (default): no messages. \nullable \keeps released */
  void* log_user;             /**< Passed to `log`. \nullable \keeps released */
  kvq_parallel_for_hook parallel_for; /**< NULL (default): the library's own threads, see `n_threads`.
                                           \nullable \keeps released */
  void* parallel_for_user;            /**< Passed to `parallel_for`. \nullable \keeps released */

  /* For ::KVQ_DEVICE_CUDA. */
  int32_t device_index; /**< Ordinal of the GPU; 0 by default. */
  int32_t reserved2;    /**< 0. */
  const char* plugin;   /**< Path of libkvq_cuda.so; NULL (default): next to the library that holds this function, then
                             the loader's search path. \nullable \length string \memory host \keeps call */
  void* stream;         /**< cudaStream_t that all work is enqueued on; NULL (default): the legacy default stream. See
                             ::kvq_context_set_stream. \nullable \keeps released */
  kvq_device_allocate_hook device_allocate; /**< NULL (default): a memory pool owned by the context.
                                                 \nullable \keeps released */
  kvq_device_free_hook device_free; /**< NULL if and only if `device_allocate` is NULL. \nullable \keeps released */
  void* device_allocator_user;      /**< Passed to `device_allocate` and `device_free`. \nullable \keeps released */

  kvq_released_hook released; /**< Called when the context is freed, which objects made from it may delay: hooks and
                                   whatever they use must live until then. NULL (default): not called.
                                   \nullable \keeps released */
  void* released_user;        /**< Passed to `released`. \nullable \keeps released */
} kvq_context_options;

/** Fill with defaults.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_context_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_context_options_init(kvq_context_options* options, size_t size);

/** Create a context.
 *
 *  \param options  NULL: defaults. \nullable
 *  \param result   receives the handle.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED (this machine or build lacks the device or instruction set; the
 *           message has the reason); KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND (a thread could not be started, or the
 *           device failed).
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_context_create(const kvq_context_options* options, kvq_context** result, kvq_error* error);

/** Destroy a context handle. Objects made from the context keep it alive.
 *  \param context  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_context_destroy(kvq_context* context);

/** Description of a context. */
typedef struct kvq_context_info {
  uint32_t struct_size;
  kvq_device device;
  int32_t n_threads;   /**< Threads per call; 0 if the caller's `parallel_for` hook is used. */
  int32_t reserved;    /**< 0. */
  const char* backend; /**< "cpu" or "cuda". \length string \keeps static */
  const char* isa;     /**< Instruction set in use, for example "avx512vnni" or "sm_90". \length string \keeps handle */
  uint64_t bytes;      /**< Bytes allocated now. */
  uint64_t peak_bytes; /**< Largest value that `bytes` has had. */
  uint64_t max_bytes;  /**< Limit on `bytes`; 0 if none. */
} kvq_context_info;

/** Describe a context.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads any.  \since 1.0 */
KVQ_API kvq_status kvq_context_describe(const kvq_context* context, kvq_context_info* info, kvq_error* error);

/** Enqueue later calls of a CUDA context on another stream, ordered after all earlier work.
 *  \param stream  cudaStream_t, NULL for the legacy default stream. It must live until another one is set or the
 *                 context is freed. \nullable \keeps handle
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED (a CPU context); KVQ_E_BACKEND.
 *  \threads exclusive use of `context`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_context_set_stream(kvq_context* context, void* stream, kvq_error* error);

/** Description of a device that contexts can be created on. */
typedef struct kvq_device_info {
  uint32_t struct_size;
  int32_t n_devices;          /**< Number of devices of this kind. */
  char name[128];             /**< Name of the device, for example "NVIDIA H100 80GB HBM3". */
  int32_t compute_capability; /**< Major * 10 + minor: 90 for 9.0. */
  int32_t driver_version;     /**< Newest CUDA version that the driver supports; 13000 for 13.0. */
  uint64_t memory_bytes;      /**< Total memory of the device. */
} kvq_device_info;

/** Check whether contexts can be created on a device, and describe it.
 *
 *  \param device  ::KVQ_DEVICE_CUDA.
 *  \param index   as kvq_context_options::device_index.
 *  \param plugin  as kvq_context_options::plugin. \nullable \length string \memory host \keeps call
 *  \param info    its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED with the reason: no plug-in library, a plug-in of another
 *           version, a missing dependency of it (named), no driver, a driver that is too old, no such device.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_device_describe(kvq_device device, int32_t index, const char* plugin, kvq_device_info* info,
                                       kvq_error* error);

/** Return the number of CPU instruction sets that this build has kernels for and this machine supports.
 *  \threads any.  \since 1.0 */
KVQ_API int32_t kvq_cpu_isa_count(void);

/** Return the name of instruction set `index`, best first: "amx", "avx512vnni", "avx512", "avxvnni", "avx2", "baseline"
 *  on x86-64; "neon-dotprod", "neon" on ARM64.
 *
 *  "amx" is "avx512vnni" with tile products for linear layers on five or more rows. On processors with tiles, the
 *  first call that looks for instruction sets asks Linux to let this process use them; alternate signal stacks that
 *  are set up later must be large enough for them (AT_MINSIGSTKSZ).
 *  \returns NULL if `index` is out of range. \nullable \length string \keeps static
 *  \threads any.  \since 1.0 */
KVQ_API const char* kvq_cpu_isa_name(int32_t index);

/* ---------------------------------------------------------------------------------------------------------- policy */

/** Formats that each layer's pages are sealed in, how many pages stay FP16, and which tokens are evicted. Immutable.
 *  \destroy kvq_policy_destroy */
typedef struct kvq_policy kvq_policy;

/** Read a policy from YAML, or from the short form.
 *
 *  The short form is one format name for the keys and values of all layers, or two separated by a slash, KEYS/VALUES.
 *  It may end with `+METHOD:BUDGET` for eviction: `gs2`, `gt2/gt1`, `int4+adasnap:128`. The formats:
 *
 *  - `gs4`, `gs3`, `gs2`, `gs1`: gain-shape pages. Codes of 4 to 1 bits after a Hadamard rotation, and an 8-bit gain
 *    for each token and side (keys or values) that makes decoding unbiased. Keys are encoded relative to their page's
 *    mean, which the page stores in 8 bits per channel; values are encoded as they are, and with `+nocentre` keys are,
 *    too. None of this is trained. With `+centres`, a side is encoded relative to the nearest trained centre of its
 *    head, from kvq_cache_options::centres; RoPE rotates the centres of keys to the key's position. A page then stores
 *    one byte per token for the centre, unless the head has only one.
 *  - `gt3`, `gt2`, `gt1`: the same with trellis-coded codes of 3 to 1 bits (64 states). The error is a quarter to a
 *    half smaller; encoding and attention take longer.
 *  - `fp16`; `int8`, `int4`, `int3`, `int2`: integers with a scale and a minimum, per channel of a page for keys, and
 *    per token and group of channels for values. `+hadamard` encodes them after a Hadamard rotation.
 *  - `commvq`: codes from a codebook trained for the model.
 *
 *  The long form:
 *
 *      version: 1
 *      keys: int4+hadamard            # a format name, or a map:
 *      values: {format: int2, hadamard: false, group: 32}
 *      sink: 1                        # first pages that stay FP16
 *      recent: 1                      # newest pages that stay FP16, including the open one
 *      window: 4096                   # newest tokens that queries see, see kvq_cache_options; 0: the options'
 *      calibrate: first               # or none: see below
 *      layers:                        # later entries win
 *        - {range: [0, 1], keys: fp16, values: int8}
 *        - {range: [4, 5], window: 0}
 *        - {range: [2, 3], keys: {format: gs2, centres: none}}   # or page, trained: +nocentre, nothing, +centres
 *      centres: page                  # for all gain-shape formats, also of experts, that do not set it themselves
 *      commvq:                        # for the format commvq, which needs a codebook
 *        beam: 4                      # beam width of key encoding, 1 to 16
 *        flips: 100                   # most bit flips of a value's code to lower its error
 *        attention: auto              # or tables, rebuild
 *
 *      eviction: {method: adasnap, budget: 128}   # see kvq_compress
 *
 *  To choose a format for each page, `router` replaces `keys`, `values` and `layers`:
 *
 *      router:                        # needs a router trained for these experts
 *        experts: [fp16, int4, int2]  # 2 to 8 formats, most bits first; int8/int4: keys/values
 *        votes: layer                 # tokens of all heads choose together; or head
 *
 *  `group` is the number of channels that share a scale in an integer value page (32, 64 or 128). Defaults: fp16,
 *  recent 1, centres page, beam 1, unlimited flips, attention auto; sink 1 if any page gets gain-shape codes of three
 *  bits or fewer, else 0, because models attend strongly to their first tokens; calibrate first if any page gets
 *  gain-shape codes and nothing needs trained data, else none.
 *
 *  `calibrate: first` lets each sequence find scales of channels (see ::kvq_centres) by its own first 128 tokens, which
 *  models with outlier channels need and others do not mind; it goes with all formats but those that need trained data
 *  (`router`, `commvq`, trained centres). The tokens stay FP16 until they have been attended to and the next one is
 *  appended, or a step begins. They need not be like the rest, but if fewer than 16 of them differ, the sequence waits
 *  for 256, 512 ... 2048 and then goes without. With ::kvq_extend or ::kvq_attend, queries count; a host that appends
 *  more tokens before it attends, or more than 2048 at once, gets scales from keys and values alone. The same pages
 *  result for every way of cutting a prompt. Scales stay while any token or preallocated page does, belong to forks,
 *  are saved in snapshots, and take 0.005 bits a scalar at 32768 tokens. A layer whose pages are sealed earlier goes
 *  without: by ::kvq_compress, or because a sequence in FP16 gets such a policy later or a snapshot is recoded. Scales
 *  of the cache go before: no sequence then looks for its own.
 *
 *  `attention` selects how the CPU attends to CommVQ keys; results differ only by rounding. `tables` multiplies each
 *  query with all codes and sums the products for each token; `rebuild` sums keys from their codes once for all
 *  queries of a KV head; `auto` takes the faster one.
 *
 *  \param yaml    text, not necessarily NUL-terminated; at most 1 MiB, nested at most 16 levels deep.
 *                 \length length \memory host \keeps call
 *  \param length  bytes at `yaml`.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (the message names the line); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_policy_load(kvq_context* context, const char* yaml, size_t length, kvq_policy** result,
                                   kvq_error* error);

/** Copy a policy and set its eviction.
 *
 *  \param policy  a policy of this context. If it evicts, only its method and budget change.
 *  \param method  name of an eviction method, see ::kvq_compress. \length string \memory host \keeps call
 *  \param budget  tokens that a KV head keeps on average.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: an unknown method, a budget smaller than the window); KVQ_E_MEMORY;
 *           KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_policy_with_eviction(kvq_context* context, const kvq_policy* policy, const char* method,
                                            int32_t budget, kvq_policy** result, kvq_error* error);

/** Copy a policy and set the formats of layers `first_layer` to `last_layer`.
 *
 *  \param policy       a policy of this context, without a router.
 *  \param first_layer  0 ... `last_layer`.
 *  \param last_layer   at most 65535; creating a cache with fewer layers fails.
 *  \param keys         name of a format, see ::kvq_policy_load; NULL: unchanged.
 *                      \nullable \length string \memory host \keeps call
 *  \param values       the same for values. \nullable \length string \memory host \keeps call
 *  \param result       receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: an unknown format, a policy with a router); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_policy_with_layer(kvq_context* context, const kvq_policy* policy, int32_t first_layer,
                                         int32_t last_layer, const char* keys, const char* values, kvq_policy** result,
                                         kvq_error* error);

/** Write a policy in the long form, which ::kvq_policy_load reads. Reading it gives every layer the same settings;
 *  writing that again gives the same bytes.
 *
 *  \param buffer    receives the text, without a NUL. NULL: only the size is returned.
 *                   \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the text in bytes; also if `capacity` is too small.
 *                   \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_UNSUPPORTED (so many layers differ
 *           that ::kvq_policy_load would refuse the text for its length); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_policy_save(const kvq_policy* policy, char* buffer, size_t capacity, size_t* size,
                                   kvq_error* error);

/** What a host has to know of a policy. */
typedef struct kvq_policy_info {
  uint32_t struct_size;
  int32_t eviction_budget; /**< Tokens that ::kvq_compress keeps of a KV head; INT32_MAX: the budget is a share; 0: no
                                eviction. */
  int32_t eviction_window; /**< Newest tokens that it always keeps, in every head. */
  int32_t reserved;        /**< 0. */
  int32_t calibrates;      /**< 1: sequences find scales by their first tokens (`calibrate: first`), 0: they do not. */
} kvq_policy_info;

/** Describe a policy.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_policy_describe(const kvq_policy* policy, kvq_policy_info* info, kvq_error* error);

/** Destroy a policy. Caches made with it keep what they need.
 *  \param policy  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_policy_destroy(kvq_policy* policy);

/* ------------------------------------------------------------------------------------------------------- codebooks */

/** Scope that a code, or a norm, is shared in. \values */
typedef int32_t kvq_scope;
enum {
  KVQ_SCOPE_LAYER = 0, /**< All KV heads of a token in a layer. */
  KVQ_SCOPE_HEAD = 1   /**< One KV head of a token. */
};

/** CommVQ codebooks for the layers of one model. Immutable; caches share it. Files are in the safetensors format and
 *  take about half of kvq_codebook_info::bytes. \destroy kvq_codebook_destroy */
typedef struct kvq_codebook kvq_codebook;

/** Read codebooks from a file in memory. Every byte is checked; saving the result again gives the same bytes.
 *
 *  \param buffer  contents of a file written by ::kvq_codebook_save. \length size \memory host \keeps call
 *  \param size    bytes at `buffer`.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged, truncated, or not a codebook; the message names the tensor
 *           or field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_codebook_load(kvq_context* context, const void* buffer, size_t size, kvq_codebook** result,
                                     kvq_error* error);

/** Write codebooks as a file. The same codebooks give the same bytes.
 *
 *  \param buffer    receives the file. NULL: only the size is returned.
 *                   \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the file in bytes; also if `capacity` is too small.
 *                   \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_codebook_save(const kvq_codebook* codebook, void* buffer, size_t capacity, size_t* size,
                                     kvq_error* error);

/** Shape and quality of codebooks. Errors are |x' - x|^2 / |x|^2 in training, x' being the decoded x, averaged over the
 *  layers that are present; 0 for a side without codes. */
typedef struct kvq_codebook_info {
  uint32_t struct_size;
  int32_t n_layers;
  int32_t layers_present; /**< Fewer than `n_layers` if training was not finished; no cache accepts such codebooks. */
  int32_t kv_heads;
  int32_t head_dim;
  kvq_rope rope;          /**< Channels that pair up in a key: ::KVQ_ROPE_HALF or ::KVQ_ROPE_INTERLEAVED. */
  int32_t key_stages;     /**< Residual stages R; 0: no codes for keys. */
  int32_t key_codes;      /**< Codes per stage, Nc. */
  int32_t key_group;      /**< Successive pairs g that share their indices. */
  kvq_scope key_norms;    /**< Scope of a norm. */
  int32_t value_bits;     /**< Code bits per value scalar; 0: no codes for values. */
  kvq_scope value_scope;  /**< Scope of a code. */
  double key_true_bits;   /**< Bits per key scalar, codes and norms. */
  double value_true_bits; /**< Bits per value scalar, codes and scales. */
  double key_error;
  double value_error;
  int64_t tokens;    /**< Training tokens, of the layer with the fewest. */
  uint64_t seed;     /**< Random seed of training. */
  uint64_t model_id; /**< As in kvq_cache_options. */
  uint64_t bytes;    /**< Bytes of the numbers in memory. */
  const char* note;  /**< Provenance, as given to the trainer. \length string \keeps handle */
  uint64_t scales;   /**< kvq_centres_info::checksum of the scales that keys and values had in training, and that a
                          cache needs; 0: none. */
} kvq_codebook_info;

/** Describe codebooks.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_codebook_describe(const kvq_codebook* codebook, kvq_codebook_info* info, kvq_error* error);

/** Sizes of arrays in structs. */
enum {
  KVQ_MAX_KEY_STAGES = 64, /**< Most residual stages of key codes. */
  KVQ_MAX_EXPERTS = 8,     /**< Most formats that a router chooses among. */
  KVQ_MAX_FUSED = 4,       /**< Most matrices that a plan multiplies together. */
  KVQ_FORMATS_SIZE = 256   /**< Bytes of kvq_layer_info::formats. */
};

/** Description of one layer of codebooks; see ::kvq_codebook_info. */
typedef struct kvq_codebook_layer_info {
  uint32_t struct_size;
  int32_t present; /**< 1; 0: the layer is missing and all fields below are 0. */
  int64_t tokens;
  double key_error;
  double value_error;
  double key_stage_errors[KVQ_MAX_KEY_STAGES]; /**< Key error when decoding with the first stage, the first two, ...;
                                                    entry `key_stages` - 1 equals `key_error`, later entries are 0. */
} kvq_codebook_layer_info;

/** Describe one layer of codebooks.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_codebook_describe_layer(const kvq_codebook* codebook, int32_t layer,
                                               kvq_codebook_layer_info* info, kvq_error* error);

/** Destroy a codebook handle.
 *  \param codebook  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_codebook_destroy(kvq_codebook* codebook);

/* --------------------------------------------------------------------------------------------------------- centres */

/** Scales and centres of the keys and values of one model. Immutable; caches share it. Files are in the safetensors
 *  format and take half of kvq_centres_info::bytes.
 *
 *  Scales serve every format. Models have outlier channels: keys with large offsets, channels several times as large as
 *  their neighbours, which codes of 2 to 4 bits lose others to. A cache with scales multiplies each channel of keys and
 *  values by its scale before storing it (values less an offset), divides queries by the scales of keys and outputs by
 *  those of values, and adds the offset to outputs: results are the same but for what codes lose. It costs no bit,
 *  and no time but once a token and query. All pages of the cache hold scaled numbers; ::kvq_sequence_decode undoes
 *  the scales.
 *
 *  Centres are for the gain-shape formats with `+centres`: a vector, scaled if there are scales, is stored relative to
 *  the nearest centre of its head. \destroy kvq_centres_destroy */
typedef struct kvq_centres kvq_centres;

/** Read centres from a file in memory. Every byte is checked; saving the result again gives the same bytes.
 *
 *  \param buffer  contents of a file written by ::kvq_centres_save. \length size \memory host \keeps call
 *  \param size    bytes at `buffer`.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged, truncated, or not centres; the message names the tensor or
 *           field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_load(kvq_context* context, const void* buffer, size_t size, kvq_centres** result,
                                    kvq_error* error);

/** Write centres as a file. The same centres give the same bytes.
 *
 *  \param buffer    receives the file. NULL: only the size is returned.
 *                   \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the file in bytes; also if `capacity` is too small.
 *                   \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_save(const kvq_centres* centres, void* buffer, size_t capacity, size_t* size,
                                    kvq_error* error);

/** Shape and quality of centres and scales. Residuals are |x - c|^2 / |x|^2 in training, c being the nearest centre,
 *  averaged over the layers that are present; 0 for a side without centres. */
typedef struct kvq_centres_info {
  uint32_t struct_size;
  int32_t n_layers;
  int32_t layers_present; /**< Fewer than `n_layers` if training was not finished; no cache accepts such centres. */
  int32_t kv_heads;
  int32_t head_dim;
  kvq_rope rope;         /**< RoPE applied to the keys later; centres are stored before RoPE. */
  int32_t key_centres;   /**< Centres per head for keys; 0: none. */
  int32_t value_centres; /**< Centres per head for values; 0: none. */
  double key_residual;
  double value_residual;
  int64_t tokens;       /**< Training tokens, of the layer with the fewest. */
  uint64_t seed;        /**< Random seed of training. */
  uint64_t model_id;    /**< As in kvq_cache_options. */
  uint64_t bytes;       /**< Bytes of the numbers in memory. */
  const char* note;     /**< Provenance, as given to the trainer. \length string \keeps handle */
  int32_t key_scales;   /**< 1: there are scales of keys; 0: none. */
  int32_t value_scales; /**< 1: there are scales and offsets of values; 0: none. */
  uint64_t checksum;    /**< Tells whether pages and codebooks were made with the same numbers; 0 while layers are
                             missing. */
} kvq_centres_info;

/** Describe centres.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_centres_describe(const kvq_centres* centres, kvq_centres_info* info, kvq_error* error);

/** Description of one layer; see ::kvq_centres_info. Noise is the expected squared error of scores (keys) and outputs
 *  (values) from codes with one gain a token, relative to the least that scales can reach where no channel has an
 *  offset; means over heads, 0 without scales. Noise of 2 without scales, and of 1 with them, means that scales halve
 *  the error. */
typedef struct kvq_centres_layer_info {
  uint32_t struct_size;
  int32_t present; /**< 1; 0: the layer is missing and all fields below are 0. */
  int64_t tokens;
  double key_residual;
  double value_residual;
  double key_offset;         /**< Largest offset of a key channel, over what varies around it. */
  double key_imbalance;      /**< Largest scale of a head's keys over the smallest, of the head where that is most. */
  double value_imbalance;    /**< The same for values. */
  double key_noise;          /**< Noise of scores without scales. */
  double scaled_key_noise;   /**< Noise of scores with them. */
  double value_noise;        /**< Noise of outputs without scales. */
  double scaled_value_noise; /**< Noise of outputs with them. */
} kvq_centres_layer_info;

/** Describe one layer of centres.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_centres_describe_layer(const kvq_centres* centres, int32_t layer, kvq_centres_layer_info* info,
                                              kvq_error* error);

/** Read the scales of one layer, for example to fold them into weights. Scales are in (0, 1]: only their ratios within
 *  a head mean anything.
 *
 *  \param key_scales     receives the scales of keys; both channels of a RoPE pair have the same. NULL: not wanted.
 *                        \nullable \length centres.kv_heads * centres.head_dim \memory host \keeps call
 *  \param value_scales   receives the scales of values. NULL: not wanted.
 *                        \nullable \length centres.kv_heads * centres.head_dim \memory host \keeps call
 *  \param value_offsets  receives what is subtracted from values before scaling. NULL: not wanted.
 *                        \nullable \length centres.kv_heads * centres.head_dim \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (the layer is missing, or has no scales of a wanted side).
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_read_scales(const kvq_centres* centres, int32_t layer, float* key_scales,
                                           float* value_scales, float* value_offsets, kvq_error* error);

/** Destroy a centres handle.
 *  \param centres  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_centres_destroy(kvq_centres* centres);

/* --------------------------------------------------------------------------------------------------------- routers */

/** Training method of routers. \values */
typedef int32_t kvq_router_method;
enum {
  KVQ_ROUTER_LABEL = 0, /**< Learn, for each page, the cheapest format that keeps the error of attention within the
                             tolerance. */
  KVQ_ROUTER_PAPER = 1  /**< Minimise the loss of the MoQAE paper, for comparison: it tends to choose one format for all
                             pages. */
};

/** Routers for the layers of one model (MoQAE): small networks that choose the format of each page by its keys before
 *  RoPE. Immutable; caches share it. Files are in the safetensors format. \destroy kvq_router_destroy */
typedef struct kvq_router kvq_router;

/** Read routers from a file in memory. Every byte is checked; saving the result again gives the same bytes.
 *
 *  \param buffer  contents of a file written by ::kvq_router_save. \length size \memory host \keeps call
 *  \param size    bytes at `buffer`.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged, truncated, or not a router; the message names the tensor or
 *           field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_router_load(kvq_context* context, const void* buffer, size_t size, kvq_router** result,
                                   kvq_error* error);

/** Write routers as a file. The same routers give the same bytes.
 *
 *  \param buffer    receives the file. NULL: only the size is returned.
 *                   \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the file in bytes; also if `capacity` is too small.
 *                   \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_router_save(const kvq_router* router, void* buffer, size_t capacity, size_t* size,
                                   kvq_error* error);

/** Shape of routers, and their results on the pages they were trained on. */
typedef struct kvq_router_info {
  uint32_t struct_size;
  int32_t n_layers;
  int32_t kv_heads;
  int32_t head_dim;
  kvq_rope rope;            /**< RoPE applied to the keys later; routers read keys before it. */
  int32_t sharing;          /**< Successive layers that share the decisions of the first of them. */
  int32_t groups;           /**< Groups of such layers; each group has one network. */
  int32_t n_experts;        /**< Formats to choose among, 2 ... ::KVQ_MAX_EXPERTS. */
  kvq_router_method method; /**< Training method. */
  int32_t reserved;         /**< 0. */
  double loss_weight;       /**< Weight of the loss in training by ::KVQ_ROUTER_PAPER; 0 for labels. */
  double mean_bits;         /**< Mean true bits per stored scalar, without first and open pages. */
  double tolerance;         /**< Labels: largest error of attention at which a format was accepted for a page. */
  double accuracy;          /**< Labels: share of pages that get the format they were labelled with. */
  int64_t tokens;           /**< Training tokens. */
  uint64_t seed;            /**< Random seed of training. */
  uint64_t model_id;        /**< As in kvq_cache_options. */
  uint64_t bytes;           /**< Bytes of one network in a file. */
  const char* experts;      /**< Names of the formats as in a policy, most bits first, separated by ", ".
                                 \length string \keeps handle */
  const char* note;         /**< Provenance, as given to the trainer. \length string \keeps handle */
} kvq_router_info;

/** Describe routers.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_router_describe(const kvq_router* router, kvq_router_info* info, kvq_error* error);

/** Description of one group of layers; see ::kvq_router_info. */
typedef struct kvq_router_group_info {
  uint32_t struct_size;
  int32_t first_layer; /**< Layer whose keys decide. */
  int32_t last_layer;
  int32_t reserved;               /**< 0. */
  double mean_bits;               /**< As in kvq_router_info, for these layers. */
  double accuracy;                /**< As in kvq_router_info, for these layers. */
  double shares[KVQ_MAX_EXPERTS]; /**< Share of the pages that each format gets; 0 from `n_experts` on. */
} kvq_router_group_info;

/** Describe one group of layers.
 *  \param group  0 ... groups - 1.
 *  \param info   its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_router_describe_group(const kvq_router* router, int32_t group, kvq_router_group_info* info,
                                             kvq_error* error);

/** Destroy a router handle.
 *  \param router  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_router_destroy(kvq_router* router);

/* ----------------------------------------------------------------------------------------------------------- cache */

/** The attention layers of one model. Owns the page formats and the workspace of ::kvq_attend.
 *  \destroy kvq_cache_destroy */
typedef struct kvq_cache kvq_cache;

/** Shape of a range of layers that differ from the cache's others, such as those with larger heads, without RoPE, or
 *  without keys and values of their own. */
typedef struct kvq_layer_shape {
  uint32_t struct_size;
  int32_t first_layer; /**< First layer of the range. Ranges may not overlap. */
  int32_t n_layers;    /**< Layers of the range; 1 by default. */
  int32_t q_heads;     /**< Query heads, a multiple of the KV heads; 0 (default): the cache's. */
  int32_t kv_heads;    /**< Key/value heads; 0 (default): the cache's. */
  int32_t key_dim;     /**< Channels of a key and of a query, a multiple of 8, 8 ... 576; 0 (default): the cache's
                            `head_dim`. */
  int32_t value_dim;   /**< Channels of a value and of an output, a multiple of 8, 8 ... 512; 0 (default): the cache's
                            `head_dim`. */
  int32_t values_are_key_prefix; /**< 1: values are the first `value_dim` channels of the keys, as in latent attention
                                      (MLA), and are stored once; there must be more key channels, and only these may
                                      be rotated. Appending takes no `v`. Policies' formats of values are those of the
                                      common channels, formats of keys those of the channels behind. 0 by default. */
  kvq_rope rope;                 /**< -1 (default): the cache's. */
  int32_t rotary_begin;          /**< First channel that is rotated, an even number; 0 (default): the first one, or
                                      `value_dim` with `values_are_key_prefix`. */
  int32_t rotary_dim;            /**< Channels that are rotated, an even number; 0 (default): the cache's, if it has
                                      one, else all from `rotary_begin` on. */
  float rope_base;               /**< 0 (default): the cache's, with its `inv_freq`. Ignored if `inv_freq` is given. */
  const float* inv_freq;         /**< Radians per position of each pair. NULL (default): those of `rope_base`.
                                      \nullable \length rotary_dim / 2 \memory host \keeps call */
  float scale;            /**< Factor applied to q k^T; 0 (default): the cache's, or 1 / sqrt(key_dim) if that is 0. */
  float logit_softcap;    /**< Of calls whose own is 0; 0 (default): none. */
  int32_t pages_of_layer; /**< The earlier layer whose pages these layers read, as models with shared KV layers do
                               (Gemma 3n, Gemma 4); -1 (default): their own. They hold no tokens: append to the named
                               layer, then ::kvq_attend to these; only queries of the named layer are observed. It must
                               have pages of its own. KV heads, channels and RoPE are the named layer's: their fields
                               may stay at their defaults (`inv_freq` must), other values are refused. `q_heads`,
                               `scale` and `logit_softcap` are the layers' own. */
  int32_t recurrent;      /**< 1: the layers keep no keys and values, as recurrent and linear-attention layers of hybrid
                               models (Qwen 3.5, Mamba): they take no memory and no tokens, and sequences may carry
                               their states (::kvq_sequence_put_state). All other fields but `first_layer` and
                               `n_layers` must be at their defaults; some layer must not be recurrent. 0 by default. */
  int32_t sliding_window; /**< See kvq_cache_options; 0 (default): the cache's, -1: none. Layers that read others' pages
                               see no further than those keep: 0 is that layer's. */
  int32_t attention_chunk; /**< See kvq_cache_options; 0 (default): the cache's, -1: none. */
} kvq_layer_shape;

/** Fill with defaults: a layer like the cache's others.
 *  \param shape  \nullable
 *  \param size   sizeof(kvq_layer_shape).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_layer_shape_init(kvq_layer_shape* shape, size_t size);

/** Shape of a model's attention layers, and the trained objects that its page formats need. */
typedef struct kvq_cache_options {
  uint32_t struct_size;
  int32_t n_layers;      /**< 1 ... 65536. */
  int32_t q_heads;       /**< Query heads, 1 ... 65536; a multiple of `kv_heads`. */
  int32_t kv_heads;      /**< Key/value heads, 1 ... 4096. */
  int32_t head_dim;      /**< Channels of keys and of values, a multiple of 8, 8 ... 512. */
  kvq_rope rope;         /**< ::KVQ_ROPE_HALF by default. */
  int32_t rotary_dim;    /**< Leading channels that are rotated, an even number; 0 (default): `head_dim`. */
  float rope_base;       /**< 10000 by default; frequencies must be finite. Ignored if `inv_freq` is given. */
  const float* inv_freq; /**< Radians per position of each pair; head_dim / 2 elements if `rotary_dim` is 0. NULL
                              (default): rope_base^(-2j / rotary_dim).
                              \nullable \length rotary_dim / 2 \memory host \keeps call */
  float scale;           /**< Factor applied to q k^T; 0 (default): 1 / sqrt(head_dim). */
  int32_t reserved;      /**< 0. */
  uint64_t max_bytes;    /**< Limit on the memory that this cache allocates, including its own object; 0 (default): only
                              the context's limit. */
  uint64_t model_id;     /**< Any number that identifies the model's weights; snapshots with another one are refused. */
  const kvq_codebook* codebook;  /**< Codebook for the format `commvq`: from this context, complete, with this number of
                                      layers and KV heads, this `head_dim` and `rope`, and this `model_id` unless either
                                      is 0. Caches may share it. NULL (default): none. \nullable \keeps call */
  const kvq_router* router;      /**< Router for a policy with `router`: from this context, trained for this shape,
                                      `rope`, the policy's experts, and this `model_id` unless either is 0. Caches may
                                      share it. NULL (default): none. \nullable \keeps call */
  const kvq_centres* centres;    /**< Scales for every format, and centres for gain-shape formats with trained centres:
                                      from this context, complete, with this number of layers and KV heads, this
                                      `head_dim`, for keys this `rope` (scales also suit ::KVQ_ROPE_NONE), and this
                                      `model_id` unless either is 0. Caches may share it. Scales are used whatever the
                                      policy; a codebook must have been trained with the same. A policy may need
                                      `codebook` or centres, not both; if it needs neither, those given serve other
                                      policies of sequences. NULL (default): none.
                                      \nullable \keeps call */
  const kvq_layer_shape* shapes; /**< Layers that differ. NULL (default): none. Caches with such layers take no
                                      trained objects but scales, and these where only frequencies, scale and soft cap
                                      differ; they evict only if the heads of all layers with pages are alike. Formats
                                      that a policy gives to layers that read others' pages have no effect.
                                      \nullable \length n_shapes \memory host \keeps call */
  int32_t n_shapes;              /**< 0 by default. */
  int32_t sliding_window;    /**< A query at position p sees positions > p - window, as in Gemma's and Mistral's local
                                  layers; 0 (default): all up to its own. Such layers forget: an append frees the
                                  whole pages that neither its own tokens nor later ones see, but for the policy's
                                  `sink` first ones. With `recent: r`, what the 32 * (r - 1) tokens before these see
                                  stays as well. So the newest append can be taken back, and that many tokens before
                                  it. */
  int32_t attention_chunk;   /**< A query at position p sees positions from p - p % chunk on, as in Llama 4's local
                                  layers; 0 (default): all up to its own. Pages are freed as for `sliding_window`,
                                  of which a layer may have one or the other. */
  int32_t mrope_interleaved; /**< 1: pairs of M-RoPE alternate, as in Qwen3-VL: pair j < 3 * section of stream j % 3
                                  turns by that stream, all others by the temporal one. 0 (default): sections follow
                                  one another, as in Qwen2-VL. */
  const int32_t* mrope_section; /**< Pairs that turn by each of the three position streams of M-RoPE: temporal, height,
                                     width. They add up to the pairs of every layer with RoPE. Calls then take
                                     `rope_positions`. Such caches take no codebook, router or centres, which are for
                                     keys before RoPE; scales they take. NULL (default): all pairs turn by the position
                                     of the token. \nullable \length 3 \memory host \keeps call */
} kvq_cache_options;

/** Fill with defaults. The four sizes (`n_layers`, `q_heads`, `kv_heads`, `head_dim`) stay 0 and must be set.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_cache_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_cache_options_init(kvq_cache_options* options, size_t size);

/** Create a cache.
 *
 *  \param policy  a policy of this or another context; NULL: fp16. \nullable
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: the policy needs a codebook, centres or a router and none is given);
 *           KVQ_E_MISMATCH (a codebook, centres or router for another model; the message has the difference);
 *           KVQ_E_UNSUPPORTED (a format that the context's device has no kernels for; formats of which some need a
 *           codebook and others centres); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_cache_create(kvq_context* context, const kvq_cache_options* options, const kvq_policy* policy,
                                    kvq_cache** result, kvq_error* error);

/** Destroy a cache handle. Sequences of the cache keep it alive.
 *  \param cache  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_cache_destroy(kvq_cache* cache);

/** Options that a cache was created with, defaults filled in. */
typedef struct kvq_cache_info {
  uint32_t struct_size;
  int32_t n_layers;
  int32_t q_heads;
  int32_t kv_heads;
  int32_t head_dim;
  kvq_rope rope;
  int32_t rotary_dim; /**< 0 without RoPE. */
  float scale;
  int32_t sink;            /**< First pages of a sequence that stay FP16. */
  int32_t recent;          /**< Newest pages that stay FP16. */
  int32_t eviction_budget; /**< As in kvq_policy_info. */
  int32_t eviction_window; /**< As in kvq_policy_info. */
  uint64_t max_bytes;
  uint64_t model_id;
} kvq_cache_info;

/** Describe a cache.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads any.  \since 1.0 */
KVQ_API kvq_status kvq_cache_describe(const kvq_cache* cache, kvq_cache_info* info, kvq_error* error);

/** Shape of a layer, and the formats that it seals pages in. */
typedef struct kvq_layer_info {
  uint32_t struct_size;
  int32_t n_formats;              /**< 1, or the number that a router chooses among; 0: the layer is recurrent. */
  char formats[KVQ_FORMATS_SIZE]; /**< Names of the formats, keys/values where they differ, separated by ", ". */
  int32_t q_heads;
  int32_t kv_heads;
  int32_t key_dim;   /**< Channels of keys and queries. */
  int32_t value_dim; /**< Channels of values and outputs. */
  kvq_rope rope;
  int32_t rotary_begin;
  int32_t rotary_dim; /**< 0 without RoPE. */
  float scale;
  float logit_softcap;
  int32_t values_are_key_prefix; /**< 1: appending takes no values. */
  int32_t pages_of_layer;        /**< The layer whose pages it reads: this one, or an earlier one. */
  int32_t recurrent;             /**< 1: it keeps no keys and values; `n_formats`, heads and channels are 0. */
  int32_t sliding_window;        /**< Of the options or the policy, the shorter one; 0: none. */
  int32_t attention_chunk;       /**< 0: none. */
} kvq_layer_info;

/** Describe a layer of a cache.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads any.  \since 1.0 */
KVQ_API kvq_status kvq_cache_describe_layer(const kvq_cache* cache, int32_t layer, kvq_layer_info* info,
                                            kvq_error* error);

/** Return the context of a cache. It lives as long as the cache.
 *  \returns NULL for NULL. \nullable \keeps handle
 *  \threads any.  \since 1.0 */
KVQ_API kvq_context* kvq_cache_context(const kvq_cache* cache);

/* -------------------------------------------------------------------------------------------------------- sequence */

/** The pages of one conversation. Belongs to the cache that created it. \destroy kvq_sequence_destroy */
typedef struct kvq_sequence kvq_sequence;

/** Create an empty sequence.
 *  \param result  receives the handle. \parent cache
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any number of sequences of one cache may be created, used and destroyed at once.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_create(kvq_cache* cache, kvq_sequence** result, kvq_error* error);

/** Create a sequence that starts with all tokens of `parent`. Pages are shared until either sequence changes them, as
 *  finding scales does (`calibrate: first`, see ::kvq_policy_load): ::kvq_sequence_reserve with 0 tokens finds those of
 *  a prompt that has been appended and attended to, so that forks share them and the sealed pages; an extension has.
 *
 *  \param result  receives the handle. \parent cache
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL, or `parent` belongs to another cache); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads `parent` may be read at the same time.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_fork(kvq_cache* cache, const kvq_sequence* parent, kvq_sequence** result,
                                     kvq_error* error);

/** Drop tokens from the end of every layer, so that each layer keeps its first `length` tokens.
 *
 *  Exact if the cut lies in an FP16 page or on a page boundary (a multiple of ::KVQ_PAGE_SLOTS). A cut inside a sealed
 *  page is refused: keep `recent: 2` or more pages in FP16 to be able to roll back at least 32 tokens. After a cut on
 *  a page boundary, sealed pages stay sealed.
 *
 *  \param length  0 ... the length of the shortest layer.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (negative or beyond the length); KVQ_E_STATE (inside a sealed page, or a layer has
 *           states but none after `length` tokens, see ::kvq_sequence_put_state: the message has lengths that work; or
 *           eviction left gaps in the positions; or a layer with a window has freed what later tokens would see);
 *           KVQ_E_MEMORY, KVQ_E_LIMIT (a shared page had to be copied).
 *  \threads exclusive use of `sequence`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_truncate(kvq_cache* cache, kvq_sequence* sequence, int32_t length, kvq_error* error);

/** Destroy a sequence. Pages shared with a fork stay alive.
 *  \param sequence  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_sequence_destroy(kvq_sequence* sequence);

/** Return the cache that a sequence belongs to. It lives as long as the sequence.
 *  \returns NULL for NULL. \nullable \keeps handle
 *  \threads any.  \since 1.0 */
KVQ_API kvq_cache* kvq_sequence_cache(const kvq_sequence* sequence);

/** Preallocate pages, so that every layer has room for `tokens` more tokens. A sequence that has its first 128 tokens
 *  finds its scales before (`calibrate: first`, see ::kvq_policy_load).
 *
 *  While there is room, ::kvq_append and ::kvq_append_sequences of up to ::KVQ_PAGE_SLOTS tokens of each sequence, and
 *  ::kvq_attend and ::kvq_extend with one query of each, do not call the allocate hook: what they need while they run
 *  is part of the reservation. Longer calls free what they take when they return, and find it reserved inside a step
 * (see
 *  ::kvq_step_begin). Exceptions are positions with gaps (128 bytes for a page of a head), sinks that an evicting
 *  policy keeps, a sequence's search for its scales (`calibrate: first`, see ::kvq_policy_load), counting queries
 *  for it and FP16 pages that wait for it beyond `sink` and `recent`, calls of several threads at once, and on a GPU
 *  memory of the device for attention. On a CPU the pages of a head are contiguous from the start. On a GPU a CUDA
 *  graph needs them:
 *
 *      kvq_context_set_stream(context, stream);
 *      kvq_attend(...)                                  // once with the graph's batch: allocates its workspace
 *      kvq_sequence_reserve(cache, sequence, 4096, ...);
 *      cudaStreamBeginCapture(stream, ...);
 *      kvq_append(..., 1, k, v, ...); kvq_attend(...);      // for every layer
 *      cudaStreamEndCapture(stream, &graph);
 *
 *  Each launch of the graph appends one more token and attends to all of them: lengths, positions and page tables live
 *  on the device. While a stream is captured, kvq_append takes at most ::KVQ_PAGE_SLOTS tokens and no positions,
 *  kvq_attend takes query positions and masks in device memory, which may change between launches, and other functions
 *  of the sequence may not be called. After the capture they
 *  may; each first waits for the context's stream to learn how far the graph has come, so launch graphs on that stream
 *  or make it wait for them. A launch without room appends nothing, and a later call on the context returns
 *  KVQ_E_LIMIT. A graph stays valid until kvq_sequence_reserve is called again or an object that it refers to is
 *  destroyed. A fork of a sequence with preallocated pages copies its open pages. Layers with CommVQ codes cannot be
 *  captured, nor can attention if the policy's eviction observes queries: these calls return KVQ_E_UNSUPPORTED. Nor can
 *  a sequence that still waits for scales (`calibrate: first`): capturing returns KVQ_E_STATE until it has found them,
 *  by the append after its 128 tokens or by reserving then.
 *
 *  \param tokens  per layer, >= 0; 0 frees the preallocated pages that are left.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL; a sequence of another cache; negative, or more than a layer can hold);
 *           KVQ_E_STATE (a stream is being captured); KVQ_E_UNSUPPORTED (above 0 if a router chooses the formats);
 *           KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.
 *  \threads exclusive use of `sequence`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_reserve(kvq_cache* cache, kvq_sequence* sequence, int32_t tokens, kvq_error* error);

/** Keep a copy of bytes of the host with a sequence: the state of a layer after the sequence's first `tokens` tokens.
 *
 *  Recurrent and linear-attention layers of hybrid models have no pages, but a state that only processing all tokens
 *  again would bring back. With copies of it after some tokens (at the end of a shared prompt, every 4 096 tokens) the
 *  whole sequence can be forked, truncated, saved and loaded:
 *
 *  - ::kvq_sequence_fork shares states, ::kvq_sequence_save and ::kvq_cache_save write them with the pages.
 *  - ::kvq_sequence_truncate drops those after more than `length` tokens. Where tokens are dropped, a layer that has
 *    states needs one after `length` tokens, or the call is refused with the nearest length that works, which
 *    ::kvq_sequence_find_states finds. Length 0 always works.
 *  - ::kvq_step_commit and ::kvq_step_abort drop those after more tokens than remain. They need none: hosts that draft
 *    tokens keep the newest states themselves.
 *
 *  States are in host memory, whatever the context's device, and count as `state_bytes` in kvq_usage.
 *
 *  \param layer   any layer of the model, recurrent or not.
 *  \param tokens  >= 1. It need not be the sequence's length: layers of a model run one after the other. A state of the
 *                 same layer after as many tokens is replaced.
 *  \param data    the state. \length size \memory host \keeps call
 *  \param size    bytes at `data`, >= 1.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads exclusive use of `sequence`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_put_state(kvq_cache* cache, kvq_sequence* sequence, int32_t layer, int32_t tokens,
                                          const void* data, size_t size, kvq_error* error);

/** Copy a state that ::kvq_sequence_put_state has kept.
 *
 *  \param layer     as given there.
 *  \param tokens    as given there.
 *  \param buffer    receives the state. NULL: only the size is returned.
 *                   \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the state in bytes; also if `capacity` is too small.
 *                   \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: there is no such state); KVQ_E_BUFFER_SIZE (nothing is written).
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_get_state(const kvq_sequence* sequence, int32_t layer, int32_t tokens, void* buffer,
                                          size_t capacity, size_t* size, kvq_error* error);

/** Find the newest state of a layer.
 *
 *  \param layer   a layer of the model.
 *  \param most    look for states after at most so many tokens, >= 0.
 *  \param tokens  receives the number of tokens after which it is; 0: there is none; unchanged on failure.
 *                 \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_sequence_find_state(const kvq_sequence* sequence, int32_t layer, int32_t most, int32_t* tokens,
                                           kvq_error* error);

/** Find the most tokens after which every layer that has states has one, to which the sequence can be truncated.
 *
 *  \param most    look for states after at most so many tokens, >= 0.
 *  \param tokens  receives the number of tokens; 0: there is none; unchanged on failure.
 *                 \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_sequence_find_states(const kvq_sequence* sequence, int32_t most, int32_t* tokens,
                                            kvq_error* error);

/** Drop states of all layers after `begin` ... `end` - 1 tokens. Copies that a fork shares stay there.
 *
 *  \param begin  >= 0.
 *  \param end    >= `begin`.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.
 *  \threads exclusive use of `sequence`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_drop_states(kvq_cache* cache, kvq_sequence* sequence, int32_t begin, int32_t end,
                                            kvq_error* error);

/** Get the number of tokens that fit into the pages that ::kvq_sequence_reserve preallocated for `layer`. Truncating
 *  makes room again, except for pages that a fork still holds. A layer with a window that has room for one has room for
 *  any number.
 *  \param room  receives the number; unchanged on failure. \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BACKEND.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_sequence_room(const kvq_sequence* sequence, int32_t layer, int32_t* room, kvq_error* error);

/** Get the number of tokens appended to `layer`, or to the layer whose pages it reads, including evicted ones.
 *  \param length  receives the number; unchanged on failure. \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BACKEND.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_sequence_length(const kvq_sequence* sequence, int32_t layer, int32_t* length, kvq_error* error);

/** Get the number of tokens that a KV head of `layer` holds after eviction. ::kvq_sequence_decode returns their
 *  positions.
 *  \param kv_head  0 ... kv_heads - 1.
 *  \param slots    receives the number; unchanged on failure. \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BACKEND.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_sequence_slots(const kvq_sequence* sequence, int32_t layer, int32_t kv_head, int32_t* slots,
                                      kvq_error* error);

/** Write a snapshot of a sequence.
 *
 *  \param buffer    receives the snapshot. NULL: only the size is returned.
 *                   \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the snapshot in bytes; also if `capacity` is too small.
 *                   \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_BACKEND.
 *  \threads `sequence` may be read at the same time.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_save(kvq_cache* cache, const kvq_sequence* sequence, void* buffer, size_t capacity,
                                     size_t* size, kvq_error* error);

/** Create a sequence from a snapshot. Every byte is checked; saving the result again gives the same bytes.
 *
 *  \param buffer  a snapshot written by ::kvq_sequence_save, or by ::kvq_cache_save of one sequence. \length size
 *                 \memory host \keeps call
 *  \param size    bytes at `buffer`.
 *  \param result  receives the handle. \parent cache
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged or truncated); KVQ_E_MISMATCH (another model, shape, policy
 *           format or version; tokens were evicted but the cache's policy never evicts; several sequences);
 *           KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND. ::kvq_cache_load takes other formats and several sequences.
 *  \threads see ::kvq_sequence_create.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_load(kvq_cache* cache, const void* buffer, size_t size, kvq_sequence** result,
                                     kvq_error* error);

/** What recoding a sequence takes; see ::kvq_sequence_predict_recode. */
typedef struct kvq_recode_info {
  uint32_t struct_size;
  int32_t layers;        /**< Layers with pages that are written anew. */
  int64_t pages;         /**< Pages that are written anew. */
  uint64_t needed_bytes; /**< Bytes that must be free meanwhile, within the limits and on the device. */
  uint64_t bytes_before; /**< Bytes of the sequence now, shared pages in full. */
  uint64_t bytes_after;  /**< Bytes of the sequence afterwards. */
} kvq_recode_info;

/** Give a sequence another policy than its cache's: its pages are written anew in that policy's formats, and later
 *  tokens are sealed in these too. So a conversation takes less memory from here on (gs4 to gs2, fp16 to anything)
 *  without processing its tokens again. An empty sequence just gets the policy:
 *
 *      kvq_sequence_create(cache, &sequence, &error);
 *      kvq_sequence_recode(cache, sequence, draft_policy, &error);
 *
 *  Pages are decoded and encoded again, one after the other, and their memory is freed meanwhile: see
 *  ::kvq_sequence_predict_recode for the little that must be free. Pages that a fork shares stay with the fork and are
 *  copied. Tokens, positions and observations stay; errors of both formats add up. Sequences of all policies of a cache
 *  may be in the same batch. Forks have their parent's policy.
 *
 *  Of the policy, the formats, `sink`, `recent` and `calibrate` count: a sequence that still waits for its scales finds
 *  them for the new formats, one that has scales keeps them, and one without tokens follows the policy. Pages that are
 *  in a new format already stay as they are, also where `sink` or `recent` would now leave FP16. Eviction is that of
 *  the cache: the policy has the same or none. Formats that need a codebook or centres use those of the cache. A cache
 *  remembers each policy that it has been given: some hundred bytes, also if the call then fails.
 *
 *  \param policy  a policy of this or another context; NULL: the cache's. \nullable
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: layers that the cache does not have; another eviction); KVQ_E_STATE (in a
 *           step; pages are preallocated; a CUDA graph is captured); KVQ_E_UNSUPPORTED (the policy has a router; the
 *           device cannot decode or encode a format; a format needs trained data that the cache has not been given);
 *           KVQ_E_MISMATCH; KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND (the device failed: pages may be lost). Unless the
 *           device fails, all pages change or none.
 *  \threads exclusive use of `sequence`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_recode(kvq_cache* cache, kvq_sequence* sequence, const kvq_policy* policy,
                                       kvq_error* error);

/** Tell what ::kvq_sequence_recode takes. With `needed_bytes` free it succeeds if the host's hooks find the memory.
 *
 *  \param policy  as in ::kvq_sequence_recode. \nullable
 *  \param info    its `struct_size` must be set.
 *  \returns as ::kvq_sequence_recode.
 *  \threads exclusive use of `sequence`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_predict_recode(kvq_cache* cache, kvq_sequence* sequence, const kvq_policy* policy,
                                               kvq_recode_info* info, kvq_error* error);

/** Describe a layer of a sequence, whose policy may be another than the cache's.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_sequence_describe_layer(const kvq_sequence* sequence, int32_t layer, kvq_layer_info* info,
                                               kvq_error* error);

/** Write a snapshot of several sequences. Pages that they share, as forks do, are written once; ::kvq_cache_load shares
 *  them again. A snapshot of one sequence equals that of ::kvq_sequence_save.
 *
 *  \param sequences    of this cache, each once. \length n_sequences \memory host \keeps call
 *  \param n_sequences  at least 1.
 *  \param buffer       receives the snapshot. NULL: only the size is returned.
 *                      \nullable \length capacity \memory host \keeps call
 *  \param capacity     bytes available at `buffer`.
 *  \param size         receives the size of the snapshot in bytes; also if `capacity` is too small.
 *                      \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (in a step); KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY;
 *           KVQ_E_BACKEND.
 *  \threads the sequences may be read at the same time.
 *  \since 1.0 */
KVQ_API kvq_status kvq_cache_save(kvq_cache* cache, const kvq_sequence* const* sequences, int32_t n_sequences,
                                  void* buffer, size_t capacity, size_t* size, kvq_error* error);

/** How to load a snapshot. */
typedef struct kvq_load_options {
  uint32_t struct_size;
  int32_t recode;           /**< 1: pages in other formats than the policy's are written anew, as
                                 ::kvq_sequence_recode does, layer by layer; 0 (default): they are refused. */
  const kvq_policy* policy; /**< Policy of the loaded sequences, with the conditions of ::kvq_sequence_recode; NULL
                                 (default): the cache's. \nullable \keeps call */
} kvq_load_options;

/** Fill with defaults.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_load_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_load_options_init(kvq_load_options* options, size_t size);

/** Create all sequences of a snapshot, or none. Every byte is checked.
 *
 *  \param buffer       a snapshot written by ::kvq_cache_save or ::kvq_sequence_save. \length size \memory host
 *                      \keeps call
 *  \param size         bytes at `buffer`.
 *  \param sequences    receives the handles; unchanged on failure. \length n_sequences \memory host \keeps call
 *  \param n_sequences  as many as the snapshot has, see ::kvq_snapshot_describe.
 *  \param options      NULL: defaults. \nullable
 *  \returns as ::kvq_sequence_load and ::kvq_sequence_recode.
 *  \threads see ::kvq_sequence_create.
 *  \since 1.0 */
KVQ_API kvq_status kvq_cache_load(kvq_cache* cache, const void* buffer, size_t size, kvq_sequence** sequences,
                                  int32_t n_sequences, const kvq_load_options* options, kvq_error* error);

/** Contents of a snapshot; see ::kvq_snapshot_describe. */
typedef struct kvq_snapshot_info {
  uint32_t struct_size;
  int32_t n_sequences;   /**< Sequences, at least 1. */
  int32_t tokens;        /**< Length of the longest layer of any sequence. */
  int32_t trained;       /**< 1: pages need the codebook, centres or scales that they were made with; 0: none does. */
  int64_t pages;         /**< Pages of all sequences, shared ones once. */
  int64_t recoded_pages; /**< Pages among these whose format is not what the policy has at their place. */
  uint64_t bytes;        /**< Bytes that the sequences take once loaded, at most. */
  uint64_t needed_bytes; /**< Bytes that must be free to load them. */
} kvq_snapshot_info;

/** Tell what a snapshot holds, and what ::kvq_cache_load takes with the same arguments.
 *
 *  \param buffer   a snapshot. \length size \memory host \keeps call
 *  \param size     bytes at `buffer`.
 *  \param options  NULL: defaults. \nullable
 *  \param info     its `struct_size` must be set.
 *  \returns as ::kvq_cache_load.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_snapshot_describe(kvq_cache* cache, const void* buffer, size_t size,
                                         const kvq_load_options* options, kvq_snapshot_info* info, kvq_error* error);

/** Append tokens to one layer of a sequence, from dense tensors. To attend with their queries too, use ::kvq_extend.
 *  Layers that read the pages of another one take no tokens.
 *
 *  Fills the layer's open page. A full page is sealed (encoded in its final format) when it leaves the newest `recent`
 *  pages, which happens when the next token arrives. Either all `n` tokens are appended or none.
 *
 *  \param n          number of tokens, >= 1.
 *  \param k          keys `[n, kv_heads, key_dim]`, before RoPE unless the cache was created with ::KVQ_ROPE_NONE; a
 *                    CUDA context reads them in stream order. They must be finite with magnitude at most 65504 (FP16)
 *                    after RoPE and, in layers with `+hadamard` or gain-shape formats, after the Hadamard rotation,
 *                    too. \length n * layer.kv_heads * layer.key_dim \memory context \keeps call
 *  \param v          values `[n, kv_heads, value_dim]`, same rules; NULL exactly if the layer's values are a prefix of
 *                    its keys. \nullable \length n * layer.kv_heads * layer.value_dim \memory context \keeps call
 *  \param dtype      element type of `k` and `v`.
 *  \param positions  original positions, >= 0, strictly increasing and beyond the layer's last one; inside a step
 *                    (::kvq_step_begin) of a cache that does not evict, in any order beyond the layer's last one before
 *                    the step; NULL: consecutive. \nullable \length n \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL, shape, dtype, position, a number that FP16 cannot represent: a CUDA context
 *           stores the nearest one, 0 for NaN, and a later call reports it); KVQ_E_STATE (a CUDA graph is captured or
 *           lives, see ::kvq_sequence_reserve; the layer takes its page formats from another layer that would hold
 *           fewer tokens: append to layers in their order); KVQ_E_LIMIT; KVQ_E_MEMORY; KVQ_E_BACKEND.
 *  \threads exclusive use of `sequence`; other sequences of the cache may be appended to, attended to, saved and so on
 *           at the same time.
 *  \since 1.0 */
KVQ_API kvq_status kvq_append(kvq_cache* cache, kvq_sequence* sequence, int32_t layer, int32_t n, const void* k,
                              const void* v, kvq_dtype dtype, const int32_t* positions, kvq_error* error);

/** Tokens for one layer of several sequences. Rows of `k` and `v` (one per token) are ordered by sequence. */
typedef struct kvq_append_batch {
  uint32_t struct_size;
  int32_t n_sequences;            /**< >= 1. */
  kvq_sequence* const* sequences; /**< Sequences of this cache, all different.
                                       \length n_sequences \memory host \keeps call */
  const int32_t* token_counts;    /**< Tokens per sequence, each >= 1; NULL (default): one each.
                                       \nullable \length n_sequences \memory host \keeps call */
  const int32_t* positions;       /**< As for ::kvq_append; NULL (default): consecutive in each sequence.
                                       \nullable \length sum(token_counts) \memory host \keeps call */
  const void* k;                  /**< As for ::kvq_append.
                                       \length strided(sum(token_counts), layer.kv_heads, layer.key_dim)
                                       \memory context \keeps call */
  const void* v;                  /**< As for ::kvq_append. \nullable
                                       \length strided(sum(token_counts), layer.kv_heads, layer.value_dim)
                                       \memory context \keeps call */
  kvq_dtype dtype;                /**< Element type of `k` and `v`; ::KVQ_F32 by default. */
  int32_t reserved;               /**< 0. */
  int64_t k_token_stride; /**< Elements from one token's keys to the next token's, not negative; 0 (default): dense. The
                               channels of a head are always contiguous; rows need only the alignment of their
                               elements. */
  int64_t k_head_stride;  /**< Elements from one head to the next, not negative; 0 (default): dense. */
  int64_t v_token_stride; /**< As for keys. */
  int64_t v_head_stride;  /**< As for keys. */
  const int32_t* rope_positions; /**< `[total tokens, 3]` positions by which M-RoPE turns keys, of a cache with
                                      `mrope_section`: temporal, height, width, of any value. `positions` still say what
                                      sees what. Layers without RoPE ignore them. NULL (default): `positions` in all
                                      three. \nullable \length sum(token_counts) * 3 \memory context \keeps call */
} kvq_append_batch;

/** Fill with defaults (one dense F32 token per sequence).
 *  \param batch  \nullable
 *  \param size   sizeof(kvq_append_batch).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_append_batch_init(kvq_append_batch* batch, size_t size);

/** Append tokens to one layer of several sequences: to all of them or to none.
 *
 *  Strides describe tensors of any layout, such as fused queries, keys and values: `k` then points to the first key,
 *  and `k_token_stride` is (q_heads + 2 * kv_heads) * head_dim. The stored pages are those of ::kvq_append. A batch
 *  shares the work on all sequences among the threads; on a GPU it takes one launch (in a CUDA graph, one per
 *  sequence).
 *
 *  \returns as ::kvq_append; KVQ_E_ARGUMENT also if a sequence occurs twice or an offset computed from the strides is
 *           too large. Messages count tokens across all sequences.
 *  \threads exclusive use of these sequences; others of the cache may be used at the same time.
 *  \since 1.0 */
KVQ_API kvq_status kvq_append_sequences(kvq_cache* cache, int32_t layer, const kvq_append_batch* batch,
                                        kvq_error* error);

/** Decode stored keys and values, for inspection and tests. Not optimised.
 *
 *  \param kv_head    0 ... kv_heads - 1.
 *  \param begin      first slot in the head's list.
 *  \param n          number of slots, >= 1.
 *  \param k          receives `[n, key_dim]` keys as attention reads them (after RoPE); NULL: skip.
 *                    \nullable \length n * layer.key_dim \memory host \keeps call
 *  \param v          receives `[n, value_dim]` values; NULL: skip.
 *                    \nullable \length n * layer.value_dim \memory host \keeps call
 *  \param positions  receives original positions; NULL: skip. \nullable \length n \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.
 *  \threads `sequence` may be read at the same time.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_decode(const kvq_cache* cache, const kvq_sequence* sequence, int32_t layer,
                                       int32_t kv_head, int32_t begin, int32_t n, float* k, float* v,
                                       int32_t* positions, kvq_error* error);

/* -------------------------------------------------------------------------------------------------------- eviction */

/** Budget of an eviction, and where to report its result. */
typedef struct kvq_compress_options {
  uint32_t struct_size;
  int32_t budget;        /**< Tokens that a KV head keeps on average; 0 (default): the policy's budget. */
  int32_t* kept;         /**< `[n_layers, kv_heads]` receives the number of tokens that each head then holds, or those
                              of the layer whose pages it reads; NULL: skip.
                              \nullable \length cache.n_layers * cache.kv_heads \memory host \keeps call */
  uint64_t* bytes_freed; /**< Receives the decrease in the bytes of the sequence; NULL: skip.
                              \nullable \length 1 \memory host \keeps call */
} kvq_compress_options;

/** Fill with defaults.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_compress_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_compress_options_init(kvq_compress_options* options, size_t size);

/** Evict tokens as the `eviction` of the cache's policy says. The caller decides when: after a prompt, and again when
 *  a conversation has grown.
 *
 *  Tokens are scored by queries that kvq_attend has observed: the last `window` ones (those of a prompt, if this
 *  follows it), or all of them. A policy names a published method and a budget, the number of tokens that a KV head
 *  keeps on average:
 *
 *      eviction:
 *        method: adasnap  # streaming: the first and the newest tokens (StreamingLLM)
 *                         # h2o: most attention from all queries (H2O)
 *                         # snapkv: most attention from the newest queries (SnapKV)
 *                         # pyramid: snapkv, with more tokens in early layers and fewer in late ones (PyramidKV)
 *                         # adasnap, adapyramid: snapkv and pyramid, a layer's budget split by need (Ada-KV)
 *        budget: 128      # including the window; or a share of the appended tokens, like 25%
 *
 *  or the components of a method: `score` (window, streaming, mass), `layers` (uniform, pyramid) and `heads` (uniform,
 *  adaptive, reserved, together: the same tokens for all heads, which CommVQ values of scope layer need). Further
 *  options: `window` (32), the newest tokens that are always kept; `kernel` (7, odd) and `pooling` (max, mean) of
 *  scores along positions; `group` (mean, max) of the query heads of a KV head; `first` (4), the first tokens that
 *  streaming keeps; `alpha` (0.5), from 0 (free split among heads) to 1 (uniform), with `reserved` the part of the
 *  budget that each head has for itself; `beta` (20): the last layer of a pyramid keeps budget / beta.
 *
 *  Kept tokens keep their positions and move to new, dense pages in the policy's formats; forks are not affected.
 *  Layers that hold no more than their budget do not change. It works when the limits of the cache or the context have
 *  been reached: tokens that remain are written over the pages of those that go, and what else it takes (positions,
 *  scores, selected slots: some percent of the pages) is kept free, so that appends reach the limit a little sooner.
 *  That holds for the policy's budget and pages that no fork shares, and not for policies with a router. Lengths of
 *  sequences still count the evicted tokens, and kvq_sequence_truncate drops the tokens at positions >= `length`.
 *  Observations are not part of a snapshot: after kvq_sequence_load, attend before compressing.
 *
 *  \param options  NULL: defaults. \nullable
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: a budget smaller than the window); KVQ_E_STATE (the policy has no eviction,
 *           a layer is empty, no query has been observed or more than `window` tokens have come since, pages are
 *           preallocated); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads exclusive use of `sequence`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_compress(kvq_cache* cache, kvq_sequence* sequence, const kvq_compress_options* options,
                                kvq_error* error);

/* ------------------------------------------------------------------------------------------------------- attention */

/** Queries of one or more sequences, and where their results go. */
typedef struct kvq_attend_batch {
  uint32_t struct_size;
  int32_t n_sequences;                  /**< >= 1. */
  const kvq_sequence* const* sequences; /**< Sequences of this cache; one may occur repeatedly.
                                             \length n_sequences \memory host \keeps call */
  const int32_t* query_counts;          /**< Queries per sequence, each >= 1; NULL (default): one each.
                                             \nullable \length n_sequences \memory host \keeps call */
  const int32_t* query_positions;       /**< Positions >= 0; NULL (default): the last `query_counts[i]` tokens of each
                                             sequence, so append before attending. While a CUDA graph is captured, they
                                             are in device memory instead, which every replay reads.
                                             \nullable \length sum(query_counts) \memory host \keeps call */
  const void* q;          /**< `[total queries, q_heads, key_dim]`, before RoPE unless the cache was created with
                               ::KVQ_ROPE_NONE. Queries and their logits must be finite, or the results are meaningless.
                               \length strided(sum(query_counts), layer.q_heads, layer.key_dim) \memory context
                               \keeps call */
  kvq_dtype q_dtype;      /**< ::KVQ_F32 by default. */
  kvq_dtype output_dtype; /**< ::KVQ_F32 by default. */
  void* output; /**< `[total queries, q_heads, value_dim]`; its memory, from the first row to the last, may not overlap
                     that of `q`, `sinks` or `mask`.
                     \length strided(sum(query_counts), layer.q_heads, layer.value_dim) \memory context \keeps call */
  int32_t sliding_window; /**< A query at position p sees positions > p - window; 0 (default): the layer's, or all up to
                               its own. A layer that frees pages refuses a longer one. */
  float logit_softcap;    /**< cap * tanh(logit / cap); 0 (default): none. */
  int64_t q_token_stride; /**< Elements from one query to the next, not negative; 0 (default): dense. The channels of a
                               head are always contiguous; rows need only the alignment of their elements. */
  int64_t q_head_stride;  /**< Elements from one head to the next, not negative; 0 (default): dense. */
  int64_t output_token_stride; /**< As for queries. Rows may not overlap: either all heads of a query come before the
                                    next query's (token stride >= (q_heads - 1) * head stride + head_dim), or all
                                    queries of a head before the next head's. Memory between rows is not written. */
  int64_t output_head_stride;  /**< As for queries. */
  float* lse;           /**< `[total queries, q_heads]` receives the natural log-sum-exp of the logits, after scale and
                             cap, including sinks; -infinity for a query that sees no token and has no sink. It merges
                             results over parts of a context, only one of which has the sinks: the sum over parts i of
                             exp(lse[i] - lse) * output[i], with lse the logarithm of the sum of exp(lse[i]). It may not
                             overlap `q`, `output`, `sinks` or `mask`. NULL (default): skip.
                             \nullable \length sum(query_counts) * layer.q_heads \memory context \keeps call */
  const float* sinks;   /**< `[q_heads]` learned logits, neither scaled nor capped: each adds exp(sink) to the softmax
                             denominator of its head and nothing to the sum of values. -infinity means no sink; a CPU
                             refuses NaN and +infinity. NULL (default): none.
                             \nullable \length layer.q_heads \memory context \keeps call */
  const uint32_t* mask; /**< `[total queries, (mask_slots + 31) / 32]`: bit j % 32 of word j / 32 says whether the query
                             sees slot `length - mask_slots + j` of its sequence, the order of appending. Older slots
                             are seen by position, and `sliding_window` holds for all. Bits of slots before the first
                             are ignored. NULL (default): all slots are seen by position.
                             \nullable \length sum(query_counts) * words(mask_slots) \memory context \keeps call */
  int32_t mask_slots;   /**< Newest slots of each sequence that `mask` covers, 1 ... ::KVQ_MAX_MASK_SLOTS; 0 (default)
                             without. */
  int32_t reserved;     /**< 0. */
  const int32_t* rope_positions; /**< `[total queries, 3]` positions by which M-RoPE turns queries, as in
                                      kvq_append_batch. NULL (default): those of the queries in all three.
                                      \nullable \length sum(query_counts) * 3 \memory context \keeps call */
} kvq_attend_batch;

/** Fill with defaults (one dense F32 query per sequence).
 *  \param batch  \nullable
 *  \param size   sizeof(kvq_attend_batch).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_attend_batch_init(kvq_attend_batch* batch, size_t size);

/** Compute attention of a batch of queries over one layer, or over the layer whose pages it reads (`pages_of_layer` of
 *  its kvq_layer_shape), which has received their tokens before.
 *
 *  `output = softmax(scale * q k^T) v` for every query head. Query head h reads KV head h / (q_heads / kv_heads), and a
 *  query at position p sees the tokens at positions up to p, except where a mask says what it sees: among the newest
 *  `mask_slots` slots, for draft trees and parallel samples. While a sequence holds tokens at positions that do not
 *  ascend (appended inside a step), a mask has to cover the first that is not beyond the one before it, and all later
 *  ones. A query that sees no token gives zeros, also with a sink.
 *  Accumulation is in FP32. On a CPU the result is bit-identical for any number of threads and any composition of the
 *  batch; on a GPU it is so for the same batch. Allocates only if a batch needs more workspace than any before it, if
 *  more calls run at once than ever before, or if the policy evicts.
 *
 *  The error relative to exact attention over the decoded pages is FP32 rounding for FP16 pages. On a CPU, pages of
 *  INT4, INT3, INT2 and gain-shape codes meet queries and probabilities that are rounded to 7 or 8 bits; INT8 meets
 *  16 bits with "avx512vnni" and "amx", and FP32 with others. The error stays well below that of the format itself. On
 *  a GPU, queries, probabilities and their products with a page's scales are rounded to FP16.
 *
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (a CUDA graph is captured, see ::kvq_sequence_reserve; positions do not
 *           ascend beyond the mask); KVQ_E_UNSUPPORTED (a mask, and the policy evicts); KVQ_E_MEMORY; KVQ_E_LIMIT
 * (workspace); KVQ_E_BACKEND. \threads any number of calls on a cache at once, also on the same sequences, which are
 * only read. Where the policy evicts by queries, those of every call count, in any order. \since 1.0 */
KVQ_API kvq_status kvq_attend(kvq_cache* cache, int32_t layer, const kvq_attend_batch* batch, kvq_error* error);

/** New tokens of one or more sequences, their queries, and where results go. Rows of `k`, `v`, `q` and `output` (one
    per token) are ordered by sequence. */
typedef struct kvq_extend_batch {
  uint32_t struct_size;
  int32_t n_sequences;            /**< >= 1. */
  kvq_sequence* const* sequences; /**< Sequences of this cache, all different.
                                       \length n_sequences \memory host \keeps call */
  const int32_t* token_counts;    /**< New tokens per sequence, each >= 1; NULL (default): one each.
                                       \nullable \length n_sequences \memory host \keeps call */
  const int32_t* positions;       /**< As for ::kvq_append; NULL (default): consecutive in each sequence.
                                       \nullable \length sum(token_counts) \memory host \keeps call */
  const void* k;                  /**< As for ::kvq_append.
                                       \length strided(sum(token_counts), layer.kv_heads, layer.key_dim)
                                       \memory context \keeps call */
  const void* v;                  /**< As for ::kvq_append. \nullable
                                       \length strided(sum(token_counts), layer.kv_heads, layer.value_dim)
                                       \memory context \keeps call */
  const void* q;                  /**< As in kvq_attend_batch.
                                       \length strided(sum(token_counts), layer.q_heads, layer.key_dim)
                                       \memory context \keeps call */
  void* output;                   /**< As in kvq_attend_batch.
                                       \length strided(sum(token_counts), layer.q_heads, layer.value_dim)
                                       \memory context \keeps call */
  kvq_dtype dtype;                /**< Element type of `k` and `v`; ::KVQ_F32 by default. */
  kvq_dtype q_dtype;              /**< ::KVQ_F32 by default. */
  kvq_dtype output_dtype;         /**< ::KVQ_F32 by default. */
  int32_t sliding_window;         /**< As in kvq_attend_batch. */
  float logit_softcap;            /**< As in kvq_attend_batch. */
  int32_t mask_slots;             /**< As in kvq_attend_batch. */
  int64_t k_token_stride;         /**< As in kvq_append_batch. */
  int64_t k_head_stride;          /**< As in kvq_append_batch. */
  int64_t v_token_stride;         /**< As in kvq_append_batch. */
  int64_t v_head_stride;          /**< As in kvq_append_batch. */
  int64_t q_token_stride;         /**< As in kvq_attend_batch. */
  int64_t q_head_stride;          /**< As in kvq_attend_batch. */
  int64_t output_token_stride;    /**< As in kvq_attend_batch. */
  int64_t output_head_stride;     /**< As in kvq_attend_batch. */
  float* lse;                     /**< As in kvq_attend_batch.
                                       \nullable \length sum(token_counts) * layer.q_heads \memory context
                                       \keeps call */
  const float* sinks;             /**< As in kvq_attend_batch.
                                       \nullable \length layer.q_heads \memory context \keeps call */
  const uint32_t* mask;           /**< As in kvq_attend_batch; the length of a sequence includes its new tokens.
                                       \nullable \length sum(token_counts) * words(mask_slots) \memory context
                                       \keeps call */
  const int32_t* rope_positions;  /**< As in kvq_append_batch, for keys and queries.
                                       \nullable \length sum(token_counts) * 3 \memory context \keeps call */
} kvq_extend_batch;

/** Fill with defaults (one dense F32 token and its query per sequence).
 *  \param batch  \nullable
 *  \param size   sizeof(kvq_extend_batch).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_extend_batch_init(kvq_extend_batch* batch, size_t size);

/** Append tokens to one layer of several sequences and attend with their queries: all of it or nothing.
 *
 *  A query sees older tokens as they are stored (for up to ::KVQ_PAGE_SLOTS tokens of a sequence when the first new one
 *  arrives, for more when the call begins), and the new tokens up to its own as they are given, rounded to FP16: pages
 *  of these are sealed after attention. So a prompt loses no more in long chunks than token by token; after
 *  ::kvq_append, ::kvq_attend shows a chunk's queries its own tokens in the formats of sealed pages. The stored pages
 *  are those of ::kvq_append, the results those of ::kvq_attend.
 *
 *  Layers that read the pages of another one have no keys to give: extend that one, then call ::kvq_attend for these.
 *  They see the pages as they are then, sealed ones of the new tokens too.
 *
 *  During the call, pages of the new tokens take the memory of FP16. While a stream is captured (see
 *  ::kvq_sequence_reserve), it takes at most ::KVQ_PAGE_SLOTS tokens per sequence and no positions.
 *
 *  \returns as ::kvq_append_sequences and ::kvq_attend.
 *  \threads exclusive use of these sequences; others of the cache may be used at the same time.
 *  \since 1.0 */
KVQ_API kvq_status kvq_extend(kvq_cache* cache, int32_t layer, const kvq_extend_batch* batch, kvq_error* error);

/** Sequences of a step, and a number of tokens for each. */
typedef struct kvq_step_batch {
  uint32_t struct_size;
  int32_t n_sequences;            /**< >= 1. */
  kvq_sequence* const* sequences; /**< Sequences of this cache, all different.
                                       \length n_sequences \memory host \keeps call */
  const int32_t* token_counts;    /**< See ::kvq_step_begin and ::kvq_step_commit. NULL by default.
                                       \nullable \length n_sequences \memory host \keeps call */
  const int32_t* kept_slots;      /**< For ::kvq_step_commit: `token_counts[i]` tokens of the step for sequence i,
                                       counted from 0 in the order of appending, strictly ascending. NULL (default): the
                                       first ones.
                                       \nullable \length sum(token_counts) \memory host \keeps call */
} kvq_step_batch;

/** Fill with defaults.
 *  \param batch  \nullable
 *  \param size   sizeof(kvq_step_batch).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_step_batch_init(kvq_step_batch* batch, size_t size);

/** Begin a step: appends to all layers of some sequences, which ::kvq_step_commit keeps or ::kvq_step_abort takes back.
 *
 *  Preallocates for all layers what `token_counts[i]` more tokens of sequence i (NULL: one each), their queries and the
 *  calls themselves can need, as ::kvq_sequence_reserve does for single tokens, or refuses with nothing changed. So an
 *  engine never runs out of memory in the middle of its layers, and can take back any number of draft tokens, whatever
 *  pages were sealed meanwhile: until the step ends, their FP16 originals are kept, which takes the memory of so many
 *  more FP16 pages where a count is above ::KVQ_PAGE_SLOTS.
 *
 *      kvq_step_begin(cache, &batch, ...);              // token_counts: draft tokens and the one before them
 *      kvq_extend(cache, layer, ...);                   // for every layer
 *      kvq_step_commit(cache, &batch, ...);             // token_counts: accepted tokens
 *
 *  Draft tokens may form a tree: inside a step of a cache that does not evict, positions may repeat and fall, each
 *  beyond the last one before the step. A mask says which of the newest slots a query sees, and `kept_slots` of
 *  ::kvq_step_commit which tokens remain. A page whose positions are not consecutive takes 128 bytes more, which an
 *  append allocates.
 *
 *  Inside, these sequences take appends, extensions and attention of at most so many tokens of a layer, and calls that
 *  only read; others return KVQ_E_STATE: ::kvq_sequence_truncate, ::kvq_sequence_fork, ::kvq_sequence_save,
 *  ::kvq_sequence_reserve, ::kvq_sequence_recode, ::kvq_cache_save, ::kvq_compress and another begin. A sequence may be
 *  destroyed. If a call fails inside, the step goes on: try again, or abort. A sequence that has waited long enough for
 *  scales (`calibrate: first`) finds them when the step begins, also if the call then fails, and none inside a step.
 *
 *  A step may surround launches of a CUDA graph. The graph stays valid if the sequence had room for the tokens (see
 *  ::kvq_sequence_room) and they are at most ::KVQ_PAGE_SLOTS; otherwise begin the first step before the capture.
 *
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (in a step already; a stream is being captured); KVQ_E_UNSUPPORTED (a
 *           router chooses the formats of pages); KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.
 *  \threads exclusive use of these sequences, until the step ends.
 *  \since 1.0 */
KVQ_API kvq_status kvq_step_begin(kvq_cache* cache, const kvq_step_batch* batch, kvq_error* error);

/** End the step of some sequences: of all that began together, or of any.
 *
 *  Sequence i keeps the first `token_counts[i]` tokens, from 0 on, that each layer received since the step began; NULL:
 *  all. With `kept_slots`, which needs `token_counts`, it keeps `token_counts[i]` tokens from anywhere in the step. The
 *  result is that of appending these alone, to the bit; of an evicting policy's observations, too. Positions of tokens
 *  that remain must ascend. Memory is needed only if their positions have gaps that the step's tokens had not. On a GPU
 *  this waits for the stream if a CUDA graph has been captured.
 *
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (a layer has received fewer tokens; kept_slots without token_counts, or not
 *           ascending; kept tokens whose positions do not ascend); KVQ_E_STATE (not in a step; NULL, and layers
 *           have received different numbers of tokens; fewer are kept than launches of a graph appended, and these
 *           appended more than the step's tokens, or several at once by ::kvq_append, which keeps no originals);
 *           KVQ_E_UNSUPPORTED (fewer tokens than were appended, where the policy evicts by h2o, or by the newest
 *           queries and more than its window attended; others than the first, where it evicts); KVQ_E_MEMORY;
 *           KVQ_E_LIMIT; KVQ_E_BACKEND. A refused step goes on.
 *  \threads exclusive use of these sequences.
 *  \since 1.0 */
KVQ_API kvq_status kvq_step_commit(kvq_cache* cache, const kvq_step_batch* batch, kvq_error* error);

/** End the step of some sequences, each as it was before. `token_counts` and `kept_slots` are not read.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (not in a step; launches of a graph appended tokens that cannot be
 *           taken back, see ::kvq_step_commit); KVQ_E_BACKEND.
 *  \threads exclusive use of these sequences.
 *  \since 1.0 */
KVQ_API kvq_status kvq_step_abort(kvq_cache* cache, const kvq_step_batch* batch, kvq_error* error);

/* ------------------------------------------------------------------------------------------------------------ pools */

/** Tokens in memory of the host, for engines that keep block tables: the layers and formats of a cache, but no
 *  sequences of its own. The memory of a layer is cut into blocks of `block_tokens` tokens for all KV heads, which the
 *  engine allocates, shares by prefix, copies, swaps and frees as it likes; sequences are rows of block numbers:
 *
 *      kvq_pool_layout(cache, layer, block_tokens, &layout, ...);  // bytes of a block
 *      kvq_pool_create(cache, &options, &pool, ...);               // where the blocks are
 *      kvq_pool_plan_create(pool, &limits, &plan, ...);            // all memory that calls need
 *
 *      kvq_pool_plan_batch(plan, &batch, ...);                     // once for all layers
 *      kvq_pool_extend(plan, layer, &call, ...);                   // for every layer
 *
 *  A full page of ::KVQ_PAGE_SLOTS tokens is encoded in the layer's format, in its block, by the call that brings its
 *  last token. FP16 numbers of the newest two pages are in a tail: memory for two FP16 pages of every KV head, which
 *  the engine assigns to each sequence that grows, as it does the state of a recurrent layer. Layers in FP16 need no
 *  tails. So blocks of full pages may be shared by any number of sequences, at the same place of each, and copies of
 *  blocks and of a tail are all there is to move. Tokens are dropped by leaving them out of the next length: of what
 *  was stored with this tail, the newest ::KVQ_PAGE_SLOTS at least.
 *
 *  Encoded pages are bit for bit those of a sequence of the cache. The cache's policy may not evict or route, and
 *  neither `sink` nor `recent` nor `calibrate` apply: every full page is encoded, and scales are those of the cache's
 *  `centres`. Bytes of zero are zeros as keys and values. Bytes that no call has written, and blocks that are not what
 *  their sequence's table says, give meaningless results, and never a read or a write outside of the pool.
 *
 *  Blocks on a GPU have an order of bytes of their own; ::kvq_pool_read_block and ::kvq_pool_write_block convert to and
 *  from the order that all platforms share. \destroy kvq_pool_destroy */
typedef struct kvq_pool kvq_pool;

/** Memory for the calls of one thread at a time, and the batch that they work on. \destroy kvq_pool_plan_destroy */
typedef struct kvq_pool_plan kvq_pool_plan;

/** Sizes of a layer's memory in a pool. */
typedef struct kvq_block_layout {
  uint32_t struct_size;
  int32_t alignment;   /**< Of the memory of blocks and tails, and of their strides. */
  int64_t block_bytes; /**< One block: the pages of all KV heads. */
  int64_t tail_bytes;  /**< One tail; 0: the layer is in FP16, or has no tokens of its own, and needs none. */
} kvq_block_layout;

/** Get the sizes of a layer's blocks and tails, which depend on its heads and format alone. A layer without tokens of
 *  its own has blocks of 0 bytes.
 *  \param block_tokens  tokens of a block, a multiple of ::KVQ_PAGE_SLOTS.
 *  \param layout        its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED (pages that blocks cannot hold: CommVQ, a router, a policy that
 *           evicts, positions of several streams); KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_pool_layout(const kvq_cache* cache, int32_t layer, int32_t block_tokens,
                                   kvq_block_layout* layout, kvq_error* error);

/** Consecutive blocks of one layer. */
typedef struct kvq_block_range {
  uint32_t struct_size;
  int32_t n_blocks; /**< The same in all layers. */
  void* data;       /**< First block. NULL: the layer has no tokens of its own.
                         \nullable \length n_blocks * stride \memory context \keeps handle */
  int64_t stride;   /**< Bytes from one block to the next; 0 (default): those of a block. */
} kvq_block_range;

/** Fill with defaults.
 *  \param blocks  \nullable
 *  \param size    sizeof(kvq_block_range).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_block_range_init(kvq_block_range* blocks, size_t size);

/** Memory of a pool. */
typedef struct kvq_pool_options {
  uint32_t struct_size;
  int32_t block_tokens; /**< A multiple of ::KVQ_PAGE_SLOTS. */
  int32_t n_ranges;     /**< Pieces of memory that each layer's blocks lie in, 1 ... 6; 1 by default. Blocks are
                             numbered through them. */
  int32_t n_tails;      /**< 0 by default: no layer needs any. */
  const kvq_block_range* ranges; /**< `[n_layers, n_ranges]`. \length n_layers * n_ranges \memory host \keeps call */
  void* const* tails;  /**< `[n_layers]`: memory of each layer's tails, NULL for one that needs none. NULL (default):
                            no layer does.
                            \nullable \length n_layers \memory host \keeps handle */
  int64_t tail_stride; /**< Bytes from one tail to the next; 0 (default): those of a tail. */
  int32_t n_layers;    /**< Those of the cache. */
  int32_t reserved;    /**< 0. */
} kvq_pool_options;

/** Fill with defaults.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_pool_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_pool_options_init(kvq_pool_options* options, size_t size);

/** Create a pool in the host's memory, which the caller keeps until the pool is destroyed.
 *  \param result  receives the handle. \parent cache
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: memory or a stride that is not aligned); KVQ_E_UNSUPPORTED as for
 *           ::kvq_pool_layout; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_pool_create(kvq_cache* cache, const kvq_pool_options* options, kvq_pool** result,
                                   kvq_error* error);

/** Destroy a pool; its plans stay valid.
 *  \param pool  \nullable
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_pool_destroy(kvq_pool* pool);

/** Copy a block of a layer to host memory, in the order of bytes that all platforms share.
 *  \param buffer    NULL: only get the size. \nullable \length capacity \memory host \keeps call
 *  \param capacity  in bytes.
 *  \param size      receives the bytes: `block_bytes` of ::kvq_pool_layout. \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.
 *  \threads no call may write to the block.
 *  \since 1.0 */
KVQ_API kvq_status kvq_pool_read_block(const kvq_pool* pool, int32_t layer, int32_t block, void* buffer,
                                       size_t capacity, size_t* size, kvq_error* error);

/** Write a block of a layer from such bytes, wherever they come from: numbers that no encoder writes are refused.
 *  \param buffer  \length size \memory host \keeps call
 *  \param size    `block_bytes` of ::kvq_pool_layout.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (a number that no encoder writes); KVQ_E_MEMORY; KVQ_E_LIMIT;
 *           KVQ_E_BACKEND.
 *  \threads exclusive use of the block.
 *  \since 1.0 */
KVQ_API kvq_status kvq_pool_write_block(kvq_pool* pool, int32_t layer, int32_t block, const void* buffer, size_t size,
                                        kvq_error* error);

/** Limits of a plan's batches, which its memory depends on. */
typedef struct kvq_pool_limits {
  uint32_t struct_size;
  int32_t max_sequences; /**< Of a batch. */
  int32_t max_tokens;    /**< New tokens of all sequences of a batch. */
  int32_t max_queries;   /**< New tokens of one sequence; 0 (default): as many as `max_tokens`. */
  int32_t max_blocks;    /**< Blocks of one sequence. */
  int32_t reserved;      /**< 0. */
} kvq_pool_limits;

/** Fill with defaults.
 *  \param limits  \nullable
 *  \param size    sizeof(kvq_pool_limits).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_pool_limits_init(kvq_pool_limits* limits, size_t size);

/** Create a plan with memory for all calls within the limits: on a GPU nothing is allocated later, on a CPU only when a
 *  batch holds more pages than any before, by ::kvq_pool_plan_batch. An engine needs one, or one for each thread.
 *  \param result  receives the handle. \parent pool
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_pool_plan_create(kvq_pool* pool, const kvq_pool_limits* limits, kvq_pool_plan** result,
                                        kvq_error* error);

/** Destroy a plan. \param plan  \nullable
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_pool_plan_destroy(kvq_pool_plan* plan);

/** Get the bytes that a plan has allocated, its object included; they count as the context's.
 *  \param plan  \nullable
 *  \returns the bytes; 0 for NULL.
 *  \threads any.  \since 1.0 */
KVQ_API uint64_t kvq_pool_plan_bytes(const kvq_pool_plan* plan);

/** Sequences of a pool. On a GPU all arrays are in device memory, are read in stream order and may change in place
 *  between replays of a CUDA graph; what is out of range there counts as absent, while a CPU refuses it. */
typedef struct kvq_pool_batch {
  uint32_t struct_size;
  int32_t n_sequences;         /**< >= 1. Sequences of length 0 fill a batch up. */
  int32_t n_tokens;            /**< Rows of the calls' tensors, at least the new tokens of all sequences. */
  int32_t max_queries;         /**< Most new tokens of a sequence; 0 (default): the plan's limit, and `n_tokens` if that
                                    is less. The closer the better on a GPU. */
  int32_t max_length;          /**< Tokens of the longest sequence; 0 (default): the plan's limit. */
  int32_t reserved;            /**< 0. */
  const int32_t* query_starts; /**< First row of each sequence, from 0 on and ascending, and the end: the rows between
                                    are its newest tokens.
                                    \length n_sequences + 1 \memory context \keeps handle */
  const int32_t* lengths;      /**< Tokens of each sequence, new ones included. Token t is at position t.
                                    \length n_sequences \memory context \keeps handle */
  const int32_t* block_table;  /**< `[n_sequences, table_stride]`: numbers of each sequence's blocks, in order. New
                                    tokens go to blocks that no other sequence of the batch writes to.
                                    \length n_sequences * table_stride \memory context \keeps handle */
  int64_t table_stride;        /**< Numbers from one row to the next; 0 (default): the plan's `max_blocks`. */
  const int32_t* tails;        /**< The tail of each sequence; read only for sequences that have new tokens or a page
                                    that is not full. NULL (default): the pool has no tails.
                                    \nullable \length n_sequences \memory context \keeps handle */
} kvq_pool_batch;

/** Fill with defaults.
 *  \param batch  \nullable
 *  \param size   sizeof(kvq_pool_batch).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_pool_batch_init(kvq_pool_batch* batch, size_t size);

/** Find the pages of a batch, once for the calls on all layers. A CPU reads the arrays during this call; on a GPU it is
 *  a launch that a CUDA graph may capture, with those of the layers.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: beyond the plan's limits; two sequences that write to one block or tail);
 *           KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.
 *  \threads exclusive use of `plan`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_pool_plan_batch(kvq_pool_plan* plan, const kvq_pool_batch* batch, kvq_error* error);

/** New tokens of one layer, their queries, and where results go. */
typedef struct kvq_pool_call {
  uint32_t struct_size;
  int32_t n_tokens;            /**< Rows of the tensors: `n_tokens` of the planned batch. */
  kvq_dtype dtype;             /**< Element type of `k` and `v`; ::KVQ_F32 by default. */
  kvq_dtype q_dtype;           /**< ::KVQ_F32 by default. */
  kvq_dtype output_dtype;      /**< ::KVQ_F32 by default. */
  int32_t sliding_window;      /**< As in kvq_attend_batch. Nothing is freed: blocks are the engine's. */
  float logit_softcap;         /**< As in kvq_attend_batch. */
  int32_t mask_slots;          /**< As in kvq_attend_batch. */
  const void* k;               /**< `[n_tokens, kv_heads, key_dim]`, before RoPE unless the cache has ::KVQ_ROPE_NONE.
                                    NULL (default) for ::kvq_pool_attend.
                                    \nullable \length strided(n_tokens, layer.kv_heads, layer.key_dim) \memory context
                                    \keeps call */
  const void* v;               /**< `[n_tokens, kv_heads, value_dim]`; NULL where values are a prefix of keys.
                                    \nullable \length strided(n_tokens, layer.kv_heads, layer.value_dim)
                                    \memory context \keeps call */
  const void* q;               /**< `[n_tokens, q_heads, key_dim]`, as in kvq_attend_batch. NULL (default) for
                                    ::kvq_pool_append.
                                    \nullable \length strided(n_tokens, layer.q_heads, layer.key_dim) \memory context
                                    \keeps call */
  void* output;                /**< `[n_tokens, q_heads, value_dim]`, as in kvq_attend_batch. NULL (default) for
                                    ::kvq_pool_append.
                                    \nullable \length strided(n_tokens, layer.q_heads, layer.value_dim)
                                    \memory context \keeps call */
  int64_t k_token_stride;      /**< As in kvq_append_batch. */
  int64_t k_head_stride;       /**< As in kvq_append_batch. */
  int64_t v_token_stride;      /**< As in kvq_append_batch. */
  int64_t v_head_stride;       /**< As in kvq_append_batch. */
  int64_t q_token_stride;      /**< As in kvq_attend_batch. */
  int64_t q_head_stride;       /**< As in kvq_attend_batch. */
  int64_t output_token_stride; /**< As in kvq_attend_batch. */
  int64_t output_head_stride;  /**< As in kvq_attend_batch. */
  float* lse;                  /**< As in kvq_attend_batch.
                                    \nullable \length n_tokens * layer.q_heads \memory context \keeps call */
  const float* sinks;          /**< As in kvq_attend_batch.
                                    \nullable \length layer.q_heads \memory context \keeps call */
  const uint32_t* mask;        /**< As in kvq_attend_batch; the length of a sequence includes its new tokens.
                                    \nullable \length n_tokens * words(mask_slots) \memory context \keeps call */
} kvq_pool_call;

/** Fill with defaults.
 *  \param call  \nullable
 *  \param size  sizeof(kvq_pool_call).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_pool_call_init(kvq_pool_call* call, size_t size);

/** Store the new tokens of the planned batch in a layer. If it fails, pages that were full and tokens of the tails are
 *  as they were. A GPU reports numbers beyond FP16 in a later call, and stores the nearest ones.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: a number beyond FP16; the layer reads the pages of another one); KVQ_E_STATE
 *           (no batch has been planned); KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.
 *  \threads exclusive use of `plan`, and of the blocks and tails that are written.
 *  \since 1.0 */
KVQ_API kvq_status kvq_pool_append(kvq_pool_plan* plan, int32_t layer, const kvq_pool_call* batch, kvq_error* error);

/** Attend with the queries of the planned batch's newest tokens, which the layer, or the one whose pages it reads,
 *  holds.
 *  \returns as ::kvq_attend; KVQ_E_STATE (no batch has been planned).
 *  \threads exclusive use of `plan`; no call may write to the sequences' blocks and tails.
 *  \since 1.0 */
KVQ_API kvq_status kvq_pool_attend(kvq_pool_plan* plan, int32_t layer, const kvq_pool_call* batch, kvq_error* error);

/** Store new tokens and attend with their queries: these see older tokens as they are stored when the call begins, and
 *  those of the call up to their own as they are given, rounded to FP16.
 *  \returns as ::kvq_pool_append and ::kvq_attend.
 *  \threads exclusive use of `plan`, and of the blocks and tails that are written.
 *  \since 1.0 */
KVQ_API kvq_status kvq_pool_extend(kvq_pool_plan* plan, int32_t layer, const kvq_pool_call* batch, kvq_error* error);

/* ----------------------------------------------------------------------------------------------------------- usage */

/** Memory in use, by purpose. All sizes are bytes as allocated, including padding and bookkeeping. */
typedef struct kvq_usage {
  uint32_t struct_size;
  int32_t reserved;          /**< 0. */
  int64_t scalars;           /**< Key and value scalars held: (key_dim + value_dim) * slots of all heads, or key_dim *
                                  slots where values are a prefix of keys. */
  uint64_t sealed_bytes;     /**< Pages in their final compressed format. */
  uint64_t fp16_bytes;       /**< FP16 pages: open, recent, sink, or under an fp16 policy. */
  uint64_t metadata_bytes;   /**< Page records, positions, page lists and sequence objects. */
  uint64_t workspace_bytes;  /**< Workspace of kvq_attend and the cache object; 0 for one sequence. */
  uint64_t total_bytes;      /**< Sum of the four above, of `transient_bytes` and of `state_bytes`. */
  uint64_t plain_fp16_bytes; /**< 2 * scalars: the size of an uncompressed FP16 cache. */
  uint64_t sealed_pages;
  uint64_t fp16_pages;
  uint64_t shared_pages;    /**< Pages that more than one sequence holds; counted in full for one sequence. */
  double bits_per_scalar;   /**< 8 * (sealed + fp16 + metadata bytes) / scalars; 0 when empty. */
  uint64_t transient_bytes; /**< Predicted only: the most that a call takes beside and frees when it returns; with a
                                 policy that evicts, also what each sequence keeps free for ::kvq_compress. */
  uint64_t state_bytes;     /**< Copies that ::kvq_sequence_put_state keeps; counted in full for one sequence, even if
                                 forks share them. Not predicted. */
} kvq_usage;

/** Get the bytes used by one sequence, or by the whole cache with shared pages counted once.
 *  \param sequence  NULL: the whole cache. \nullable
 *  \param usage     its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BACKEND.
 *  \threads read-only for one sequence; exclusive use of all sequences when `sequence` is NULL.
 *  \since 1.0 */
KVQ_API kvq_status kvq_cache_usage(const kvq_cache* cache, const kvq_sequence* sequence, kvq_usage* usage,
                                   kvq_error* error);

/** Predict, to the byte, what ::kvq_cache_usage would report for the whole cache if it held only new sequences.
 *  Computed from sizes: nothing is allocated, and what the cache holds now does not matter. A cache whose `max_bytes`
 *  is the predicted `total_bytes` runs to the last token.
 *
 *  Sequences that find scales (`calibrate: first`) are predicted with tokens that differ, so that 128 suffice.
 *
 *  The prediction assumes that ::kvq_sequence_reserve preallocated `tokens` tokens for each sequence before they were
 *  appended to every layer at consecutive positions, that no call has more than the larger of ::KVQ_PAGE_SLOTS and
 *  `queries` tokens of a sequence, and, if `queries` is not 0, that each layer attended with so many queries of each
 *  sequence in one batch and without sinks. Calls of several threads at once take one workspace each.
 *
 *  \param sequences  number of sequences, >= 1.
 *  \param tokens     per sequence, >= 0.
 *  \param queries    per sequence, >= 0; 0: no attention.
 *  \param usage      its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL; a number out of range; too many pages or queries to count);
 *           KVQ_E_UNSUPPORTED (a router chooses the formats of pages, so their sizes are not known in advance;
 *           `queries` above 0 on a CUDA context, whose workspace depends on the device); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_cache_predict_usage(const kvq_cache* cache, int32_t sequences, int32_t tokens, int32_t queries,
                                           kvq_usage* usage, kvq_error* error);

/* --------------------------------------------------------------------------------------------------- linear layers */

/** Linear layer y = x W^T + b with weights of 1 to 8 bits: NUQ, VQ and TCQ of Q-Palette, and trellises of single
 *  weights. Immutable; several threads may use it at once.
 *
 *  Inputs are rotated before the product: random signs, then a Hadamard matrix. Matrices with the same `seed` in their
 *  options and the same number of columns share the rotation, which ::qp_linear_shared then computes once.
 *  \destroy qp_matrix_destroy */
typedef struct qp_matrix qp_matrix;

/** Return the number of schemes that qp_quantize_options::scheme can name.
 *  \threads any.  \since 1.0 */
KVQ_API int32_t qp_scheme_count(void);
/** Return the name of scheme `index`: a family and the bits per weight, such as "nuq-4", "vq-2.5", "tcq-2.75",
 *  "tcx-3", "fp16".
 *
 *  - `nuq`: each weight is one of 2^bits levels. 1, 2, 3, 4, 5, 6 and 8 bits.
 *  - `vq`: each pair of weights is one of 4^bits points. 1.5 to 5 bits in steps of a half.
 *  - `tcq`: pairs on a path through a trellis of 65 536 states, with levels from a table. 1.5 to 5 bits in steps of a
 *    quarter; odd quarters code half of each row with a quarter bit less and half with a quarter bit more.
 *  - `tcx`: single weights on such a path, with 256 levels: less error and faster. 1.5 to 5 bits in steps of a half.
 *  - `fp16`: weights rounded to FP16, not rotated.
 *
 *  \returns NULL if `index` is out of range. \nullable \length string \keeps static
 *  \threads any.  \since 1.0 */
KVQ_API const char* qp_scheme_name(int32_t index);
/** Return the bits per weight of a scheme, without scales and signs; 0 if there is no scheme of that name.
 *  \param name  \nullable \length string \memory host \keeps call
 *  \threads any.  \since 1.0 */
KVQ_API double qp_scheme_bits(const char* name);

/** Receive the progress of a long call, and decide whether it goes on. Called now and then from the calling thread;
 *  may not use the objects of the call.
 *  \param done  estimated share of the time, 0 ... 1, never decreasing.
 *  \returns 0 to go on; anything else ends the call with ::KVQ_E_CANCELLED. */
typedef int32_t (*kvq_progress_hook)(void* user, double done);

/** Use of the Hessian in quantization. \values */
typedef int32_t qp_rounding;
enum {
  QP_ROUNDING_LDLQ = 0,   /**< Code columns from the last to the first, each corrected for the errors of the columns
                               after it (block LDLQ). */
  QP_ROUNDING_NEAREST = 1 /**< Round each weight, pair or tile to the nearest code; the Hessian only determines
                               qp_matrix_info::proxy_error. */
};

/** Options of ::qp_quantize. */
typedef struct qp_quantize_options {
  uint32_t struct_size;
  kvq_dtype dtype;      /**< Element type of the weights; ::KVQ_F32 by default. */
  const char* scheme;   /**< See ::qp_scheme_name; "nuq-4" by default. \length string \memory host \keeps call */
  uint64_t seed;        /**< Seed of the random signs; 1 by default. */
  const float* hessian; /**< `[columns, columns]`, the mean of x x^T over inputs x; NULL (default): weights are rounded
                             without one. \nullable \length columns * columns \memory host \keeps call */
  qp_rounding rounding; /**< Use of the Hessian; ::QP_ROUNDING_LDLQ by default. */
  int32_t reserved;     /**< 0. */
  double damping;       /**< Share of the Hessian's mean diagonal that is added to its diagonal, 0 ... 1; 0.01 by
                             default. */
  const float* bias;    /**< Bias b, stored unchanged; NULL (default): none.
                             \nullable \length rows \memory host \keeps call */
  kvq_progress_hook progress; /**< Called every few milliseconds while the CPU works, on a GPU after some rows; NULL
                                   (default): not called. \nullable \keeps call */
  void* progress_user;        /**< Passed to `progress`. \nullable \keeps call */
} qp_quantize_options;

/** Fill with defaults.
 *  \param options  \nullable
 *  \param size     sizeof(qp_quantize_options).
 *  \threads any.  \since 1.0 */
KVQ_API void qp_quantize_options_init(qp_quantize_options* options, size_t size);

/** Quantize a matrix. The result depends only on the arguments, not on threads or instruction sets.
 *
 *  \param w        weights `[rows, columns]` of `options->dtype`. \length rows * columns \memory host \keeps call
 *  \param rows     outputs of the layer, 1 ... 2^24.
 *  \param columns  inputs of the layer, a multiple of 64 from 64 to 2^20.
 *  \param result   receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (shape, dtype, unknown scheme, weights, bias or Hessian not finite, a Hessian that
 *           is not symmetric or, after damping, not positive definite); KVQ_E_CANCELLED; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *           Rows of zeros stay zeros.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status qp_quantize(kvq_context* context, const qp_quantize_options* options, const void* w, int64_t rows,
                               int64_t columns, qp_matrix** result, kvq_error* error);

/** Decode rows of the matrix that ::qp_linear multiplies by, in the order of the original matrix.
 *  \param w  receives `[rows, columns]` floats. \length rows * matrix.columns \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL, rows beyond the last one); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status qp_matrix_dequantize(const qp_matrix* matrix, int64_t first_row, int64_t rows, float* w,
                                        kvq_error* error);

/** Compute y = x W^T + b.
 *
 *  Inputs are rotated in FP32 and, except for `fp16`, rounded to 8-bit integers with one scale per 256 of them.
 *  Products are summed exactly within these blocks and in FP32 across them, in the same order on every processor: a
 *  row of `y` depends only on its row of `x`. Allocates nothing once a batch of this size has been seen.
 *
 *  \param x      `[batch, columns]` of `dtype`. \length batch * matrix.columns \memory context \keeps call
 *  \param batch  rows of `x` and `y`, >= 1.
 *  \param y      receives `[batch, rows]` of `dtype`; may not overlap `x`.
 *                \length batch * matrix.rows \memory context \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED (the context's device has no kernels for packed matrices);
 *           KVQ_E_MEMORY; KVQ_E_LIMIT. NaN or infinity in a row of `x` makes its row of `y` NaN.
 *  \threads any, also on the same matrix.
 *  \since 1.0 */
KVQ_API kvq_status qp_linear(const qp_matrix* matrix, const void* x, int32_t batch, void* y, kvq_dtype dtype,
                             kvq_error* error);

/** Multiply several matrices by the same inputs in one call: y[i] = x W[i]^T + b[i]. Results are those of separate
 *  calls. Schemes and numbers of rows may differ.
 *
 *  \param matrices  matrices of one context with the same number of columns; all that rotate have the same signs.
 *                   \length n \memory host \keeps call
 *  \param n         number of matrices, 1 ... 1024.
 *  \param x         as for ::qp_linear. \length batch * matrices.columns \memory context \keeps call
 *  \param y         outputs, `[batch, rows of matrix i]` each, in the context's memory; they may not overlap each
 *                   other or `x`. \length n \memory host \keeps call
 *  \returns as ::qp_linear; KVQ_E_MISMATCH (matrices that do not share their inputs).
 *  \threads any, also on the same matrices.
 *  \since 1.0 */
KVQ_API kvq_status qp_linear_shared(const qp_matrix* const* matrices, int32_t n, const void* x, int32_t batch,
                                    void* const* y, kvq_dtype dtype, kvq_error* error);

/** Description of a matrix. */
typedef struct qp_matrix_info {
  uint32_t struct_size;
  int32_t has_bias; /**< 1 or 0. */
  int64_t rows;
  int64_t columns;
  uint64_t bytes;     /**< Bytes of codes, scales, signs and bias. */
  double bits;        /**< True bits per weight: 8 * bytes / (rows * columns), without the bias. */
  double error;       /**< |W' - W|^2 / |W|^2 at quantization, W' being the decoded W; 0 for a matrix of zeros. */
  double proxy_error; /**< tr(E H E^T) / tr(W H W^T) with E = W' - W and the Hessian as given; 0 without a Hessian. */
  const char* scheme; /**< As in qp_quantize_options. \length string \keeps static */
} qp_matrix_info;

/** Describe a matrix.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status qp_matrix_describe(const qp_matrix* matrix, qp_matrix_info* info, kvq_error* error);

/** Write matrices as a safetensors file; docs/weights.md describes its layout. The same matrices give the same bytes.
 *
 *  \param matrices  \length n \memory host \keeps call
 *  \param names     names of the matrices, all different, each a string of up to 200 bytes.
 *                   \length n \memory host \keeps call
 *  \param n         number of matrices, >= 1.
 *  \param buffer    receives the file. NULL: only the size is returned.
 *                   \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the file in bytes; also if `capacity` is too small.
 *                   \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL; names); KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status qp_matrix_save(const qp_matrix* const* matrices, const char* const* names, int32_t n, void* buffer,
                                  size_t capacity, size_t* size, kvq_error* error);

/** Read one matrix from a safetensors file in memory. The file may hold other tensors and matrices, too.
 *
 *  \param buffer  contents of the file. \length size \memory host \keeps call
 *  \param size    bytes at `buffer`.
 *  \param name    name given to ::qp_matrix_save. \length string \memory host \keeps call
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL, no matrix of that name); KVQ_E_FORMAT (damaged, truncated, inconsistent
 *           sizes; the message names the tensor or field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY;
 *           KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status qp_matrix_load(kvq_context* context, const void* buffer, size_t size, const char* name,
                                  qp_matrix** result, kvq_error* error);

/** Destroy a matrix.
 *  \param matrix  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void qp_matrix_destroy(qp_matrix* matrix);

/** Predict the size of a matrix before it is quantized.
 *
 *  \param scheme     as in qp_quantize_options. \length string \memory host \keeps call
 *  \param rows       as for ::qp_quantize.
 *  \param columns    as for ::qp_quantize.
 *  \param has_bias   1 or 0.
 *  \param bytes      receives the future value of qp_matrix_info::bytes; unchanged on failure.
 *                    \length 1 \memory host \keeps call
 *  \param allocated  receives the growth of kvq_context_info::bytes of a CPU context when ::qp_quantize or
 *                    ::qp_matrix_load creates such a matrix, including padding and the object; unchanged on failure.
 *                    NULL: skip. \nullable \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL, unknown scheme, shape, `has_bias`).
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status qp_matrix_predict_bytes(const char* scheme, int64_t rows, int64_t columns, int32_t has_bias,
                                           uint64_t* bytes, uint64_t* allocated, kvq_error* error);

/* ---------------------------------------------------------------------------------------------------------- files */

/** What a file holds. \values */
typedef int32_t kvq_file_kind;
enum {
  KVQ_FILE_UNKNOWN = 0,  /**< Nothing that this library reads, or too damaged to tell. */
  KVQ_FILE_POLICY = 1,   /**< YAML for ::kvq_policy_load. */
  KVQ_FILE_CODEBOOK = 2, /**< For ::kvq_codebook_load. */
  KVQ_FILE_CENTRES = 3,  /**< For ::kvq_centres_load. */
  KVQ_FILE_ROUTER = 4,   /**< For ::kvq_router_load. */
  KVQ_FILE_MATRIX = 5,   /**< One or more, for ::qp_matrix_load. */
  KVQ_FILE_SNAPSHOT = 6, /**< Sequences, for ::kvq_cache_load; a single one for ::kvq_sequence_load too. */
  KVQ_FILE_PLAN = 7      /**< YAML for kvq_plan_load, which is experimental. */
};

/** Tell what a file holds, to hand it to the function that loads it: a snapshot by its mark, what was trained or
 *  quantized by the header of its safetensors file, policies and plans by the sections of their YAML. Headers are read
 *  as the functions that load them do, in time in proportion to the header; nothing else is looked at, so a file of a
 *  known kind may still be refused when it is loaded.
 *
 *  \param data  bytes of the whole file. \length size \memory host \keeps call
 *  \param size  bytes at `data`.
 *  \param kind  receives what they are; unchanged on failure. \length 1 \memory host \keeps call
 *  \returns KVQ_OK, also for ::KVQ_FILE_UNKNOWN; KVQ_E_ARGUMENT (NULL); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_file_type(kvq_context* context, const void* data, size_t size, kvq_file_kind* kind,
                                 kvq_error* error);

/* --------------------------------------------------------------------------------------------------- experimental */

#ifdef KVQ_EXPERIMENTAL

/** Measure which of a device's kernels are fastest for calls of ::qp_linear_shared like this one. Without a
 *  measurement, an estimate made on an H100 decides. The result applies to all matrices of the context with the same
 *  schemes and shapes, at exactly this batch; shapes that have been measured are not measured again.
 *
 *  Another kernel sums in another order, so the last bits of results may change, now and from one measurement to the
 *  next: keep the measurements (::qp_tuning_save) if results must stay the same.
 *
 *  Takes tenths of a second, waits for the context's stream and for the measurements, and temporarily allocates
 *  inputs, outputs and enough copies of the codes to fill the device's L2 cache twice. Not while a graph is captured.
 *
 *  \param matrices  as for ::qp_linear_shared. \length n \memory host \keeps call
 *  \param n         number of matrices, 1 ... 1024.
 *  \param batch     rows, >= 1. Calls with more than 1024 rows run in pieces of 1024 rows, and the pieces are measured.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MISMATCH (matrices that do not share their inputs); KVQ_E_UNSUPPORTED (a CPU
 *           context, a stream that is being captured); KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status qp_tune(const qp_matrix* const* matrices, int32_t n, int32_t batch, kvq_error* error);

/** Write the results of ::qp_tune and ::qp_tuning_load as text: one line per device, scheme and shape.
 *
 *  \param buffer    receives the text, without a NUL. NULL: only the size is returned.
 *                   \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the text in bytes; also if `capacity` is too small.
 *                   \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_UNSUPPORTED (a CPU context);
 *           KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status qp_tuning_save(kvq_context* context, char* buffer, size_t capacity, size_t* size, kvq_error* error);

/** Load earlier results of ::qp_tune. Those of another device or another version of the library are kept for
 *  ::qp_tuning_save and not used.
 *
 *  \param text    text written by ::qp_tuning_save. \length length \memory host \keeps call
 *  \param length  bytes at `text`.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (the message names the line); KVQ_E_MISMATCH (a text of another
 *           version); KVQ_E_UNSUPPORTED (a CPU context); KVQ_E_MEMORY; KVQ_E_LIMIT. On failure nothing is loaded.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status qp_tuning_load(kvq_context* context, const char* text, size_t length, kvq_error* error);

/** Trains codebooks from keys and values that the caller's engine computed on sample texts.
 *
 *      kvq_codebook_trainer_create(context, &options, &trainer, &error);
 *      for every text, for every layer: kvq_codebook_trainer_add(trainer, layer, n, k, v, KVQ_BF16, &error);
 *      for every layer:                 kvq_codebook_trainer_run(trainer, layer, hook, user, &error);
 *      kvq_codebook_trainer_result(trainer, &codebook, &error);
 *
 *  Layers are independent: if memory is short, add and run a few at a time. Mix the kinds of text that the model will
 *  see and use tens of thousands of tokens: quality depends most on training data that resembles the use.
 *  \destroy kvq_codebook_trainer_destroy */
typedef struct kvq_codebook_trainer kvq_codebook_trainer;

/** Training of value codes, and the source of the initial bits when values are encoded. \values */
typedef int32_t kvq_value_method;
enum {
  KVQ_VALUES_LEAST_SQUARES = 0, /**< Alternating least squares; a linear map proposes the bits. */
  KVQ_VALUES_NETWORK = 1        /**< The CommVQ paper's method: a network with one hidden layer, trained together with
                                     the codes by gradient descent, proposes the bits. */
};

/** Shape of the model, number of codes, and training settings. */
typedef struct kvq_codebook_trainer_options {
  uint32_t struct_size;
  int32_t n_layers;    /**< 1 ... 65536. */
  int32_t kv_heads;    /**< 1 ... 4096. */
  int32_t head_dim;    /**< A multiple of 8, 8 ... 256. */
  kvq_rope rope;       /**< ::KVQ_ROPE_HALF by default, or ::KVQ_ROPE_INTERLEAVED. */
  int32_t key_stages;  /**< 0 ... 64; 0: no codes for keys. A key scalar takes key_stages * log2(key_codes) / key_group
                            bits: with groups of 64, 11 (default) give 1.03 and 21 give 1.97. */
  int32_t key_codes;   /**< A power of two, 2 ... 256; 64 by default. */
  int32_t key_group;   /**< A divisor of head_dim / 2; 0 (default): head_dim / 2, one group per head. */
  kvq_scope key_norms; /**< ::KVQ_SCOPE_HEAD by default. */
  int32_t value_bits;  /**< 0, 1 (default) or 2; 0: no codes for values. */
  kvq_scope value_scope; /**< ::KVQ_SCOPE_LAYER by default: smaller errors, but eviction must drop a token from all
                              heads of a layer at once. */
  int32_t key_rounds;    /**< Rounds of joint refinement of all stages, at most 1000; 0 (default): chosen by the
                              library. */
  int32_t value_rounds;  /**< Rounds of least squares, or of 50 steps of the network each, at most 1000; 0 (default):
                              chosen by the library. */
  kvq_value_method value_method; /**< ::KVQ_VALUES_LEAST_SQUARES by default. */
  uint64_t seed;                 /**< Random seed; 1 by default. */
  uint64_t model_id;             /**< Any number that identifies the model's weights, as in kvq_cache_options. */
  uint64_t max_bytes;            /**< Limit on kept tokens and workspace; 0 (default): only the context's limit. */
  const char* note;          /**< At most 4096 bytes, for example the provenance of the codebooks. NULL (default): "".
                                  \nullable \length string \memory host \keeps call */
  const kvq_centres* scales; /**< Scales of this context, complete, that the cache of the codebooks will have: keys and
                                  values are scaled by them. NULL (default): as they are. \nullable \keeps call */
} kvq_codebook_trainer_options;

/** Fill with defaults. The three sizes (`n_layers`, `kv_heads`, `head_dim`) stay 0 and must be set.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_codebook_trainer_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_codebook_trainer_options_init(kvq_codebook_trainer_options* options, size_t size);

/** Create a trainer. It computes on the context's device; networks for values are trained on the host.
 *
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_codebook_trainer_create(kvq_context* context, const kvq_codebook_trainer_options* options,
                                               kvq_codebook_trainer** result, kvq_error* error);

/** Take over the finished layers of an earlier, unfinished result. Drops the tokens already added to these layers.
 *
 *  \param codebook  a codebook of the trainer's context with the same shape, seed, model and note.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: a codebook of another context); KVQ_E_MISMATCH (the message has the
 *           difference).
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_codebook_trainer_resume(kvq_codebook_trainer* trainer, const kvq_codebook* codebook,
                                               kvq_error* error);

/** Add tokens to a layer that is not finished. They are kept as FP16 until the layer is trained.
 *
 *  \param n      number of tokens, >= 1.
 *  \param k      keys before RoPE, `[n, kv_heads, head_dim]`; finite, magnitude at most 65504. May be NULL if there
 *                are no codes for keys.
 *                \nullable \length n * trainer.kv_heads * trainer.head_dim \memory host \keeps call
 *  \param v      values, same shape and rules; may be NULL if there are no codes for values.
 *                \nullable \length n * trainer.kv_heads * trainer.head_dim \memory host \keeps call
 *  \param dtype  element type of `k` and `v`.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (the layer is finished); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_codebook_trainer_add(kvq_codebook_trainer* trainer, int32_t layer, int32_t n, const void* k,
                                            const void* v, kvq_dtype dtype, kvq_error* error);

/** Train one layer on the tokens added to it, then drop them. Takes minutes for a large model and uses the context's
 *  threads. The result depends only on the options, the tokens and the kind of device.
 *
 *  \param progress  may not use `trainer`. NULL: not called. \nullable \keeps call
 *  \param user      passed to `progress`. \nullable \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: too few tokens); KVQ_E_STATE (the layer is finished, or has no tokens);
 *           KVQ_E_CANCELLED; KVQ_E_MEMORY; KVQ_E_LIMIT. After a failure the layer still has its tokens.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_codebook_trainer_run(kvq_codebook_trainer* trainer, int32_t layer, kvq_progress_hook progress,
                                            void* user, kvq_error* error);

/** Get the codebooks of the layers finished so far. They share memory with the trainer and outlive it.
 *
 *  \param result  receives the handle. \parent trainer.context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_codebook_trainer_result(const kvq_codebook_trainer* trainer, kvq_codebook** result,
                                               kvq_error* error);

/** Destroy a trainer.
 *  \param trainer  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_codebook_trainer_destroy(kvq_codebook_trainer* trainer);

/** Finds scales and centres, from keys and values that the caller's engine computed on sample texts. Scales need no
 *  text: a layer's weights alone give good ones, in milliseconds.
 *
 *      kvq_centres_trainer_create(context, &options, &trainer, &error);
 *      for every text, for every layer: kvq_centres_trainer_add(trainer, layer, n, k, v, KVQ_BF16, &error);
 *      for every layer:                 kvq_centres_trainer_run(trainer, layer, hook, user, &error);
 *      kvq_centres_trainer_result(trainer, &centres, &error);
 *
 *  or, with `key_scales` and `value_scales` alone,
 *
 *      for every layer: kvq_centres_trainer_add_weights(trainer, layer, &weights, &error);
 *      for every layer: kvq_centres_trainer_run(trainer, layer, NULL, NULL, &error);
 *
 *  Layers are independent: if memory is short, add and run a few at a time. Mix the kinds of text that the model will
 *  see and use a few hundred tokens for each centre of a head; 128 tokens suffice for scales.
 *
 *  Scales are the fourth root of what reads a channel over what it stores: of keys, squares of queries over the
 *  variance of keys; of values, squares of the output projection's columns over the variance of values. Tokens that
 *  were added count more than weights. Where neither queries nor their projection are given (for values, no output
 *  projection), uneven channels are made even. \destroy kvq_centres_trainer_destroy */
typedef struct kvq_centres_trainer kvq_centres_trainer;

/** Shape of the model, number of centres, and training settings. */
typedef struct kvq_centres_trainer_options {
  uint32_t struct_size;
  int32_t n_layers;      /**< 1 ... 65536. */
  int32_t kv_heads;      /**< 1 ... 4096. */
  int32_t head_dim;      /**< A multiple of 8, 8 ... 256. */
  kvq_rope rope;         /**< RoPE applied to the keys later; ::KVQ_ROPE_HALF by default. */
  int32_t key_centres;   /**< Centres per head for keys, 0 ... 256; 256 by default, 1: the mean, 0: none. */
  int32_t value_centres; /**< Centres per head for values, as for keys. */
  int32_t rounds;        /**< Rounds of k-means over all tokens, at most 1000; 0 (default): chosen by the library. */
  uint64_t seed;         /**< Random seed; 1 by default. */
  uint64_t model_id;     /**< Any number that identifies the model's weights, as in kvq_cache_options. */
  uint64_t max_bytes;    /**< Limit on kept tokens and workspace; 0 (default): only the context's limit. */
  const char* note;      /**< At most 4096 bytes, for example the provenance of the centres. NULL (default): "".
                              \nullable \length string \memory host \keeps call */
  int32_t key_scales;    /**< 1: find scales of keys; 0 (default): none. */
  int32_t value_scales;  /**< 1: find scales and offsets of values; 0 (default): none. */
  int32_t fold; /**< 1: scales for ::kvq_centres_read_scales, to fold into weights: values have no offsets, and where
                     queries and keys have norms, all KV heads of a layer get the same scales of keys; 0 (default): for
                     caches. */
  int32_t powers_of_two; /**< 1: scales are powers of two, so that scaling rounds nothing; 0 (default): any number. */
  int32_t rotary_dim;    /**< As in kvq_cache_options; for scales of keys. */
  float rope_base;       /**< As in kvq_cache_options, likewise. */
  const float* inv_freq; /**< As in kvq_cache_options, likewise.
                              \nullable \length rotary_dim / 2 \memory host \keeps call */
} kvq_centres_trainer_options;

/** Fill with defaults. The three sizes (`n_layers`, `kv_heads`, `head_dim`) stay 0 and must be set.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_centres_trainer_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_centres_trainer_options_init(kvq_centres_trainer_options* options, size_t size);

/** Create a trainer. It computes on the context's device.
 *
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_trainer_create(kvq_context* context, const kvq_centres_trainer_options* options,
                                              kvq_centres_trainer** result, kvq_error* error);

/** Add tokens to a layer that is not finished. They are kept as FP16 until the layer is trained.
 *
 *  \param n      number of tokens, >= 1.
 *  \param k      keys before RoPE, `[n, kv_heads, head_dim]`; finite, magnitude at most 65504. May be NULL if there
 *                are neither centres nor scales of keys.
 *                \nullable \length n * trainer.kv_heads * trainer.head_dim \memory host \keeps call
 *  \param v      values, same shape and rules; may be NULL if there are neither centres nor scales of values.
 *                \nullable \length n * trainer.kv_heads * trainer.head_dim \memory host \keeps call
 *  \param dtype  element type of `k` and `v`.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (the layer is finished); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_trainer_add(kvq_centres_trainer* trainer, int32_t layer, int32_t n, const void* k,
                                           const void* v, kvq_dtype dtype, kvq_error* error);

/** Count queries for the scales of keys of a layer that is not finished. Only sums are kept.
 *
 *  \param n        number of tokens, >= 1; of any tokens, as many times as wanted.
 *  \param q_heads  query heads, a multiple of the KV heads.
 *  \param q        queries before RoPE, finite. \length n * q_heads * trainer.head_dim \memory host \keeps call
 *  \param dtype    element type of `q`.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (the layer is finished, or the trainer finds no scales); KVQ_E_MEMORY;
 *           KVQ_E_LIMIT.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_trainer_add_queries(kvq_centres_trainer* trainer, int32_t layer, int32_t n,
                                                   int32_t q_heads, const void* q, kvq_dtype dtype, kvq_error* error);

/** Weights of one layer's attention, row-major, outputs first, as checkpoints have them; for scales without text. */
typedef struct kvq_attention_weights {
  uint32_t struct_size;
  int32_t q_heads;        /**< Query heads, a multiple of the KV heads. */
  int32_t hidden_size;    /**< Inputs of the projections of queries, keys and values, 1 ... 1048576. */
  kvq_dtype dtype;        /**< Element type of all arrays; ::KVQ_F32 by default. */
  const void* q_proj;     /**< Projection of queries. NULL: not given.
                               \nullable \length q_heads * trainer.head_dim * hidden_size \memory host \keeps call */
  const void* k_proj;     /**< Projection of keys; needed unless tokens are added.
                               \nullable \length trainer.kv_heads * trainer.head_dim * hidden_size \memory host
                               \keeps call */
  const void* v_proj;     /**< Projection of values; needed unless tokens are added.
                               \nullable \length trainer.kv_heads * trainer.head_dim * hidden_size \memory host
                               \keeps call */
  const void* o_proj;     /**< Output projection, `[hidden_size, q_heads * head_dim]`. NULL: not given.
                               \nullable \length hidden_size * q_heads * trainer.head_dim \memory host \keeps call */
  const void* q_bias;     /**< NULL: none. \nullable \length q_heads * trainer.head_dim \memory host \keeps call */
  const void* k_bias;     /**< NULL: none.
                               \nullable \length trainer.kv_heads * trainer.head_dim \memory host \keeps call */
  const void* v_bias;     /**< NULL: none.
                               \nullable \length trainer.kv_heads * trainer.head_dim \memory host \keeps call */
  const void* input_norm; /**< Weights of the norm before the projections. NULL: 1.
                               \nullable \length hidden_size \memory host \keeps call */
  const void* q_norm;     /**< Weights of a norm of each head's queries. NULL: there is none.
                               \nullable \length trainer.head_dim \memory host \keeps call */
  const void* k_norm;     /**< Weights of a norm of each head's keys. NULL: there is none.
                               \nullable \length trainer.head_dim \memory host \keeps call */
} kvq_attention_weights;

/** Fill with defaults. `q_heads` and `hidden_size` stay 0 and must be set.
 *  \param weights  \nullable
 *  \param size     sizeof(kvq_attention_weights).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_attention_weights_init(kvq_attention_weights* weights, size_t size);

/** Take what a layer's weights say about its channels, for scales; replaces what earlier ones said. The weights are
 *  read now.
 *
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: numbers that are not finite); KVQ_E_STATE (the layer is finished, or the
 *           trainer finds no scales); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_trainer_add_weights(kvq_centres_trainer* trainer, int32_t layer,
                                                   const kvq_attention_weights* weights, kvq_error* error);

/** Train one layer on the tokens added to it, then drop them. Uses the context's threads. The result depends only on
 *  the options and the tokens.
 *
 *  \param progress  may not use `trainer`. NULL: not called. \nullable \keeps call
 *  \param user      passed to `progress`. \nullable \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: fewer tokens than centres); KVQ_E_STATE (the layer is finished, or has no
 *           tokens, nor weights that suffice); KVQ_E_CANCELLED; KVQ_E_MEMORY; KVQ_E_LIMIT. After a failure the layer
 *           still has what was added.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_trainer_run(kvq_centres_trainer* trainer, int32_t layer, kvq_progress_hook progress,
                                           void* user, kvq_error* error);

/** Get the centres of the layers finished so far. They share memory with the trainer and outlive it.
 *
 *  \param result  receives the handle. \parent trainer.context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_trainer_result(const kvq_centres_trainer* trainer, kvq_centres** result,
                                              kvq_error* error);

/** Destroy a trainer.
 *  \param trainer  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_centres_trainer_destroy(kvq_centres_trainer* trainer);

/** Trains routers from queries, keys and values that the caller's engine computed on sample texts.
 *
 *      kvq_router_trainer_create(context, &cache_options, policy, &options, &trainer, &error);
 *      for every text, for every layer: kvq_router_trainer_add(trainer, layer, n, q, k, v, KVQ_BF16, &error);
 *      kvq_router_trainer_run(trainer, loss, hook, user, &error);
 *      kvq_router_trainer_result(trainer, &router, &error);
 *
 *  Texts should be as long as those that the model will see, a few thousand tokens each and tens of thousands in
 *  total: the importance of a page depends on what comes after it. \destroy kvq_router_trainer_destroy */
typedef struct kvq_router_trainer kvq_router_trainer;

/** Training method of routers and its settings. */
typedef struct kvq_router_trainer_options {
  uint32_t struct_size;
  kvq_router_method method; /**< ::KVQ_ROUTER_LABEL by default. */
  int32_t sharing;          /**< Successive layers that share decisions, 1 ... 65536; 3 by default. */
  int32_t epochs;           /**< Passes over the keys, at most 10000; 0 (default): chosen by the library. */
  double mean_bits;         /**< Target for ::KVQ_ROUTER_LABEL, which requires it: mean true bits per scalar over routed
                                 pages, between those of the last and the first expert. 0 by default. */
  double loss_weight;       /**< For ::KVQ_ROUTER_PAPER: weight of the model's loss against that of memory (lambda in
                                 the paper), 0 ... 1; 0.5 by default. */
  double learning_rate;     /**< Learning rate of AdamW, above 0, at most 1; 3e-4 by default. */
  uint64_t seed;            /**< Random seed; 1 by default. */
  uint64_t max_bytes;       /**< Limit on kept keys and workspace; 0 (default): only the context's limit. */
  const char* note;         /**< At most 4096 bytes. NULL (default): "".
                                 \nullable \length string \memory host \keeps call */
} kvq_router_trainer_options;

/** Fill with defaults. `mean_bits` stays 0 and must be set for labels.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_router_trainer_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_router_trainer_options_init(kvq_router_trainer_options* options, size_t size);

/** Create a trainer.
 *
 *
 *
 *  \param context  a CPU context.
 *  \param cache    options of a cache of the model: its shape, RoPE, scale and `model_id`, and a codebook if an expert
 *                  is commvq.
 *  \param policy   a policy with a router's experts, most bits first; `votes` and the `commvq` settings apply, too.
 *  \param result   receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MISMATCH (a codebook for another model); KVQ_E_UNSUPPORTED (the context
 *           computes on a GPU); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_router_trainer_create(kvq_context* context, const kvq_cache_options* cache,
                                             const kvq_policy* policy, const kvq_router_trainer_options* options,
                                             kvq_router_trainer** result, kvq_error* error);

/** Add one text to a layer. Every layer needs the same texts in the same order; layers may come in any order. For
 *  labels this stores the text in every format and compares the attention of some of its queries, which takes most of
 *  the training time. Only keys of the first layer of each group are kept, as FP16.
 *
 *  \param n      tokens of the text, >= 1, at positions 0, 1, ... Pages are judged by the quarter of the text's tokens
 *                that follows them, so the first page and pages in the last quarter are not used: a text of fewer than
 *                85 tokens teaches nothing.
 *  \param q      queries before RoPE, `[n, q_heads, head_dim]`; finite. May be NULL for ::KVQ_ROUTER_PAPER.
 *                \nullable \length n * trainer.q_heads * trainer.head_dim \memory host \keeps call
 *  \param k      keys before RoPE, `[n, kv_heads, head_dim]`, as for kvq_append.
 *                \length n * trainer.kv_heads * trainer.head_dim \memory host \keeps call
 *  \param v      values, same shape and rules; may be NULL for ::KVQ_ROUTER_PAPER.
 *                \nullable \length n * trainer.kv_heads * trainer.head_dim \memory host \keeps call
 *  \param dtype  element type of `q`, `k` and `v`.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: a length other than in other layers); KVQ_E_STATE (training is done);
 *           KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_router_trainer_add(kvq_router_trainer* trainer, int32_t layer, int32_t n, const void* q,
                                          const void* k, const void* v, kvq_dtype dtype, kvq_error* error);

/** Train the routers of all layers on the texts added, then drop the texts. Uses the context's threads. The result
 *  depends only on the options and the texts.
 *
 *  \param loss      for ::KVQ_ROUTER_PAPER: the model's mean negative log-likelihood per token of the texts (natural
 *                   logarithm), above 0. Ignored for labels.
 *  \param progress  may not use `trainer`. NULL: not called. \nullable \keeps call
 *  \param user      passed to `progress`. \nullable \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (training is done; a layer lacks texts that another one has; no text
 *           is long enough; training diverged); KVQ_E_CANCELLED; KVQ_E_MEMORY; KVQ_E_LIMIT. After a failure the texts
 *           are still there.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_router_trainer_run(kvq_router_trainer* trainer, double loss, kvq_progress_hook progress,
                                          void* user, kvq_error* error);

/** Get the routers after ::kvq_router_trainer_run. They outlive the trainer.
 *
 *  \param result  receives the handle. \parent trainer.context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (not trained yet); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_router_trainer_result(const kvq_router_trainer* trainer, kvq_router** result, kvq_error* error);

/** Destroy a trainer.
 *  \param trainer  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_router_trainer_destroy(kvq_router_trainer* trainer);

/* -------------------------------------------------------------------------------------------------------- planning */

/** Quantity that a plan minimises. \values */
typedef int32_t kvq_plan_goal;
enum {
  KVQ_PLAN_BYTES = 0,   /**< Memory. */
  KVQ_PLAN_SECONDS = 1, /**< Time, for example of a decoding step. */
  KVQ_PLAN_LOSS = 2     /**< Loss, for example the divergence from the uncompressed model in nats. */
};

/** Choices, each of which has options: the scheme of a matrix, the format of a layer's keys. A plan takes one option
 *  of each choice; its costs are the sums of theirs. */
typedef struct kvq_plan_problem {
  uint32_t struct_size;
  kvq_plan_goal goal;           /**< ::KVQ_PLAN_LOSS by default. */
  int32_t n_choices;            /**< 1 ... 2^20. */
  int32_t reserved;             /**< 0. */
  const int32_t* option_counts; /**< Options of each choice, at least 1; at most 2^24 in total.
                                     \length n_choices \memory host \keeps call */
  const double* bytes;          /**< Cost of each option of the first choice, then of the second, ...; finite, not
                                     negative. NULL (default): 0.
                                     \nullable \length sum(option_counts) \memory host \keeps call */
  const double* seconds;        /**< As `bytes`. \nullable \length sum(option_counts) \memory host \keeps call */
  const double* loss;           /**< As `bytes`. \nullable \length sum(option_counts) \memory host \keeps call */
  double max_bytes;             /**< Limit on the plan's sum; infinity (default): none. */
  double max_seconds;           /**< As `max_bytes`. */
  double max_loss;              /**< As `max_bytes`. */
  double tolerance;             /**< Largest relative excess of the plan's goal over the optimum, 0 ... 1; 0.0001 by
                                     default. */
} kvq_plan_problem;

/** Fill with defaults.
 *  \param problem  \nullable
 *  \param size     sizeof(kvq_plan_problem).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_plan_problem_init(kvq_plan_problem* problem, size_t size);

/** Costs of a plan. */
typedef struct kvq_plan_costs {
  uint32_t struct_size;
  int32_t reserved; /**< 0. */
  double bytes;
  double seconds;
  double loss;
  double bound; /**< Lower bound on the goal of every plan within the limits. This plan's goal is within the tolerance
                     of it, except in the hardest problems with two limits. */
} kvq_plan_costs;

/** Take one option of every choice, so that the goal is minimal and the limits hold.
 *
 *  With one limit this takes milliseconds for hundreds of choices with dozens of options; with two, less than a
 *  second.
 *
 *  \param chosen  receives the index of the option taken for each choice, from 0. \length n \memory host \keeps call
 *  \param n       number of choices.
 *  \param costs   its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_LIMIT (no plan is within the limits; the message says what is missing, and
 *           the goal ::KVQ_PLAN_BYTES finds the smallest plan); KVQ_E_MEMORY.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_plan_solve(kvq_context* context, const kvq_plan_problem* problem, int32_t* chosen, int32_t n,
                                  kvq_plan_costs* costs, kvq_error* error);

/** All ways to group matrices that read the same inputs and to assign schemes, for engines whose kernels fuse only
 *  equal schemes. Groupings that another one beats in bytes, seconds and loss are left out; the others are the options
 *  of one choice for ::kvq_plan_solve. Immutable. \destroy kvq_plan_fusion_destroy */
typedef struct kvq_plan_fusion kvq_plan_fusion;

/** Matrices that read the same inputs, some of which can be multiplied together if they have the same scheme. A group
 *  is a set of members, bit i for member i. */
typedef struct kvq_plan_fusion_options {
  uint32_t struct_size;
  int32_t n_members;     /**< 1 ... ::KVQ_MAX_FUSED, for example 3 for q, k and v. */
  int32_t n_schemes;     /**< 1 ... 1024. */
  int32_t n_groups;      /**< Groups that can be multiplied together, including those of one member; 1 ... 15. */
  const int32_t* groups; /**< All different; every member must be in one of them.
                              \length n_groups \memory host \keeps call */
  const double* bytes;   /**< `[n_members, n_schemes]`, finite, not negative.
                              \length n_members * n_schemes \memory host \keeps call */
  const double* loss;    /**< As `bytes`. \length n_members * n_schemes \memory host \keeps call */
  const double* seconds; /**< `[n_groups, n_schemes]`, of each group as a whole; as `bytes`, or infinity if a group
                              cannot have a scheme. \length n_groups * n_schemes \memory host \keeps call */
} kvq_plan_fusion_options;

/** Fill with defaults. The sizes and arrays stay 0 and must be set.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_plan_fusion_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_plan_fusion_options_init(kvq_plan_fusion_options* options, size_t size);

/** Enumerate the groupings.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_plan_fusion_create(kvq_context* context, const kvq_plan_fusion_options* options,
                                          kvq_plan_fusion** result, kvq_error* error);

/** Number of groupings. */
typedef struct kvq_plan_fusion_info {
  uint32_t struct_size;
  int32_t n_members;
  int32_t n_groupings; /**< 0 if no grouping has a finite time. */
  int32_t reserved;    /**< 0. */
} kvq_plan_fusion_info;

/** Describe groupings.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_plan_fusion_describe(const kvq_plan_fusion* fusion, kvq_plan_fusion_info* info,
                                            kvq_error* error);

/** Description of one grouping. */
typedef struct kvq_plan_grouping_info {
  uint32_t struct_size;
  int32_t reserved; /**< 0. */
  double bytes;
  double seconds;
  double loss;
  int32_t groups[KVQ_MAX_FUSED];  /**< Group that each member is multiplied in; then 0. */
  int32_t schemes[KVQ_MAX_FUSED]; /**< Scheme index of each member; then 0. */
} kvq_plan_grouping_info;

/** Describe one grouping.
 *  \param index  0 ... n_groupings - 1, by increasing loss.
 *  \param info   its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_plan_fusion_describe_grouping(const kvq_plan_fusion* fusion, int32_t index,
                                                     kvq_plan_grouping_info* info, kvq_error* error);

/** Destroy groupings.
 *  \param fusion  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_plan_fusion_destroy(kvq_plan_fusion* fusion);

/** Compute the bits that each matrix would get if codes were as good as optimal codes of Gaussian numbers: an error of
 *  2^(-2b) with b bits per weight. The loss is then a lower bound for every plan (Q-Palette, theorem 3.1).
 *
 *  \param n              number of matrices, 1 ... 2^20.
 *  \param weights        weights in each matrix, above 0. \length n \memory host \keeps call
 *  \param sensitivities  loss of each matrix at a relative squared error of 1, not negative.
 *                        \length n \memory host \keeps call
 *  \param least_bits     per weight, at least 0.
 *  \param total_bits     over all weights, at least `least_bits` each.
 *  \param bits           receives the bits per weight of each matrix. \length n \memory host \keeps call
 *  \param loss           receives the loss. \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_plan_rates(int32_t n, const double* weights, const double* sensitivities, double least_bits,
                                  double total_bits, double* bits, double* loss, kvq_error* error);

/** Decisions of a planner as a file: the scheme of each matrix, and the policy of caches. Immutable.
 *  \destroy kvq_plan_destroy */
typedef struct kvq_plan kvq_plan;

/** Contents of a plan. */
typedef struct kvq_plan_content {
  uint32_t struct_size;
  int32_t n_matrices;         /**< 0 ... 2^20. */
  const char* const* names;   /**< Names of the matrices, all different, each a string of 1 to 200 bytes without control
                                   characters. \nullable \length n_matrices \memory host \keeps call */
  const char* const* schemes; /**< Schemes as in qp_quantize_options, each a string.
                                   \nullable \length n_matrices \memory host \keeps call */
  const kvq_policy* policy;   /**< A policy of the context. NULL (default): the plan has no policy.
                                   \nullable \keeps call */
  double bytes;               /**< Expected bytes; finite, not negative, 0 by default. */
  double seconds;             /**< Expected seconds, as `bytes`. */
  double loss;                /**< Expected loss, as `bytes`. */
  const char* note;           /**< At most 4096 bytes, UTF-8 without control characters. NULL (default): "".
                                   \nullable \length string \memory host \keeps call */
} kvq_plan_content;

/** Fill with defaults.
 *  \param content  \nullable
 *  \param size     sizeof(kvq_plan_content).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_plan_content_init(kvq_plan_content* content, size_t size);

/** Create a plan.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_plan_create(kvq_context* context, const kvq_plan_content* content, kvq_plan** result,
                                   kvq_error* error);

/** Read a plan from YAML:
 *
 *      version: 1
 *      note: "..."                                    # optional
 *      expected: {bytes: 1000, seconds: 0.01, loss: 0.02}  # optional
 *      weights:                                       # optional
 *        "model.layers.0.mlp.up_proj": tcx-3
 *      cache: {keys: gs3, values: gs2}                # a policy, optional
 *
 *
 *
 *  \param yaml    text, not necessarily NUL-terminated; at most 64 MiB. \length length \memory host \keeps call
 *  \param length  bytes at `yaml`.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (the message names the line); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_plan_load(kvq_context* context, const char* yaml, size_t length, kvq_plan** result,
                                 kvq_error* error);

/** Write a plan as YAML. The same plan gives the same text.
 *
 *  \param buffer    receives the text, without a NUL. NULL: only the size is returned.
 *                   \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the text in bytes; also if `capacity` is too small.
 *                   \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_plan_save(const kvq_plan* plan, char* buffer, size_t capacity, size_t* size, kvq_error* error);

/** Description of a plan. */
typedef struct kvq_plan_info {
  uint32_t struct_size;
  int32_t n_matrices;
  int32_t has_policy; /**< 1 or 0. */
  int32_t reserved;   /**< 0. */
  double bytes;
  double seconds;
  double loss;
  const char* note; /**< \length string \keeps handle */
} kvq_plan_info;

/** Describe a plan.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_plan_describe(const kvq_plan* plan, kvq_plan_info* info, kvq_error* error);

/** One matrix of a plan. */
typedef struct kvq_plan_matrix_info {
  uint32_t struct_size;
  int32_t reserved;   /**< 0. */
  const char* name;   /**< \length string \keeps handle */
  const char* scheme; /**< \length string \keeps static */
} kvq_plan_matrix_info;

/** Describe one matrix of a plan.
 *  \param index   0 ... n_matrices - 1, in the order of the plan.
 *  \param info    its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_plan_describe_matrix(const kvq_plan* plan, int32_t index, kvq_plan_matrix_info* info,
                                            kvq_error* error);

/** Return the scheme that a plan gives a matrix; NULL if the plan does not name the matrix.
 *  \param plan  \nullable
 *  \param name  \nullable \length string \memory host \keeps call
 *  \returns \nullable \length string \keeps static
 *  \threads read-only.  \since 1.0 */
KVQ_API const char* kvq_plan_scheme(const kvq_plan* plan, const char* name);

/** Get the policy of a plan.
 *  \param result  receives a new handle. \parent plan.context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (the plan has no policy); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_plan_policy(const kvq_plan* plan, kvq_policy** result, kvq_error* error);

/** Destroy a plan.
 *  \param plan  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_plan_destroy(kvq_plan* plan);

#endif /* KVQ_EXPERIMENTAL */

#ifdef __cplusplus
}
#endif

#endif /* KVQ_H */
