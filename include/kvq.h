/** \file kvq.h
 *  \brief kvq: a compressed key/value cache for language models, attended to in compressed form.
 *
 *  An inference engine computes queries, keys and values; this library keeps the keys and values in 1 to 16 bits per
 *  scalar and computes attention directly on them.
 *
 *      context   memory, threads, limits and the device          kvq_context_create
 *      policy    which page format each layer uses               kvq_policy_load
 *      codebook  vector quantization trained for one model       kvq_codebook_load
 *      centres   what pages of one model are stored relative to  kvq_centres_load
 *      router    which page format each page gets, by its keys   kvq_router_load
 *      cache     the shape of one model's attention layers       kvq_cache_create
 *      sequence  one conversation: lists of pages per head       kvq_sequence_create, kvq_append, kvq_attend
 *      matrix    weights of a linear layer in few bits           qp_quantize, qp_linear
 *
 *  Rules that hold for every function:
 *
 *  - A call that can fail returns a ::kvq_status and takes, last, a caller-owned ::kvq_error or NULL. On failure the
 *    message names the argument and its value, and every object is as it was before the call.
 *  - Structs begin with `struct_size`. Call the struct's `*_init(&it, sizeof(it))` first, or set `struct_size` of one
 *    that the library fills. A struct only ever grows at its end: an older program's shorter one gets the defaults of
 *    what it lacks, of a newer program's longer one the rest must be zero. Reserved fields must be 0 and are filled
 *    with 0. No struct has more than 4096 bytes.
 *  - Handles come out through the parameter `result`, which is NULL after a failure. Objects may be destroyed in any
 *    order: what others still need goes with the last of them. Destroying NULL does nothing.
 *  - Any number of threads may use a context, and a cache, at once, but for what a function's \threads line says. Of
 *    other handles, `const` ones may be used from several threads at once, others need exclusive use. Destroying needs
 *    exclusive use of the handle.
 *  - Beside the statuses that a function names, any may return ::KVQ_E_INTERNAL; one that is given a newer header's
 *    struct with something in it that this library does not know, ::KVQ_E_UNSUPPORTED; one on a CUDA context,
 *    ::KVQ_E_BACKEND; and one of a sequence that a CUDA graph appends to, which first learns how far the graph has
 *    come, ::KVQ_E_MEMORY or ::KVQ_E_LIMIT.
 *  - The library never prints, aborts, reads environment variables, installs signal handlers, or starts threads that
 *    were not asked for. In a child process after a `fork()` at which no other thread was inside a call, contexts of a
 *    CPU compute on the calling thread alone and may be destroyed; contexts of a GPU may not be used.
 *  - Hooks return, they do not unwind: an exception that a C++ hook throws nevertheless is caught and taken for the
 *    hook's failure; unwinding by other means (longjmp, a foreign runtime's panic) is undefined.
 *  - Tensors are row-major. "Host memory" is memory that the CPU can read.
 *  - Text is UTF-8; names of files are what the system's loader takes, UTF-8 in practice.
 *  - A CUDA context works asynchronously: calls issue work to its stream and return. Appending and attending
 *    synchronise with nothing; saving, loading and decoding wait for the stream. An error that the device reports later
 *    is returned by a later call, and once the device's own state is broken every call returns it. What the host passes
 *    in host memory has been read when a call returns.
 *
 *  What is declared if KVQ_EXPERIMENTAL is defined before this file is included may change in a minor version;
 *  everything else only grows until version 2.
 *
 *  Marks in the comments, from which bindings are generated. Every pointer has those that fit. Without marks, a pointer
 *  to a struct is to one of them in host memory and used until the call returns, a handle likewise, and neither may be
 *  NULL but the `error` of every call. Handles that a function returns are borrowed: they are not to be destroyed.
 *
 *      \nullable         may be NULL; pointers without it may not
 *      \length EXPR      elements behind the pointer, of `void` counted in the tensor's elements or in bytes: numbers
 *                        and names of fields of the struct or parameters of the call; `cache.q_heads` is a field of
 *                        what describes `cache`, `trainer.head_dim` of what it was created with; sum(a) adds an array
 *                        up or, where it is NULL, its length; strided(tokens, heads, channels) reaches as far as the
 *                        strides say; `string`: UTF-8 up to a NUL
 *      \memory M         `host`; `context`: host memory, or of a CUDA context device memory; `device`
 *      \keeps K          how long the library uses what is pointed at, or what is returned lives: `call`: until it
 *                        returns; `handle`: as long as the handle that it belongs to; `released`: until the context's
 *                        `released` hook has been called; `static`: for ever
 *      \parent P         the new handle keeps P alive
 *      \destroy F        what ends a handle
 *      \values           the enumerators that follow are an integer's values
 */
#ifndef KVQ_H
#define KVQ_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define KVQ_API
#elif defined(__GNUC__)
#define KVQ_API __attribute__((visibility("default")))
#else
#define KVQ_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------- status and errors */

/** Result of a call: ::KVQ_OK or one of the negative codes. Numbers never change. \values */
typedef int32_t kvq_status;
enum {
  KVQ_OK = 0,             /**< Done. */
  KVQ_E_ARGUMENT = -1,    /**< An argument is NULL, out of range, or inconsistent with another one. */
  KVQ_E_MEMORY = -2,      /**< The allocator returned NULL. */
  KVQ_E_LIMIT = -3,       /**< A byte limit of the context or of the cache would be exceeded. */
  KVQ_E_STATE = -4,       /**< The object is not in a state that allows the call, for example a rollback into a sealed
                               page. */
  KVQ_E_FORMAT = -5,      /**< A policy, snapshot or other input is malformed. */
  KVQ_E_MISMATCH = -6,    /**< The input is well-formed but belongs to another model, cache shape, policy or version. */
  KVQ_E_UNSUPPORTED = -7, /**< The request is valid but this build or machine cannot serve it. */
  KVQ_E_BACKEND = -8,     /**< The device or the caller's own hook reported a failure; see `backend_code`. */
  KVQ_E_INTERNAL = -9,    /**< A defect of the library. */
  KVQ_E_CANCELLED = -10,  /**< The caller's progress hook asked to stop. */
  KVQ_E_BUFFER_SIZE = -11 /**< The caller's buffer is too small; the call says how many bytes it takes. */
};

/** What went wrong. Owned by the caller; ::kvq_error_init before use. */
typedef struct kvq_error {
  uint32_t struct_size; /**< Of the caller's struct. */
  kvq_status code;      /**< Same value as the call returned. */
  int32_t backend_code; /**< Code of the device's own library or of a hook, 0 if none. */
  char message[256];    /**< English text, UTF-8, NUL-terminated, empty on success. */
} kvq_error;

/** Clear an error.
 *  \param error  \nullable
 *  \param size   sizeof(kvq_error).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_error_init(kvq_error* error, size_t size);

/** Name of a status code, for example "KVQ_E_LIMIT"; "unknown status" for other numbers.
 *  \returns \length string \keeps static
 *  \threads any.  \since 1.0 */
KVQ_API const char* kvq_status_name(kvq_status status);

/* ------------------------------------------------------------------------------------------------------- version */

/** Version of this header, after Semantic Versioning. */
#define KVQ_VERSION_MAJOR 1
#define KVQ_VERSION_MINOR 0
#define KVQ_VERSION_PATCH 0

/** Counts up by one with every release that adds to this header. */
#define KVQ_API_VERSION 1

/** The ::KVQ_API_VERSION that the loaded library implements: it has everything that a header of this or a smaller
 *  number declares, apart from experimental parts.
 *  \threads any.  \since 1.0 */
KVQ_API int32_t kvq_api_version(void);

/** Version of the loaded library, "major.minor.patch".
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

/** Where a context computes. \values */
typedef int32_t kvq_device;
enum {
  KVQ_DEVICE_CPU = 0, /**< Here. */
  KVQ_DEVICE_CUDA = 1 /**< On an NVIDIA GPU, by way of libkvq_cuda.so. */
};

/** How the library rotates queries and keys. \values */
typedef int32_t kvq_rope;
enum {
  KVQ_ROPE_NONE = 0,       /**< Not: the caller passes them rotated, or the model has no rotary embedding. */
  KVQ_ROPE_HALF = 1,       /**< Channels (j, j + rotary_dim/2) form a pair: Hugging Face Llama, Mistral, Qwen. */
  KVQ_ROPE_INTERLEAVED = 2 /**< Channels (2j, 2j+1) form a pair: original Llama, GPT-J. */
};

/** Importance of a log message. \values */
typedef int32_t kvq_log_level;
enum {
  KVQ_LOG_ERROR = 0,   /**< Something failed. */
  KVQ_LOG_WARNING = 1, /**< Something is not as it should be. */
  KVQ_LOG_INFO = 2     /**< Something worth knowing. */
};

/** Sizes that do not change. */
enum {
  KVQ_PAGE_SLOTS = 32 /**< Slots of a page: the unit of encoding, sharing and rollback, in tokens. */
};

/* --------------------------------------------------------------------------------------------------------- context */

/** Memory, threads, limits and device shared by any number of caches. \destroy kvq_context_destroy */
typedef struct kvq_context kvq_context;

/** Allocate `bytes` (> 0) aligned to `alignment` (a power of two), or return NULL. Called from any thread, also from
 *  several at once. Like all hooks it may not use the context or what was made from it. */
typedef void* (*kvq_allocate_hook)(void* user, size_t bytes, size_t alignment);
/** Free what ::kvq_allocate_hook returned, with the same `bytes` and `alignment`. Called from any thread, also
 *  from several at once. */
typedef void (*kvq_free_hook)(void* user, void* pointer, size_t bytes, size_t alignment);
/** One message, NUL-terminated, without newline, valid until the hook returns. Called from any thread, also from
 *  several at once. */
typedef void (*kvq_log_hook)(void* user, kvq_log_level level, const char* message);
/** Body of a parallel loop. */
typedef void (*kvq_parallel_body)(void* argument, int32_t index);
/** Run `body(argument, i)` once for every i in [0, n), on any threads in any order, and return when all that began are
 *  done. Results do not depend on the order or on the number of threads. Loops too short to be shared do not get here.
 *  Called from the thread of the call that needs it, so from several at once if these use the context at once.
 *  \returns 0; anything else, or fewer calls of `body` than n, says that the hook could not do it all: the calling
 *           thread then does what is left. */
typedef int32_t (*kvq_parallel_for_hook)(void* user, int32_t n, kvq_parallel_body body, void* argument);
/** The last call of a context's hooks: none is used any more, and their `user` may go. Called by the thread that
 *  destroys the context or the last object made from it; may use other contexts. Not called where a context could not
 *  be created. */
typedef void (*kvq_released_hook)(void* user);

/** Allocate `bytes` (> 0) of device memory aligned to 256 bytes, or return NULL. The memory is used in the order of
 *  `stream`, the context's stream at that time. Called from the thread of the call that needs it. */
typedef void* (*kvq_device_allocate_hook)(void* user, size_t bytes, void* stream);
/** Free what ::kvq_device_allocate_hook returned, once the work issued to `stream` so far is done: the hook may not
 *  give it to another stream before. */
typedef void (*kvq_device_free_hook)(void* user, void* pointer, size_t bytes, void* stream);

/** What a context runs on, and the hooks that it calls. */
typedef struct kvq_context_options {
  uint32_t struct_size;
  kvq_device device;          /**< ::KVQ_DEVICE_CPU by default. */
  int32_t n_threads;          /**< Threads for one call, the caller's included; 1 (default) starts none. At most 1024.
                                   Ignored when `parallel_for` is set. */
  int32_t reserved;           /**< 0. */
  uint64_t max_bytes;         /**< Limit on everything allocated through the context, on the host and on the device
                                   together, the context included; 0 (default): none. */
  const char* cpu_isa;        /**< Name from ::kvq_cpu_isa_name; NULL (default): the best of this machine.
                                   \nullable \length string \memory host \keeps call */
  kvq_allocate_hook allocate; /**< NULL (default): the C++ runtime's aligned operator new. \nullable \keeps released */
  kvq_free_hook free;         /**< NULL exactly when `allocate` is NULL. \nullable \keeps released */
  void* allocator_user;       /**< Passed to `allocate` and `free`. \nullable \keeps released */
  kvq_log_hook log;           /**< NULL (default): no messages. \nullable \keeps released */
  void* log_user;             /**< Passed to `log`. \nullable \keeps released */
  kvq_parallel_for_hook parallel_for; /**< NULL (default): the library's own `n_threads`. \nullable \keeps released */
  void* parallel_for_user;            /**< Passed to `parallel_for`. \nullable \keeps released */

  /* For ::KVQ_DEVICE_CUDA. */
  int32_t device_index; /**< Ordinal of the GPU; 0 by default. */
  int32_t reserved2;    /**< 0. */
  const char* plugin;   /**< Path of libkvq_cuda.so; NULL (default): beside the library that holds this function, then
                             where the loader searches. \nullable \length string \memory host \keeps call */
  void* stream;         /**< cudaStream_t that everything is issued to; NULL (default): the legacy default stream. See
                             ::kvq_context_set_stream. \nullable \keeps released */
  kvq_device_allocate_hook device_allocate; /**< NULL (default): a memory pool of the context's own.
                                                 \nullable \keeps released */
  kvq_device_free_hook device_free; /**< NULL exactly when `device_allocate` is NULL. \nullable \keeps released */
  void* device_allocator_user;      /**< Passed to both. \nullable \keeps released */

  kvq_released_hook released; /**< Called when the context is gone, which objects made from it may put off: hooks and
                                   what they need live until then. NULL (default): nobody is told.
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
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED (device or instruction set not available here, with the
 *           reason); KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND (a thread could not be started, or the device failed).
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_context_create(const kvq_context_options* options, kvq_context** result, kvq_error* error);

/** Destroy a handle. What was made from the context keeps it alive.
 *  \param context  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_context_destroy(kvq_context* context);

/** What a context runs on and uses. */
typedef struct kvq_context_info {
  uint32_t struct_size;
  kvq_device device;
  int32_t n_threads;   /**< 0 when the caller's `parallel_for` hook is used. */
  int32_t reserved;    /**< 0. */
  const char* backend; /**< "cpu" or "cuda". \length string \keeps static */
  const char* isa;     /**< Instruction set in use, for example "avx512vnni" or "sm_90". \length string \keeps handle */
  uint64_t bytes;      /**< Allocated now. */
  uint64_t peak_bytes; /**< Largest value of `bytes` so far. */
  uint64_t max_bytes;  /**< The limit, 0 if none. */
} kvq_context_info;

/** Describe a context.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads any.  \since 1.0 */
KVQ_API kvq_status kvq_context_describe(const kvq_context* context, kvq_context_info* info, kvq_error* error);

/** Issue later calls of a CUDA context to another stream, ordered after everything issued before.
 *  \param stream  cudaStream_t, NULL for the legacy default stream. It must live until another one is set or the
 *                 context is gone. \nullable \keeps handle
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED (a CPU context); KVQ_E_BACKEND.
 *  \threads exclusive use of `context`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_context_set_stream(kvq_context* context, void* stream, kvq_error* error);

/** A device that contexts can be created on. */
typedef struct kvq_device_info {
  uint32_t struct_size;
  int32_t n_devices;          /**< Devices of this kind. */
  char name[128];             /**< For example "NVIDIA H100 80GB HBM3". */
  int32_t compute_capability; /**< 90 for 9.0. */
  int32_t driver_version;     /**< Newest CUDA version that the driver supports, 13000 for 13.0. */
  uint64_t memory_bytes;      /**< Of the device. */
} kvq_device_info;

/** Ask whether contexts can be created on a device, and on what.
 *
 *  \param device  ::KVQ_DEVICE_CUDA.
 *  \param index   as kvq_context_options::device_index.
 *  \param plugin  as kvq_context_options::plugin. \nullable \length string \memory host \keeps call
 *  \param info    its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED with the reason: no plug-in library, one of another version, a
 *           library it needs is missing (its name), no driver, a driver too old, no such device.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_device_describe(kvq_device device, int32_t index, const char* plugin, kvq_device_info* info,
                                       kvq_error* error);

/** Number of CPU instruction sets that this build has kernels for and this machine can run.
 *  \threads any.  \since 1.0 */
KVQ_API int32_t kvq_cpu_isa_count(void);

/** Name of instruction set `index`, best first ("amx", "avx512vnni", "avx512", "avx2", "baseline"). "amx" is
 *  "avx512vnni" with products of tiles for linear layers on five rows and more. Where a processor has tiles, the first
 *  call that looks for instruction sets asks Linux to let this process use them; alternate signal stacks that are set
 *  up later must then have room for them (AT_MINSIGSTKSZ).
 *  \returns NULL if `index` is out of range. \nullable \length string \keeps static
 *  \threads any.  \since 1.0 */
KVQ_API const char* kvq_cpu_isa_name(int32_t index);

/* ---------------------------------------------------------------------------------------------------------- policy */

/** Which format pages are sealed in, per layer, how many stay FP16, and which tokens are evicted. Immutable.
 *  \destroy kvq_policy_destroy */
typedef struct kvq_policy kvq_policy;

/** Read a policy from YAML, or from the short form of one or two formats.
 *
 *  The short form is the name of a format for keys and values of all layers, or two with a slash, KEYS/VALUES, and
 *  optionally `+METHOD:BUDGET` of eviction at the end, like `gs2`, `gt2/gt1`, `int4+adasnap:128`. The formats:
 *
 *  - `gs4`, `gs3`, `gs2`, `gs1`: gain-shape pages. Codes of 4 to 1 bits after a Hadamard rotation, and a gain of 8 bits
 *    for each token and side, chosen so that what is decoded is unbiased. Keys are encoded relative to the mean of
 *    their page's, which a page has in 8 bits, and values as they are; with `+nocentre` keys, too. Nothing is trained
 *    for these two. With `+centres` a side is encoded relative to the nearest of its head's trained centres, which
 *    ::kvq_cache_options has, those of keys turned by RoPE to where the key is; a page then has a byte for each token
 *    that says which, unless there is but one.
 *  - `gt3`, `gt2`, `gt1`: the same with codes of 3 to 1 bits that are a path through a trellis of 64 states: their
 *    error is a quarter to a half smaller, and they take longer to encode and to attend to.
 *  - `fp16`; `int8`, `int4`, `int3`, `int2`: integers with a scale and a minimum for each channel of a page's keys and
 *    for each token and group of channels of values; optionally with `+hadamard`, encoded after a Hadamard rotation.
 *  - `commvq`: codes of a codebook that was trained for the model.
 *
 *  The long form:
 *
 *      version: 1
 *      keys: int4+hadamard            # a format name, or a map:
 *      values: {format: int2, hadamard: false, group: 32}
 *      sink: 1                        # first pages that stay FP16
 *      recent: 1                      # newest pages that stay FP16, the open one included
 *      layers:                        # later entries win
 *        - {range: [0, 1], keys: fp16, values: int8}
 *        - {range: [2, 3], keys: {format: gs2, centres: none}}   # or page, trained: +nocentre, nothing, +centres
 *      centres: page                  # of all gain-shape formats, of experts too, that do not say it themselves
 *      commvq:                        # for the format commvq, which needs a codebook
 *        beam: 4                      # sums of codes kept while a key is encoded, 1 to 16
 *        flips: 100                   # bits of a value's code flipped to lower its error, at most
 *        attention: auto              # or tables, rebuild, decode
 *
 *      eviction: {method: adasnap, budget: 128}   # what kvq_compress does, see there
 *
 *  and instead of `keys`, `values` and `layers`, for pages that each get a format of their own:
 *
 *      router:                        # needs a router that was trained for these experts
 *        experts: [fp16, int4, int2]  # 2 to 8 formats, those with more bits first; int8/int4: keys/values
 *        votes: layer                 # tokens of all heads choose together; or head
 *
 *  `group` is the number of channels that share a scale in an integer value page (32, 64 or 128). Defaults: fp16,
 *  recent 1, centres page, beam 1, as many flips as help, attention auto; sink 1 if any page gets gain-shape codes of
 *  three bits or fewer, else 0: models give their first tokens much attention.
 *
 *  `attention` says how the CPU attends to keys with codes; results are the same but for rounding. `tables`: products
 *  of each query with all codes, which are then summed for each token; `rebuild`: keys summed up from their codes once
 *  for all queries of a KV head; `decode`: keys and values decoded one by one, tens of times slower, for comparison;
 *  `auto` takes the faster of the first two.
 *
 *  \param yaml    text, not necessarily NUL-terminated; at most 1 MiB, nested at most 16 deep. \length length
 *                 \memory host \keeps call
 *  \param length  bytes of `yaml`.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (with the line); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_policy_load(kvq_context* context, const char* yaml, size_t length, kvq_policy** result,
                                   kvq_error* error);

/** A policy that evicts tokens and otherwise says what another one says.
 *
 *  \param policy  of this context. If it evicts, all but the method and the budget stays.
 *  \param method  name of a method, see ::kvq_compress. \length string \memory host \keeps call
 *  \param budget  tokens of a KV head that stay, on average.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: an unknown method, a budget smaller than the window); KVQ_E_MEMORY;
 *           KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_policy_with_eviction(kvq_context* context, const kvq_policy* policy, const char* method,
                                            int32_t budget, kvq_policy** result, kvq_error* error);

/** A policy whose layers `first_layer` to `last_layer` are stored in other formats and that otherwise says what another
 *  one says.
 *
 *  \param policy       of this context, without a router.
 *  \param first_layer  0 … `last_layer`.
 *  \param last_layer   at most 65535; creating a cache with fewer layers fails.
 *  \param keys         name of a format, see ::kvq_policy_load; NULL: as before. \nullable \length string
 *                      \memory host \keeps call
 *  \param values       the same for values. \nullable \length string \memory host \keeps call
 *  \param result       receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: the name of no format, a policy with a router); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_policy_with_layer(kvq_context* context, const kvq_policy* policy, int32_t first_layer,
                                         int32_t last_layer, const char* keys, const char* values, kvq_policy** result,
                                         kvq_error* error);

/** Write a policy in the long form, which ::kvq_policy_load reads: the same is then said of every layer. Reading and
 *  writing again gives the same bytes.
 *
 *  \param buffer    receives the text, without a NUL. NULL: only the size is asked for. \nullable \length capacity
 *                   \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the text in bytes; also when `capacity` is too small. \length 1 \memory host
 *                   \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_UNSUPPORTED (so many layers differ
 *           that the text would be longer than can be read); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_policy_save(const kvq_policy* policy, char* buffer, size_t capacity, size_t* size,
                                   kvq_error* error);

/** What a host has to know of a policy. */
typedef struct kvq_policy_info {
  uint32_t struct_size;
  int32_t eviction_budget; /**< Tokens of a KV head that ::kvq_compress keeps; INT32_MAX: a share; 0: it evicts none. */
  int32_t eviction_window; /**< Newest tokens that it always keeps, of every head. */
  int32_t reserved;        /**< 0. */
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

/** What shares a code, or a number. \values */
typedef int32_t kvq_scope;
enum {
  KVQ_SCOPE_LAYER = 0, /**< All KV heads of a token in a layer. */
  KVQ_SCOPE_HEAD = 1   /**< One KV head of a token. */
};

/** CommVQ codebooks for the layers of one model. Immutable; caches that use it share it. Files are in the safetensors
 *  format and hold about half of kvq_codebook_info::bytes. \destroy kvq_codebook_destroy */
typedef struct kvq_codebook kvq_codebook;

/** Read codebooks from a file in memory. Every byte is checked; saving the result again gives the same bytes.
 *
 *  \param buffer  bytes of a file written by ::kvq_codebook_save. \length size \memory host \keeps call
 *  \param size    bytes at `buffer`.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged, truncated, or no codebook; the message names the tensor or
 *           field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_codebook_load(kvq_context* context, const void* buffer, size_t size, kvq_codebook** result,
                                     kvq_error* error);

/** Write codebooks as a file. The same codebooks give the same bytes.
 *
 *  \param buffer    NULL: only the size is asked for. \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the file in bytes; also when `capacity` is too small. \length 1 \memory host
 *                   \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_codebook_save(const kvq_codebook* codebook, void* buffer, size_t capacity, size_t* size,
                                     kvq_error* error);

/** What codebooks are made for and how well they do. Errors are ‖x̂ − x‖² / ‖x‖² of training, averaged over the layers
 *  that are present; 0 for a side without codes. */
typedef struct kvq_codebook_info {
  uint32_t struct_size;
  int32_t n_layers;
  int32_t layers_present; /**< Fewer than `n_layers`: training was not finished; no cache takes such codebooks. */
  int32_t kv_heads;
  int32_t head_dim;
  kvq_rope rope;          /**< How channels of a key pair up: ::KVQ_ROPE_HALF or ::KVQ_ROPE_INTERLEAVED. */
  int32_t key_stages;     /**< R, 0: no codes for keys. */
  int32_t key_codes;      /**< Nc, of a stage. */
  int32_t key_group;      /**< g, successive pairs that share their indices. */
  kvq_scope key_norms;    /**< What shares a norm. */
  int32_t value_bits;     /**< Code bits of a value scalar, 0: no codes for values. */
  kvq_scope value_scope;  /**< What shares a code. */
  double key_true_bits;   /**< Bits of a key scalar, codes and norms. */
  double value_true_bits; /**< Bits of a value scalar, codes and scales. */
  double key_error;
  double value_error;
  int64_t tokens;    /**< Trained on, the fewest of any layer. */
  uint64_t seed;     /**< Of everything random in training. */
  uint64_t model_id; /**< As in kvq_cache_options. */
  uint64_t bytes;    /**< Of the numbers, in memory. */
  const char* note;  /**< Where the codebooks come from, as their trainer said. \length string \keeps handle */
} kvq_codebook_info;

/** Describe codebooks.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_codebook_describe(const kvq_codebook* codebook, kvq_codebook_info* info, kvq_error* error);

/** Sizes of arrays in structs. */
enum {
  KVQ_MAX_KEY_STAGES = 64, /**< The most stages that codes for keys can have. */
  KVQ_MAX_EXPERTS = 8,     /**< The most formats that a router can choose among. */
  KVQ_MAX_FUSED = 4,       /**< The most matrices that a plan multiplies together. */
  KVQ_FORMATS_SIZE = 256   /**< Bytes of kvq_layer_info::formats. */
};

/** One layer of codebooks; see ::kvq_codebook_info. */
typedef struct kvq_codebook_layer_info {
  uint32_t struct_size;
  int32_t present; /**< 1; 0: the layer is missing and everything below is 0. */
  int64_t tokens;
  double key_error;
  double value_error;
  double key_stage_errors[KVQ_MAX_KEY_STAGES]; /**< The key error of a decoder that knows only the first stage, the
                                                    first two, …: the last of `key_stages` is `key_error`, then 0. */
} kvq_codebook_layer_info;

/** Describe one layer of codebooks.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_codebook_describe_layer(const kvq_codebook* codebook, int32_t layer,
                                               kvq_codebook_layer_info* info, kvq_error* error);

/** Destroy a handle.
 *  \param codebook  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_codebook_destroy(kvq_codebook* codebook);

/* --------------------------------------------------------------------------------------------------------- centres */

/** Centres of the keys and values of one model, for the formats gs and gt: a vector is stored relative to the nearest
 *  centre of its head. Immutable; caches that use them share them. Files are in the safetensors format and hold half of
 *  kvq_centres_info::bytes. \destroy kvq_centres_destroy */
typedef struct kvq_centres kvq_centres;

/** Read centres from a file in memory. Every byte is checked; saving the result again gives the same bytes.
 *
 *  \param buffer  bytes of a file written by ::kvq_centres_save. \length size \memory host \keeps call
 *  \param size    bytes at `buffer`.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged, truncated, or no centres; the message names the tensor or
 *           field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_load(kvq_context* context, const void* buffer, size_t size, kvq_centres** result,
                                    kvq_error* error);

/** Write centres as a file. The same centres give the same bytes.
 *
 *  \param buffer    NULL: only the size is asked for. \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the file in bytes; also when `capacity` is too small. \length 1 \memory host
 *                   \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_save(const kvq_centres* centres, void* buffer, size_t capacity, size_t* size,
                                    kvq_error* error);

/** What centres are made for and how much they take away. Residuals are ‖x − c‖² / ‖x‖² of training, with the nearest
 *  centre c, averaged over the layers that are present; 0 for a side without centres. */
typedef struct kvq_centres_info {
  uint32_t struct_size;
  int32_t n_layers;
  int32_t layers_present; /**< Fewer than `n_layers`: training was not finished; no cache takes such centres. */
  int32_t kv_heads;
  int32_t head_dim;
  kvq_rope rope;         /**< Of the keys that follow; centres are before it. */
  int32_t key_centres;   /**< Of a head; 0: keys have none. */
  int32_t value_centres; /**< Of a head; 0: values have none. */
  double key_residual;
  double value_residual;
  int64_t tokens;    /**< Trained on, the fewest of any layer. */
  uint64_t seed;     /**< Of everything random in training. */
  uint64_t model_id; /**< As in kvq_cache_options. */
  uint64_t bytes;    /**< Of the numbers, in memory. */
  const char* note;  /**< Where the centres come from, as their trainer said. \length string \keeps handle */
} kvq_centres_info;

/** Describe centres.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_centres_describe(const kvq_centres* centres, kvq_centres_info* info, kvq_error* error);

/** One layer of centres; see ::kvq_centres_info. */
typedef struct kvq_centres_layer_info {
  uint32_t struct_size;
  int32_t present; /**< 1; 0: the layer is missing and everything below is 0. */
  int64_t tokens;
  double key_residual;
  double value_residual;
} kvq_centres_layer_info;

/** Describe one layer of centres.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_centres_describe_layer(const kvq_centres* centres, int32_t layer, kvq_centres_layer_info* info,
                                              kvq_error* error);

/** Destroy a handle.
 *  \param centres  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_centres_destroy(kvq_centres* centres);

/* --------------------------------------------------------------------------------------------------------- routers */

/** How routers are trained. \values */
typedef int32_t kvq_router_method;
enum {
  KVQ_ROUTER_LABEL = 0, /**< On the cheapest format of each page that leaves the attention as good as it has to be. */
  KVQ_ROUTER_PAPER = 1  /**< By the loss of the MoQAE paper, for comparison: it tends to one format for all. */
};

/** Routers for the layers of one model (MoQAE): small networks that choose the format of every page by the keys in it,
 *  before RoPE. Immutable; caches that use it share it. Files are in the safetensors format.
 *  \destroy kvq_router_destroy */
typedef struct kvq_router kvq_router;

/** Read routers from a file in memory. Every byte is checked; saving the result again gives the same bytes.
 *
 *  \param buffer  bytes of a file written by ::kvq_router_save. \length size \memory host \keeps call
 *  \param size    bytes at `buffer`.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged, truncated, or no router; the message names the tensor or
 *           field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_router_load(kvq_context* context, const void* buffer, size_t size, kvq_router** result,
                                   kvq_error* error);

/** Write routers as a file. The same routers give the same bytes.
 *
 *  \param buffer    NULL: only the size is asked for. \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the file in bytes; also when `capacity` is too small. \length 1 \memory host
 *                   \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_router_save(const kvq_router* router, void* buffer, size_t capacity, size_t* size,
                                   kvq_error* error);

/** What routers are made for, and what they do on the pages that they were trained on. */
typedef struct kvq_router_info {
  uint32_t struct_size;
  int32_t n_layers;
  int32_t kv_heads;
  int32_t head_dim;
  kvq_rope rope;            /**< Of the keys that follow; routers see them before. */
  int32_t sharing;          /**< Successive layers that share the decisions of the first of them. */
  int32_t groups;           /**< Of such layers; each has a network. */
  int32_t n_experts;        /**< Formats to choose among, 2 … ::KVQ_MAX_EXPERTS. */
  kvq_router_method method; /**< It was trained with. */
  int32_t reserved;         /**< 0. */
  double loss_weight;       /**< Of training by the paper's loss; 0 for labels. */
  double mean_bits;         /**< True bits of a scalar, as pages are stored; the first and the open one not counted. */
  double tolerance;         /**< Labels: the error of attention up to which a format was good enough for a page. */
  double accuracy;          /**< Labels: the share of pages that get the format they were labelled with. */
  int64_t tokens;           /**< Trained on. */
  uint64_t seed;            /**< Of everything random in training. */
  uint64_t model_id;        /**< As in kvq_cache_options. */
  uint64_t bytes;           /**< Of one network in a file. */
  const char* experts;      /**< Names of the formats as in a policy, those with more bits first, separated by ", ".
                                 \length string \keeps handle */
  const char* note;         /**< Where the routers come from, as their trainer said. \length string \keeps handle */
} kvq_router_info;

/** Describe routers.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_router_describe(const kvq_router* router, kvq_router_info* info, kvq_error* error);

/** One group of layers; see ::kvq_router_info. */
typedef struct kvq_router_group_info {
  uint32_t struct_size;
  int32_t first_layer; /**< Whose keys decide. */
  int32_t last_layer;
  int32_t reserved;               /**< 0. */
  double mean_bits;               /**< As in kvq_router_info, of these layers. */
  double accuracy;                /**< As in kvq_router_info, of these layers. */
  double shares[KVQ_MAX_EXPERTS]; /**< Of the pages that each format gets; 0 beyond `n_experts`. */
} kvq_router_group_info;

/** Describe one group of layers.
 *  \param group  0 … groups − 1.
 *  \param info   its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_router_describe_group(const kvq_router* router, int32_t group, kvq_router_group_info* info,
                                             kvq_error* error);

/** Destroy a handle.
 *  \param router  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_router_destroy(kvq_router* router);

/* ----------------------------------------------------------------------------------------------------------- cache */

/** The attention layers of one model; owns the page formats and the work space of ::kvq_attend.
 *  \destroy kvq_cache_destroy */
typedef struct kvq_cache kvq_cache;

/** The shape of a model's attention layers, and what their pages need. */
typedef struct kvq_cache_options {
  uint32_t struct_size;
  int32_t n_layers;      /**< 1 … 65536. */
  int32_t q_heads;       /**< Query heads, 1 … 65536; a multiple of `kv_heads`. */
  int32_t kv_heads;      /**< Key/value heads, 1 … 4096. */
  int32_t head_dim;      /**< A multiple of 8, 8 … 256. */
  kvq_rope rope;         /**< ::KVQ_ROPE_HALF by default. */
  int32_t rotary_dim;    /**< Leading channels that are rotated, even; 0 (default): `head_dim`. */
  float rope_base;       /**< 10000 by default; frequencies must be finite. Unused when `inv_freq` is given. */
  const float* inv_freq; /**< Radians per position, head_dim / 2 where `rotary_dim` is 0; NULL (default):
                              rope_base^(-2j / rotary_dim).
                              \nullable \length rotary_dim / 2 \memory host \keeps call */
  float scale;           /**< Factor on q·k; 0 (default): 1 / sqrt(head_dim). */
  int32_t reserved;      /**< 0. */
  uint64_t max_bytes;    /**< Limit on what this cache allocates, its own object included; 0 (default): only the
                              context's. */
  uint64_t model_id;     /**< Any number that identifies the model's weights; snapshots of another one are refused. */
  const kvq_codebook* codebook; /**< What the format `commvq` of a policy needs: of this context, complete, for this
                                     many layers and KV heads, this `head_dim` and `rope`, and this `model_id` unless
                                     one of them is 0. Any number of caches share it. NULL (default): none.
                                     \nullable \keeps call */
  const kvq_router* router;     /**< What `router` in a policy needs: of this context, trained for this shape, `rope`,
                                     `model_id` unless one of them is 0, and the policy's experts. Any number of caches
                                     share it. NULL (default): none. \nullable \keeps call */
  const kvq_centres* centres;   /**< What the formats gs and gt with trained centres need: of this context, complete,
                                     for this many layers and KV heads, this `head_dim` and, for keys, `rope`, and this
                                     `model_id` unless one of them is 0. Any number of caches share it. A policy may
                                     need `codebook` or `centres`, not both. NULL (default): none.
                                     \nullable \keeps call */
} kvq_cache_options;

/** Fill with defaults; the four sizes are left 0 and must be set.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_cache_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_cache_options_init(kvq_cache_options* options, size_t size);

/** Create a cache.
 *
 *  \param policy  of this or another context; NULL: fp16. \nullable
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: the policy needs a codebook, centres or a router and there
 *           is none); KVQ_E_MISMATCH (a codebook, centres or router for another model, with the difference);
 *           KVQ_E_UNSUPPORTED (a format that the context's device does not compute with; formats of which some need a
 *           codebook and others centres); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_cache_create(kvq_context* context, const kvq_cache_options* options, const kvq_policy* policy,
                                    kvq_cache** result, kvq_error* error);

/** Destroy a handle. Sequences of the cache keep it alive.
 *  \param cache  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_cache_destroy(kvq_cache* cache);

/** What a cache was made with, defaults filled in. */
typedef struct kvq_cache_info {
  uint32_t struct_size;
  int32_t n_layers;
  int32_t q_heads;
  int32_t kv_heads;
  int32_t head_dim;
  kvq_rope rope;
  int32_t rotary_dim; /**< 0 without RoPE. */
  float scale;
  int32_t sink;            /**< First pages of a list that stay FP16. */
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

/** How a layer stores what is sealed. */
typedef struct kvq_layer_info {
  uint32_t struct_size;
  int32_t n_formats;              /**< 1, or those that a router chooses among. */
  char formats[KVQ_FORMATS_SIZE]; /**< Their names, keys/values where these differ, separated by
                                       ", ". */
} kvq_layer_info;

/** Describe a layer of a cache.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads any.  \since 1.0 */
KVQ_API kvq_status kvq_cache_describe_layer(const kvq_cache* cache, int32_t layer, kvq_layer_info* info,
                                            kvq_error* error);

/** The context that a cache was created from, which lives as long as the cache does.
 *  \returns NULL for NULL. \nullable \keeps handle
 *  \threads any.  \since 1.0 */
KVQ_API kvq_context* kvq_cache_context(const kvq_cache* cache);

/* -------------------------------------------------------------------------------------------------------- sequence */

/** The pages of one conversation. Belongs to the cache that made it. \destroy kvq_sequence_destroy */
typedef struct kvq_sequence kvq_sequence;

/** Create an empty sequence.
 *  \param result  receives the handle. \parent cache
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any number of sequences of one cache may be created, used and destroyed concurrently.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_create(kvq_cache* cache, kvq_sequence** result, kvq_error* error);

/** Create a sequence that starts with everything `parent` holds. Pages are shared until one side changes them.
 *  \param result  receives the handle. \parent cache
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL, or `parent` belongs to another cache); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads `parent` may be read concurrently.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_fork(kvq_cache* cache, const kvq_sequence* parent, kvq_sequence** result,
                                     kvq_error* error);

/** Drop tokens from the end of every layer, so that each layer keeps the first `length` tokens.
 *
 *  Exact while the cut lies in an FP16 page or on a page border (a multiple of ::KVQ_PAGE_SLOTS). A cut inside a
 *  sealed page is refused: keep `recent: 2` or more pages in FP16 to be able to roll back at least 32 tokens.
 *  On a border, a page that had been sealed stays sealed.
 *
 *  \param length  0 … the shortest layer's length.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (negative or beyond the length); KVQ_E_STATE (inside a sealed page; the message
 *           gives the nearest lengths that work; or evicted tokens had gaps in their positions); KVQ_E_MEMORY,
 *           KVQ_E_LIMIT (a shared page had to be copied).
 *  \threads exclusive use of `sequence`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_truncate(kvq_cache* cache, kvq_sequence* sequence, int32_t length, kvq_error* error);

/** Destroy a sequence; pages shared with a fork live on.
 *  \param sequence  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_sequence_destroy(kvq_sequence* sequence);

/** The cache that a sequence belongs to, which lives as long as the sequence does.
 *  \returns NULL for NULL. \nullable \keeps handle
 *  \threads any.  \since 1.0 */
KVQ_API kvq_cache* kvq_sequence_cache(const kvq_sequence* sequence);

/** Make pages ahead, so that every layer has room for `tokens` more tokens.
 *
 *  Appends then take these pages: while there is room, no append of up to ::KVQ_PAGE_SLOTS tokens allocates page
 *  memory, and on a CPU the pages of a head lie next to each other from the start. On a GPU this is what a CUDA graph
 *  needs:
 *
 *      kvq_context_set_stream(context, stream);
 *      kvq_attend(…)                                  // once with the graph's batch: it allocates its work space
 *      kvq_sequence_reserve(cache, sequence, 4096, …);
 *      cudaStreamBeginCapture(stream, …);
 *      kvq_append(…, 1, k, v, …); kvq_attend(…);      // of every layer
 *      cudaStreamEndCapture(stream, &graph);
 *
 *  Every launch of the graph appends one token more and attends to all: lengths, positions and page tables live on the
 *  device. While a stream is captured, kvq_append takes at most ::KVQ_PAGE_SLOTS tokens and no positions, kvq_attend
 *  takes no query positions, and other functions of the sequence may not be called. Afterwards they may: each first
 *  waits for the context's stream to learn how far the graph has come, so launch graphs on it, or let it wait for them.
 *  A launch without room appends nothing, and a later call on the context returns KVQ_E_LIMIT. A graph stays valid
 *  until kvq_sequence_reserve is called again, or something it refers to is destroyed. Forks of a sequence with pages
 *  made ahead copy its open pages. Layers with a codebook's codes cannot be captured, nor can attention where a policy
 *  evicts by what queries look at: these calls return KVQ_E_UNSUPPORTED.
 *
 *  \param tokens  ≥ 0, per layer; 0 gives back the pages that are left.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL; a sequence of another cache; negative, or more than a layer can hold);
 *           KVQ_E_STATE (a stream is captured); KVQ_E_UNSUPPORTED (above 0 where a router chooses the formats);
 *           KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.
 *  \threads exclusive use of `sequence`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_reserve(kvq_cache* cache, kvq_sequence* sequence, int32_t tokens, kvq_error* error);

/** Number of tokens that `layer` has pages for, made by ::kvq_sequence_reserve. Truncating makes room again, except for
 *  pages that a fork still holds.
 *  \param room  receives the number; unchanged on failure. \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BACKEND.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_sequence_room(const kvq_sequence* sequence, int32_t layer, int32_t* room, kvq_error* error);

/** Number of tokens appended to `layer`, evicted ones included.
 *  \param length  receives the number; unchanged on failure. \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BACKEND.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_sequence_length(const kvq_sequence* sequence, int32_t layer, int32_t* length, kvq_error* error);

/** Number of tokens that a KV head of `layer` holds: what eviction has left. ::kvq_sequence_decode tells their
 *  positions.
 *  \param kv_head  0 … kv_heads − 1.
 *  \param slots    receives the number; unchanged on failure. \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BACKEND.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_sequence_slots(const kvq_sequence* sequence, int32_t layer, int32_t kv_head, int32_t* slots,
                                      kvq_error* error);

/** Write a snapshot of a sequence.
 *
 *  \param buffer    NULL: only the size is asked for. \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the snapshot in bytes; also when `capacity` is too small. \length 1
 *                   \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_BACKEND.
 *  \threads `sequence` may be read concurrently.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_save(kvq_cache* cache, const kvq_sequence* sequence, void* buffer, size_t capacity,
                                     size_t* size, kvq_error* error);

/** Make a sequence from a snapshot. Every byte is checked; saving the result again gives the same bytes.
 *
 *  \param buffer  what ::kvq_sequence_save wrote. \length size \memory host \keeps call
 *  \param size    bytes at `buffer`.
 *  \param result  receives the handle. \parent cache
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged or truncated); KVQ_E_MISMATCH (another model, shape, policy
 *           format or version; tokens were evicted, which the cache's policy never does); KVQ_E_MEMORY; KVQ_E_LIMIT;
 *           KVQ_E_BACKEND.
 *  \threads see ::kvq_sequence_create.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_load(kvq_cache* cache, const void* buffer, size_t size, kvq_sequence** result,
                                     kvq_error* error);

/** Append tokens to one layer of a sequence, from dense tensors.
 *
 *  Fills the layer's open page; a full page is sealed (encoded in its final format) when it leaves the newest `recent`
 *  pages, that is when the next token arrives. Either all `n` tokens are appended or none.
 *
 *  \param n          number of tokens, ≥ 1.
 *  \param k          keys `[n, kv_heads, head_dim]`, before RoPE unless the cache was made with ::KVQ_ROPE_NONE; of a
 *                    CUDA context read in stream order. Finite, magnitude at most 65504 (FP16) after rotation, in
 *                    layers stored with `+hadamard` or in gain-shape pages after that rotation too.
 *                    \length n * cache.kv_heads * cache.head_dim \memory context \keeps call
 *  \param v          values, same shape and rules. \length n * cache.kv_heads * cache.head_dim \memory context
 *                    \keeps call
 *  \param dtype      element type of `k` and `v`.
 *  \param positions  original positions, ≥ 0, strictly increasing and beyond the layer's last one; NULL: consecutive.
 *                    \nullable \length n \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL, shape, dtype, position, value not representable: a CUDA context stores the
 *           nearest representable number, 0 for NaN, and a later call reports it); KVQ_E_STATE (a CUDA graph is
 *           captured or lives, see ::kvq_sequence_reserve; the layer takes the formats of its pages from another one,
 *           which would hold fewer tokens: append to layers in their order); KVQ_E_LIMIT; KVQ_E_MEMORY; KVQ_E_BACKEND.
 *  \threads exclusive use of `sequence`; other sequences of the cache may be appended to, attended to, saved and so on
 *           concurrently.
 *  \since 1.0 */
KVQ_API kvq_status kvq_append(kvq_cache* cache, kvq_sequence* sequence, int32_t layer, int32_t n, const void* k,
                              const void* v, kvq_dtype dtype, const int32_t* positions, kvq_error* error);

/** Tokens for one layer of several sequences. Rows of `k` and `v`, a token's, follow sequence by sequence. */
typedef struct kvq_append_batch {
  uint32_t struct_size;
  int32_t n_sequences;            /**< ≥ 1. */
  kvq_sequence* const* sequences; /**< All of this cache, none twice. \length n_sequences \memory host \keeps call */
  const int32_t* token_counts;    /**< Each ≥ 1; NULL (default): one token each.
                                       \nullable \length n_sequences \memory host \keeps call */
  const int32_t* positions;       /**< As for ::kvq_append; NULL (default): consecutive in each sequence.
                                       \nullable \length sum(token_counts) \memory host \keeps call */
  const void* k;                  /**< As for ::kvq_append.
                                       \length strided(sum(token_counts), cache.kv_heads, cache.head_dim)
                                       \memory context \keeps call */
  const void* v;                  /**< As for ::kvq_append.
                                       \length strided(sum(token_counts), cache.kv_heads, cache.head_dim)
                                       \memory context \keeps call */
  kvq_dtype dtype;                /**< Of `k` and `v`; ::KVQ_F32 by default. */
  int32_t reserved;               /**< 0. */
  int64_t k_token_stride; /**< Elements from a token's keys to the next one's, not negative; 0 (default): dense, as many
                               as its heads take. The channels of a head are always neighbours, and rows need no more
                               alignment than their elements. */
  int64_t k_head_stride;  /**< Elements from a head to the next one, not negative; 0 (default): dense, head_dim. */
  int64_t v_token_stride; /**< As for keys. */
  int64_t v_head_stride;  /**< As for keys. */
} kvq_append_batch;

/** Fill with defaults (one dense F32 token a sequence).
 *  \param batch  \nullable
 *  \param size   sizeof(kvq_append_batch).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_append_batch_init(kvq_append_batch* batch, size_t size);

/** Append tokens to one layer of several sequences: to all of them, or to none.
 *
 *  Strides reach tokens and heads in tensors of any layout, such as queries, keys and values in one: `k` then points to
 *  the first key, and `k_token_stride` is (q_heads + 2 · kv_heads) · head_dim. What is stored is what ::kvq_append
 *  stores. A batch shares the work on all sequences among threads, and on a GPU takes one launch (in a CUDA graph one
 *  for each sequence).
 *
 *  \returns as ::kvq_append; KVQ_E_ARGUMENT also if a sequence occurs twice, or an offset by the strides is too large.
 *           Messages count tokens over all sequences.
 *  \threads exclusive use of these sequences; others of the cache may be used concurrently.
 *  \since 1.0 */
KVQ_API kvq_status kvq_append_sequences(kvq_cache* cache, int32_t layer, const kvq_append_batch* batch,
                                        kvq_error* error);

/** Decode stored keys and values, for inspection and tests. Not fast.
 *
 *  \param kv_head    0 … kv_heads − 1.
 *  \param begin      first slot of the head's list.
 *  \param n          slots from there on, ≥ 1.
 *  \param k          receives `[n, head_dim]` keys as attention sees them (after RoPE); NULL: skip.
 *                    \nullable \length n * cache.head_dim \memory host \keeps call
 *  \param v          receives `[n, head_dim]` values; NULL: skip.
 *                    \nullable \length n * cache.head_dim \memory host \keeps call
 *  \param positions  receives original positions; NULL: skip. \nullable \length n \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.
 *  \threads `sequence` may be read concurrently.
 *  \since 1.0 */
KVQ_API kvq_status kvq_sequence_decode(const kvq_cache* cache, const kvq_sequence* sequence, int32_t layer,
                                       int32_t kv_head, int32_t begin, int32_t n, float* k, float* v,
                                       int32_t* positions, kvq_error* error);

/* -------------------------------------------------------------------------------------------------------- eviction */

/** What to compress to, and where to report. */
typedef struct kvq_compress_options {
  uint32_t struct_size;
  int32_t budget;        /**< Tokens of a KV head that are kept on average; 0 (default): the policy's. */
  int32_t* kept;         /**< `[n_layers, kv_heads]` receives the tokens that each head holds afterwards; NULL: skip.
                              \nullable \length cache.n_layers * cache.kv_heads \memory host \keeps call */
  uint64_t* bytes_freed; /**< Receives by how much the bytes of the sequence fell; NULL: skip.
                              \nullable \length 1 \memory host \keeps call */
} kvq_compress_options;

/** Fill with defaults.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_compress_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_compress_options_init(kvq_compress_options* options, size_t size);

/** Evict tokens as the `eviction` of the cache's policy says, at a moment of the caller's choice: after a prompt, and
 *  again when a conversation has grown.
 *
 *  Tokens are judged by the queries that kvq_attend has seen: by the last `window` of them (of a prompt, if this
 *  follows it), or by all. A policy names one of the papers' methods and a budget, the tokens that a KV head keeps on
 *  average:
 *
 *      eviction:
 *        method: adasnap  # streaming: the first and the newest tokens (StreamingLLM)
 *                         # h2o: most attention from all queries (H2O)
 *                         # snapkv: most attention from the newest queries (SnapKV)
 *                         # pyramid: the same, more in the first layers and less in the last (PyramidKV)
 *                         # adasnap, adapyramid: and heads share a layer's budget as they need it (Ada-KV)
 *        budget: 128      # the window included; or a share of the tokens that were appended, like 25%
 *
 *  or the parts of a method: `score` (window, streaming, mass), `layers` (uniform, pyramid) and `heads` (uniform,
 *  adaptive, reserved, together: the same tokens for all heads, as CommVQ values of scope layer need). Further:
 *  `window` (32) newest tokens that are always kept; `kernel` (7, odd) and `pooling` (max, mean) of scores along
 *  positions; `group` (mean, max) of the query heads of a KV head; `first` (4) tokens for streaming; `alpha` (0.5),
 *  from 0, which splits freely, to 1, uniformly; with `reserved` the part of the budget that every head has for itself;
 *  `beta` (20): the last layer of a pyramid keeps budget / beta.
 *
 *  What stays keeps its positions and moves to new, dense pages in the policy's formats; forks keep what they have.
 *  Nothing happens to layers that hold no more than their budget. Lengths of sequences still count the evicted tokens,
 *  and kvq_sequence_truncate drops what lies beyond the position. What has been observed is not part of a snapshot:
 *  after kvq_sequence_load, attend before compressing.
 *
 *  \param options  NULL: defaults. \nullable
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: a budget smaller than the window); KVQ_E_STATE (the policy has no eviction, a
 *           layer is empty, no query has been observed or more than `window` tokens have come since, pages have been
 *           made ahead); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads exclusive use of `sequence`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_compress(kvq_cache* cache, kvq_sequence* sequence, const kvq_compress_options* options,
                                kvq_error* error);

/* ------------------------------------------------------------------------------------------------------- attention */

/** Queries of one or several sequences, and where their results go. */
typedef struct kvq_attend_batch {
  uint32_t struct_size;
  int32_t n_sequences;                  /**< ≥ 1. */
  const kvq_sequence* const* sequences; /**< All of this cache; the same one may occur repeatedly.
                                             \length n_sequences \memory host \keeps call */
  const int32_t* query_counts;          /**< Each ≥ 1; NULL (default): one query each.
                                             \nullable \length n_sequences \memory host \keeps call */
  const int32_t* query_positions; /**< ≥ 0; NULL (default): the last `query_counts[i]` tokens of each sequence, so
                                       append before attending.
                                       \nullable \length sum(query_counts) \memory host \keeps call */
  const void* q; /**< `[total queries, q_heads, head_dim]`, before RoPE unless the cache was made with ::KVQ_ROPE_NONE.
                    Finite, as its logits are: what comes of others means nothing. \length strided(sum(query_counts),
                    cache.q_heads, cache.head_dim) \memory context \keeps call */
  kvq_dtype q_dtype;      /**< ::KVQ_F32 by default. */
  kvq_dtype output_dtype; /**< ::KVQ_F32 by default. */
  void* output; /**< `[total queries, q_heads, head_dim]`; from the first row to the last, its memory may not overlap
                   that of `q` or `sinks`. \length strided(sum(query_counts), cache.q_heads, cache.head_dim) \memory
                   context \keeps call */
  int32_t sliding_window; /**< A query at position p sees positions > p − window; 0 (default): all. */
  float logit_softcap;    /**< cap·tanh(logit / cap); 0 (default): none. */
  int64_t q_token_stride; /**< Elements from a query's row to the next one's, not negative; 0 (default): dense, as many
                               as its heads take. The channels of a head are always neighbours, and rows need no more
                               alignment than their elements. */
  int64_t q_head_stride;  /**< Elements from a head to the next one, not negative; 0 (default): dense,
                               head_dim. */
  int64_t output_token_stride; /**< As for queries. No two rows may overlap: all heads of a query lie before the
                                    next query's (token stride ≥ (q_heads − 1) · head stride + head_dim), or all
                                    queries of a head before the next head's. What is between is left alone. */
  int64_t output_head_stride;  /**< As for queries. */
  float* lse;         /**< `[total queries, q_heads]` receives the natural logarithm of the sum of exp of the logits,
                           after scale and cap, sinks included; -infinity for a query that sees nothing and has no sink.
                           Results over parts of a context merge by it, where one part alone has the sinks:
                           Σᵢ exp(lseᵢ − lse) · outputᵢ with lse = log Σᵢ exp lseᵢ. It may not overlap `q`, `output` or
                           `sinks`. NULL (default): skip.
                           \nullable \length sum(query_counts) * cache.q_heads \memory context \keeps call */
  const float* sinks; /**< `[q_heads]` learned logits: each adds exp(sink) to the softmax denominator of its head and
                           nothing to the sum of values; neither scaled nor capped; -infinity is none; NaN and
                           +infinity are refused on a CPU. NULL (default): none.
                           \nullable \length cache.q_heads \memory context \keeps call */
} kvq_attend_batch;

/** Fill with defaults (one dense F32 query a sequence).
 *  \param batch  \nullable
 *  \param size   sizeof(kvq_attend_batch).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_attend_batch_init(kvq_attend_batch* batch, size_t size);

/** Attention of a batch of queries over one layer.
 *
 *  `output = softmax(scale · q·kᵀ) v` for every query head, where query head h reads KV head h / (q_heads / kv_heads)
 *  and a query at position p sees the tokens at positions ≤ p. A query that sees no token gives zeros, with a sink
 *  too. Accumulation is in FP32. On a CPU the result is the same, bit for bit, for any number of threads and any
 *  composition of the batch; on a GPU it is the same for the same batch. Allocates only when a batch needs
 *  more work space than any before it, more calls come at once than ever before, or the policy evicts.
 *
 *  Relative to exact attention over the decoded pages, the error is rounding of FP32 for FP16 pages. On instruction
 *  sets with int8 dot products ("avx512vnni", "amx") integer pages multiply 16-bit (INT8) or 8-bit (INT4, INT3, INT2)
 *  fixed-point queries and probabilities, whose error stays well below that of the format itself; select "avx512" or
 *  "avx2" in ::kvq_context_options for FP32 products. On a GPU queries, probabilities and their products with a page's
 *  scales are rounded to FP16.
 *
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (a CUDA graph is captured, see ::kvq_sequence_reserve); KVQ_E_MEMORY;
 *           KVQ_E_LIMIT (work space); KVQ_E_BACKEND.
 *  \threads any number of calls on a cache at once; the sequences are only read, but for what kvq_compress judges by:
 *           if the policy evicts, exclusive use of the sequences.
 *  \since 1.0 */
KVQ_API kvq_status kvq_attend(kvq_cache* cache, int32_t layer, const kvq_attend_batch* batch, kvq_error* error);

/* ----------------------------------------------------------------------------------------------------------- usage */

/** Where the bytes are. All sizes are bytes as allocated, padding and bookkeeping included. */
typedef struct kvq_usage {
  uint32_t struct_size;
  int32_t reserved;          /**< 0. */
  int64_t scalars;           /**< Key and value scalars held: 2 · head_dim · slots over all layers and KV heads. */
  uint64_t sealed_bytes;     /**< Pages in their final compressed format. */
  uint64_t fp16_bytes;       /**< FP16 pages: open, recent, sink, or of an fp16 policy. */
  uint64_t metadata_bytes;   /**< Page records, positions, page lists, the sequence objects. */
  uint64_t workspace_bytes;  /**< Work space of kvq_attend and the cache object; 0 when asked for one sequence. */
  uint64_t total_bytes;      /**< Sum of the four. */
  uint64_t plain_fp16_bytes; /**< 2 · scalars: what an uncompressed FP16 cache needs. */
  uint64_t sealed_pages;
  uint64_t fp16_pages;
  uint64_t shared_pages;  /**< Pages that more than one sequence holds. For one sequence they are counted in full. */
  double bits_per_scalar; /**< 8 · (sealed + fp16 + metadata bytes) / scalars; 0 when empty. */
} kvq_usage;

/** Bytes used by one sequence, or by the whole cache with shared pages counted once.
 *  \param sequence  NULL: the whole cache. \nullable
 *  \param usage     its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BACKEND.
 *  \threads read-only for one sequence; exclusive use of all sequences when `sequence` is NULL.
 *  \since 1.0 */
KVQ_API kvq_status kvq_cache_usage(const kvq_cache* cache, const kvq_sequence* sequence, kvq_usage* usage,
                                   kvq_error* error);

/** What ::kvq_cache_usage would say of the whole cache if it held nothing but new sequences, to the byte. Computed from
 *  sizes: no page is made, and what the cache holds now does not matter.
 *
 *  Each sequence is one for which ::kvq_sequence_reserve made pages for `tokens` tokens, and to every layer of which
 *  these were then appended: at consecutive positions, up to ::KVQ_PAGE_SLOTS at once or all at once. With `queries`,
 *  ::kvq_attend was then called for each layer, with `queries` queries of each sequence in one batch and without sinks;
 *  calls of several threads at once take a work space each.
 *
 *  \param sequences  ≥ 1.
 *  \param tokens     of each sequence, ≥ 0.
 *  \param queries    of each sequence, ≥ 0; 0: nothing is attended to.
 *  \param usage      its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL; a number out of range; more pages or queries than are counted);
 *           KVQ_E_UNSUPPORTED (a router chooses the formats of pages, so nobody knows their sizes before; `queries`
 *           above 0 on a CUDA context, whose work space depends on the device); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_cache_predict_usage(const kvq_cache* cache, int32_t sequences, int32_t tokens, int32_t queries,
                                           kvq_usage* usage, kvq_error* error);

/* --------------------------------------------------------------------------------------------------- linear layers */

/** A linear layer y = x·Wᵀ + b on weights of 1 to 8 bits: NUQ, VQ and TCQ of Q-Palette, and trellises of single
 *  weights. Immutable; may be used by several threads at once.
 *
 *  Inputs are rotated before a matrix sees them: random signs, then a Hadamard matrix. Matrices whose options have the
 *  same `seed` and that have the same number of columns share the rotation, which ::qp_linear_shared does once.
 *  \destroy qp_matrix_destroy */
typedef struct qp_matrix qp_matrix;

/** Number of schemes that qp_quantize_options::scheme may name.
 *  \threads any.  \since 1.0 */
KVQ_API int32_t qp_scheme_count(void);
/** "nuq-4", "vq-2.5", "tcq-2.75", "tcx-3", "fp16", …: a family and the bits of a weight.
 *
 *  - `nuq`: every weight is one of 2^bits levels. 1, 2, 3, 4, 5, 6 and 8 bits.
 *  - `vq`: every pair of weights is one of 4^bits points. 1.5 to 5 bits in steps of a half.
 *  - `tcq`: pairs on a path through a trellis of 65 536 states, levels from a table. 1.5 to 5 bits in steps of a
 *    quarter; odd quarters write half of each row in a quarter bit less and half in a quarter bit more.
 *  - `tcx`: single weights on such a path, of 256 levels: less error and faster. 1.5 to 5 bits in steps of a half.
 *  - `fp16`: the weights as they are, rounded to FP16 and not rotated.
 *
 *  \returns NULL if `index` is out of range. \nullable \length string \keeps static
 *  \threads any.  \since 1.0 */
KVQ_API const char* qp_scheme_name(int32_t index);
/** Bits of a weight in a scheme, without scales and signs; 0 for a name that is no scheme.
 *  \param name  \nullable \length string \memory host \keeps call
 *  \threads any.  \since 1.0 */
KVQ_API double qp_scheme_bits(const char* name);

/** Told how far a long call has come, and asked whether to go on. Called now and then from the calling thread; may not
 *  use the objects of the call.
 *  \param done  0 … 1, an estimate of the share of the time, never falling.
 *  \returns 0 to go on, anything else to end the call with ::KVQ_E_CANCELLED. */
typedef int32_t (*kvq_progress_hook)(void* user, double done);

/** How a Hessian is used. \values */
typedef int32_t qp_rounding;
enum {
  QP_ROUNDING_LDLQ = 0,   /**< Columns are coded from the last one to the first, each corrected for the errors of those
                               behind it (block LDLQ). */
  QP_ROUNDING_NEAREST = 1 /**< Every weight, pair or tile is rounded to what is nearest; the Hessian only tells
                               qp_matrix_info::proxy_error. */
};

/** How a matrix is written in few bits. */
typedef struct qp_quantize_options {
  uint32_t struct_size;
  kvq_dtype dtype;      /**< Of the weights; ::KVQ_F32 by default. */
  const char* scheme;   /**< See ::qp_scheme_name; "nuq-4" by default. \length string \memory host \keeps call */
  uint64_t seed;        /**< Of the signs; 1 by default. */
  const float* hessian; /**< `[columns, columns]`, the mean of x·xᵀ over inputs x; NULL (default): weights are rounded
                             alone. \nullable \length columns * columns \memory host \keeps call */
  qp_rounding rounding; /**< What the Hessian is for; ::QP_ROUNDING_LDLQ by default. */
  int32_t reserved;     /**< 0. */
  double damping;       /**< Share of the Hessian's mean diagonal that is added to its diagonal, 0 … 1; 0.01 by
                             default. */
  const float* bias;    /**< Kept as it is; NULL (default): none. \nullable \length rows \memory host \keeps call */
  kvq_progress_hook progress; /**< NULL (default): not called. \nullable \keeps call */
  void* progress_user;        /**< Passed to `progress`. \nullable \keeps call */
} qp_quantize_options;

/** Fill with defaults.
 *  \param options  \nullable
 *  \param size     sizeof(qp_quantize_options).
 *  \threads any.  \since 1.0 */
KVQ_API void qp_quantize_options_init(qp_quantize_options* options, size_t size);

/** Write a matrix in few bits. The result depends on the arguments alone, not on threads or instruction sets.
 *
 *  \param w        weights `[rows, columns]` of `options->dtype`. \length rows * columns \memory host \keeps call
 *  \param rows     outputs of the layer, from 1 to 2^24.
 *  \param columns  its inputs, a multiple of 64 from 64 to 2^20.
 *  \param result   receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (shape, dtype, a scheme that does not exist, weights, bias or Hessian that are not
 *           finite, a Hessian that is not symmetric or, damped, not positive definite); KVQ_E_CANCELLED; KVQ_E_MEMORY;
 *           KVQ_E_LIMIT. Rows of zeros stay zeros.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status qp_quantize(kvq_context* context, const qp_quantize_options* options, const void* w, int64_t rows,
                               int64_t columns, qp_matrix** result, kvq_error* error);

/** Rows of the matrix that ::qp_linear multiplies by, in the order of the original.
 *  \param w  receives `[rows, columns]` floats. \length rows * matrix.columns \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL, rows beyond the last one); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status qp_matrix_dequantize(const qp_matrix* matrix, int64_t first_row, int64_t rows, float* w,
                                        kvq_error* error);

/** y = x·Wᵀ + b.
 *
 *  Inputs are rotated in FP32 and, but for `fp16`, rounded to integers of 8 bits with a scale for every 256 of them;
 *  products are summed exactly within these and in FP32 beyond, in the same order on every processor: a row of `y`
 *  depends on its row of `x` alone. Allocates nothing once a batch of this size has been seen.
 *
 *  \param x      `[batch, columns]` of `dtype`. \length batch * matrix.columns \memory context \keeps call
 *  \param batch  rows of `x` and `y`, at least 1.
 *  \param y      receives `[batch, rows]` of `dtype`; may not overlap `x`. \length batch * matrix.rows
 *                \memory context \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED (the context's device does not multiply by packed matrices);
 *           KVQ_E_MEMORY; KVQ_E_LIMIT. NaN or infinity in a row of `x` makes its row of `y` NaN.
 *  \threads any, on the same matrix too.
 *  \since 1.0 */
KVQ_API kvq_status qp_linear(const qp_matrix* matrix, const void* x, int32_t batch, void* y, kvq_dtype dtype,
                             kvq_error* error);

/** Several matrices on the same inputs in one call: y[i] = x·Wᵢᵀ + bᵢ, the same numbers as one by one. Schemes and
 *  numbers of rows may differ.
 *
 *  \param matrices  of one context, with the same columns and, those that rotate, the same signs. \length n
 *                   \memory host \keeps call
 *  \param n         matrices, 1 … 1024.
 *  \param x         as for ::qp_linear. \length batch * matrices.columns \memory context \keeps call
 *  \param y         outputs, `[batch, rows of matrix i]` each, in the context's memory, apart from each other
 *                   and from `x`. \length n \memory host \keeps call
 *  \returns as ::qp_linear; KVQ_E_MISMATCH (matrices that do not share their inputs).
 *  \threads any, on the same matrices too.
 *  \since 1.0 */
KVQ_API kvq_status qp_linear_shared(const qp_matrix* const* matrices, int32_t n, const void* x, int32_t batch,
                                    void* const* y, kvq_dtype dtype, kvq_error* error);

/** What a matrix is. */
typedef struct qp_matrix_info {
  uint32_t struct_size;
  int32_t has_bias; /**< 1 or 0. */
  int64_t rows;
  int64_t columns;
  uint64_t bytes;     /**< Of codes, scales, signs and bias. */
  double bits;        /**< 8 · bytes / (rows · columns), without the bias: true bits of a weight. */
  double error;       /**< ‖Ŵ − W‖² / ‖W‖² when it was quantized; 0 for a matrix of zeros. */
  double proxy_error; /**< tr(E·H·Eᵀ) / tr(W·H·Wᵀ) with E = Ŵ − W and the Hessian as given; 0 without one. */
  const char* scheme; /**< As in qp_quantize_options. \length string \keeps static */
} qp_matrix_info;

/** Describe a matrix.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status qp_matrix_describe(const qp_matrix* matrix, qp_matrix_info* info, kvq_error* error);

/** Write matrices as a safetensors file; docs/weights.md has its layout. The same matrices give the same bytes.
 *
 *  \param matrices  \length n \memory host \keeps call
 *  \param names     different names, each a string of up to 200 bytes. \length n \memory host \keeps call
 *  \param n         matrices, at least 1.
 *  \param buffer    NULL: only the size is asked for. \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the file in bytes; also when `capacity` is too small. \length 1 \memory host
 *                   \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL; names); KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status qp_matrix_save(const qp_matrix* const* matrices, const char* const* names, int32_t n, void* buffer,
                                  size_t capacity, size_t* size, kvq_error* error);

/** Read one matrix from a safetensors file in memory, which may hold other tensors and matrices too.
 *
 *  \param buffer  bytes of the file. \length size \memory host \keeps call
 *  \param size    bytes at `buffer`.
 *  \param name    as given to ::qp_matrix_save. \length string \memory host \keeps call
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL, no matrix of that name); KVQ_E_FORMAT (damaged, truncated, sizes that do not
 *           fit together; the message names the tensor or field); KVQ_E_MISMATCH (a file of another version);
 *           KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status qp_matrix_load(kvq_context* context, const void* buffer, size_t size, const char* name,
                                  qp_matrix** result, kvq_error* error);

/** Destroy a matrix.
 *  \param matrix  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void qp_matrix_destroy(qp_matrix* matrix);

/** How large a matrix will be, before there is one.
 *
 *  \param scheme     as in qp_quantize_options. \length string \memory host \keeps call
 *  \param rows       as for ::qp_quantize.
 *  \param columns    as for ::qp_quantize.
 *  \param has_bias   1 or 0.
 *  \param bytes      receives what qp_matrix_info::bytes will be; unchanged on failure. \length 1 \memory host
 *                    \keeps call
 *  \param allocated  receives by how much kvq_context_info::bytes of a CPU context grows with such a matrix, by
 *                    ::qp_quantize or ::qp_matrix_load: padding and the object included; unchanged on failure. NULL:
 *                    not wanted. \nullable \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (NULL, a scheme that does not exist, shape, `has_bias`).
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status qp_matrix_predict_bytes(const char* scheme, int64_t rows, int64_t columns, int32_t has_bias,
                                           uint64_t* bytes, uint64_t* allocated, kvq_error* error);

/* --------------------------------------------------------------------------------------------------- experimental */

#ifdef KVQ_EXPERIMENTAL

/** Measure which of a device's kernels are the fastest for calls of ::qp_linear_shared like this one, instead of going
 *  by an estimate, which was made on an H100. It holds for all matrices of the context of the same schemes and shapes,
 *  with exactly this batch; what is known already is not measured again.
 *
 *  Another kernel adds numbers up in another order, so that the last bits may change, now and from one measurement to
 *  the next: keep what was measured (::qp_tuning_save) where results are to stay the same.
 *
 *  Takes tenths of a second, waits for the context's stream and for measurements, and meanwhile allocates inputs,
 *  outputs and as many copies of the codes as twice the device's L2 cache holds. Not while a graph is captured.
 *
 *  \param matrices  as for ::qp_linear_shared. \length n \memory host \keeps call
 *  \param n         matrices, 1 … 1024.
 *  \param batch     rows, at least 1. Calls of more than 1024 go in pieces of so many, which are measured.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MISMATCH (matrices that do not share their inputs); KVQ_E_UNSUPPORTED (a CPU
 *           context, a stream that is captured); KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status qp_tune(const qp_matrix* const* matrices, int32_t n, int32_t batch, kvq_error* error);

/** Write what ::qp_tune measured and what ::qp_tuning_load read, as a text: a line for each device, scheme and shape.
 *
 *  \param buffer    receives the text, without a NUL. NULL: only the size is asked for. \nullable \length capacity
 *                   \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the text in bytes; also when `capacity` is too small. \length 1 \memory host
 *                   \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_UNSUPPORTED (a CPU context);
 *           KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status qp_tuning_save(kvq_context* context, char* buffer, size_t capacity, size_t* size, kvq_error* error);

/** Go by what was measured before. What was measured on another device or by another version of the library is kept for
 *  ::qp_tuning_save and not used.
 *
 *  \param text    as ::qp_tuning_save wrote it. \length length \memory host \keeps call
 *  \param length  bytes of `text`.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (the message names the line); KVQ_E_MISMATCH (a text of another
 *           version); KVQ_E_UNSUPPORTED (a CPU context); KVQ_E_MEMORY; KVQ_E_LIMIT. Nothing is taken over on failure.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status qp_tuning_load(kvq_context* context, const char* text, size_t length, kvq_error* error);

/** Trains codebooks from keys and values that the caller's engine computed on some texts.
 *
 *      kvq_codebook_trainer_create(context, &options, &trainer, &error);
 *      for every text, for every layer: kvq_codebook_trainer_add(trainer, layer, n, k, v, KVQ_BF16, &error);
 *      for every layer:                 kvq_codebook_trainer_run(trainer, layer, hook, user, &error);
 *      kvq_codebook_trainer_result(trainer, &codebook, &error);
 *
 *  Layers are independent: where memory is short, add and run a few at a time. Mix the texts that the model will see,
 *  and take tens of thousands of tokens: what matters most is that codes meet in use what they were trained on.
 *  \destroy kvq_codebook_trainer_destroy */
typedef struct kvq_codebook_trainer kvq_codebook_trainer;

/** How codes of values are trained, and how their bits are proposed when values are encoded. \values */
typedef int32_t kvq_value_method;
enum {
  KVQ_VALUES_LEAST_SQUARES = 0, /**< Alternating least squares; a linear map proposes bits. */
  KVQ_VALUES_NETWORK = 1        /**< The CommVQ paper's way: a network of one hidden layer proposes bits; it is trained
                                     together with the codes by gradient descent. */
};

/** What codebooks are trained for, and how many codes they have. */
typedef struct kvq_codebook_trainer_options {
  uint32_t struct_size;
  int32_t n_layers;    /**< 1 … 65536. */
  int32_t kv_heads;    /**< 1 … 4096. */
  int32_t head_dim;    /**< A multiple of 8, 8 … 256. */
  kvq_rope rope;       /**< ::KVQ_ROPE_HALF by default, or ::KVQ_ROPE_INTERLEAVED. */
  int32_t key_stages;  /**< 0 … 64, 0: no codes for keys. A key scalar takes key_stages · log2(key_codes) / key_group
                            bits: with groups of 64, 11 (default) give 1.03 and 21 give 1.97. */
  int32_t key_codes;   /**< A power of two, 2 … 256; 64 by default. */
  int32_t key_group;   /**< A divisor of head_dim / 2; 0 (default): head_dim / 2, one group a head. */
  kvq_scope key_norms; /**< ::KVQ_SCOPE_HEAD by default. */
  int32_t value_bits;  /**< 0, 1 (default) or 2, 0: no codes for values. */
  kvq_scope value_scope; /**< ::KVQ_SCOPE_LAYER by default: smaller errors, but tokens can be evicted only for all heads
                              of a layer at once. */
  int32_t key_rounds;    /**< Rounds of joint refinement of all stages, at most 1000; 0 (default): the library's. */
  int32_t value_rounds;  /**< Rounds of least squares, or of 50 steps of the network each, at most 1000; 0 (default):
                              the library's choice. */
  kvq_value_method value_method; /**< ::KVQ_VALUES_LEAST_SQUARES by default. */
  uint64_t seed;                 /**< Of everything random; 1 by default. */
  uint64_t model_id;             /**< Any number that identifies the model's weights, as in kvq_cache_options. */
  uint64_t max_bytes;            /**< Limit on tokens kept and work space; 0 (default): only the context's. */
  const char* note; /**< At most 4096 bytes: where the codebooks come from, for example. NULL (default): "".
                         \nullable \length string \memory host \keeps call */
} kvq_codebook_trainer_options;

/** Fill with defaults; the three sizes are left 0 and must be set.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_codebook_trainer_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_codebook_trainer_options_init(kvq_codebook_trainer_options* options, size_t size);

/** Create a trainer. It works on the device of the context; networks of values, on the host.
 *
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_codebook_trainer_create(kvq_context* context, const kvq_codebook_trainer_options* options,
                                               kvq_codebook_trainer** result, kvq_error* error);

/** Take over finished layers of an earlier, unfinished result. Tokens already added to these layers are dropped.
 *
 *  \param codebook  of the trainer's context, of the same shape, seed, model and note.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: of another context); KVQ_E_MISMATCH (with the difference).
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_codebook_trainer_resume(kvq_codebook_trainer* trainer, const kvq_codebook* codebook,
                                               kvq_error* error);

/** Add tokens to a layer that is not finished. They are kept as FP16 until the layer is.
 *
 *  \param n      number of tokens, ≥ 1.
 *  \param k      keys before RoPE, `[n, kv_heads, head_dim]`; finite, magnitude at most 65504. NULL is allowed without
 *                codes for keys. \nullable \length n * trainer.kv_heads * trainer.head_dim \memory host \keeps call
 *  \param v      values, same shape and rules. \nullable \length n * trainer.kv_heads * trainer.head_dim
 *                \memory host \keeps call
 *  \param dtype  element type of `k` and `v`.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (the layer is finished); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_codebook_trainer_add(kvq_codebook_trainer* trainer, int32_t layer, int32_t n, const void* k,
                                            const void* v, kvq_dtype dtype, kvq_error* error);

/** Train one layer on the tokens added to it, and drop them. Takes minutes for a large model; uses the threads of the
 *  context. The result depends on the options, the tokens and the kind of device alone.
 *
 *  \param progress  it may not use `trainer`. NULL: not called. \nullable \keeps call
 *  \param user      passed to `progress`. \nullable \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: too few tokens); KVQ_E_STATE (the layer is finished, or has no tokens);
 *           KVQ_E_CANCELLED; KVQ_E_MEMORY; KVQ_E_LIMIT. After a failure the layer has its tokens still.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_codebook_trainer_run(kvq_codebook_trainer* trainer, int32_t layer, kvq_progress_hook progress,
                                            void* user, kvq_error* error);

/** The codebooks of the layers finished so far. They share memory with the trainer and outlive it.
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

/** Trains centres from keys and values that the caller's engine computed on some texts.
 *
 *      kvq_centres_trainer_create(context, &options, &trainer, &error);
 *      for every text, for every layer: kvq_centres_trainer_add(trainer, layer, n, k, v, KVQ_BF16, &error);
 *      for every layer:                 kvq_centres_trainer_run(trainer, layer, hook, user, &error);
 *      kvq_centres_trainer_result(trainer, &centres, &error);
 *
 *  Layers are independent: where memory is short, add and run a few at a time. Mix the texts that the model will see,
 *  and take some hundred tokens for each centre of a head. \destroy kvq_centres_trainer_destroy */
typedef struct kvq_centres_trainer kvq_centres_trainer;

/** What centres are trained for, and how many there are. */
typedef struct kvq_centres_trainer_options {
  uint32_t struct_size;
  int32_t n_layers;      /**< 1 … 65536. */
  int32_t kv_heads;      /**< 1 … 4096. */
  int32_t head_dim;      /**< A multiple of 8, 8 … 256. */
  kvq_rope rope;         /**< That follows the keys; ::KVQ_ROPE_HALF by default. */
  int32_t key_centres;   /**< Of a head, 0 … 256; 256 by default, 1: the mean, 0: none for keys. */
  int32_t value_centres; /**< The same for values. */
  int32_t rounds;        /**< Of k-means over all tokens, at most 1000; 0 (default): the library's choice. */
  uint64_t seed;         /**< Of everything random; 1 by default. */
  uint64_t model_id;     /**< Any number that identifies the model's weights, as in kvq_cache_options. */
  uint64_t max_bytes;    /**< Limit on tokens kept and work space; 0 (default): only the context's. */
  const char* note;      /**< At most 4096 bytes: where the centres come from, for example. NULL (default): "".
                              \nullable \length string \memory host \keeps call */
} kvq_centres_trainer_options;

/** Fill with defaults; the three sizes are left 0 and must be set.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_centres_trainer_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_centres_trainer_options_init(kvq_centres_trainer_options* options, size_t size);

/** Create a trainer. It works on the device of the context.
 *
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_trainer_create(kvq_context* context, const kvq_centres_trainer_options* options,
                                              kvq_centres_trainer** result, kvq_error* error);

/** Add tokens to a layer that is not finished. They are kept as FP16 until the layer is.
 *
 *  \param n      number of tokens, ≥ 1.
 *  \param k      keys before RoPE, `[n, kv_heads, head_dim]`; finite, magnitude at most 65504. NULL is allowed without
 *                centres for keys. \nullable \length n * trainer.kv_heads * trainer.head_dim \memory host \keeps call
 *  \param v      values, same shape and rules. \nullable \length n * trainer.kv_heads * trainer.head_dim
 *                \memory host \keeps call
 *  \param dtype  element type of `k` and `v`.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (the layer is finished); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_trainer_add(kvq_centres_trainer* trainer, int32_t layer, int32_t n, const void* k,
                                           const void* v, kvq_dtype dtype, kvq_error* error);

/** Train one layer on the tokens added to it, and drop them. Uses the threads of the context. The result depends on the
 *  options and the tokens alone.
 *
 *  \param progress  it may not use `trainer`. NULL: not called. \nullable \keeps call
 *  \param user      passed to `progress`. \nullable \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: fewer tokens than centres); KVQ_E_STATE (the layer is finished, or has no
 *           tokens); KVQ_E_CANCELLED; KVQ_E_MEMORY; KVQ_E_LIMIT. After a failure the layer has its tokens still.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_centres_trainer_run(kvq_centres_trainer* trainer, int32_t layer, kvq_progress_hook progress,
                                           void* user, kvq_error* error);

/** The centres of the layers finished so far. They share memory with the trainer and outlive it.
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

/** Trains routers from queries, keys and values that the caller's engine computed on some texts.
 *
 *      kvq_router_trainer_create(context, &cache_options, policy, &options, &trainer, &error);
 *      for every text, for every layer: kvq_router_trainer_add(trainer, layer, n, q, k, v, KVQ_BF16, &error);
 *      kvq_router_trainer_run(trainer, loss, hook, user, &error);
 *      kvq_router_trainer_result(trainer, &router, &error);
 *
 *  Texts should be as long as those that the model will see, a few thousand tokens each, and tens of thousands
 *  together: how much a page matters depends on what comes after it. \destroy kvq_router_trainer_destroy */
typedef struct kvq_router_trainer kvq_router_trainer;

/** How routers are trained, and for how many bits. */
typedef struct kvq_router_trainer_options {
  uint32_t struct_size;
  kvq_router_method method; /**< ::KVQ_ROUTER_LABEL by default. */
  int32_t sharing;          /**< Successive layers that share decisions, 1 … 65536; 3 by default. */
  int32_t epochs;           /**< Passes over the keys, at most 10000; 0 (default): the library's choice. */
  double mean_bits;         /**< For ::KVQ_ROUTER_LABEL, which needs it: the wanted mean of true bits of a scalar over
                                 routed pages, from those of the last expert to those of the first. 0 by default. */
  double loss_weight;       /**< For ::KVQ_ROUTER_PAPER: the weight of the model's loss against that of memory (the
                                 paper's λ), 0 … 1; 0.5 by default. */
  double learning_rate;     /**< Of AdamW, above 0, at most 1; 3e-4 by default. */
  uint64_t seed;            /**< Of everything random; 1 by default. */
  uint64_t max_bytes;       /**< Limit on keys kept and work space; 0 (default): only the context's. */
  const char* note;         /**< At most 4096 bytes. NULL (default): "". \nullable \length string \memory host
                                 \keeps call */
} kvq_router_trainer_options;

/** Fill with defaults; `mean_bits` is left 0 and must be set for labels.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_router_trainer_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_router_trainer_options_init(kvq_router_trainer_options* options, size_t size);

/** Create a trainer.
 *
 *  \param context  computes on the CPU.
 *  \param cache    what a cache of the model would be made with: its shape, RoPE, scale and `model_id`, and a codebook
 *                  if an expert is commvq.
 *  \param policy   with a router's experts, those with more bits first; `votes` and the effort for commvq are used
 *                  too.
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
 *  the time of training. Only keys of the first layer of each group are kept, as FP16.
 *
 *  \param n      tokens of the text, ≥ 1, at positions 0, 1, …. Pages are judged by the quarter of the text's tokens
 *                that follows them, so the first page and those in the last quarter are not learned from: a text of
 *                fewer than 85 tokens teaches nothing.
 *  \param q      queries before RoPE, `[n, q_heads, head_dim]`; finite. NULL is allowed for ::KVQ_ROUTER_PAPER.
 *                \nullable \length n * trainer.q_heads * trainer.head_dim \memory host \keeps call
 *  \param k      keys before RoPE, `[n, kv_heads, head_dim]`, as for kvq_append.
 *                \length n * trainer.kv_heads * trainer.head_dim \memory host \keeps call
 *  \param v      values, same shape and rules; NULL is allowed for ::KVQ_ROUTER_PAPER.
 *                \nullable \length n * trainer.kv_heads * trainer.head_dim \memory host \keeps call
 *  \param dtype  element type of the three.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT (also: another length than in other layers); KVQ_E_STATE (the training is done);
 *           KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_router_trainer_add(kvq_router_trainer* trainer, int32_t layer, int32_t n, const void* q,
                                          const void* k, const void* v, kvq_dtype dtype, kvq_error* error);

/** Train the routers of all layers on the texts added, and drop them. Uses the threads of the context. The result
 *  depends on the options and the texts alone.
 *
 *  \param loss      for ::KVQ_ROUTER_PAPER: the model's mean negative log-likelihood of a token of the texts (natural
 *                   logarithm), above 0. Ignored for labels.
 *  \param progress  it may not use `trainer`. NULL: not called. \nullable \keeps call
 *  \param user      passed to `progress`. \nullable \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (the training is done; a layer lacks texts that another one has; no
 *           text is long enough; the training diverged); KVQ_E_CANCELLED; KVQ_E_MEMORY; KVQ_E_LIMIT. After a failure
 *           the texts are there still.
 *  \threads exclusive use of `trainer`.
 *  \since 1.0 */
KVQ_API kvq_status kvq_router_trainer_run(kvq_router_trainer* trainer, double loss, kvq_progress_hook progress,
                                          void* user, kvq_error* error);

/** The routers, after ::kvq_router_trainer_run. They outlive the trainer.
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

/** What a plan makes as small as possible. \values */
typedef int32_t kvq_plan_goal;
enum {
  KVQ_PLAN_BYTES = 0,   /**< Memory. */
  KVQ_PLAN_SECONDS = 1, /**< Time, of a step of decoding for example. */
  KVQ_PLAN_LOSS = 2     /**< What is lost, in nats of divergence from the uncompressed model for example. */
};

/** Choices, of each of which a plan takes one option: the scheme of a matrix, the format of a layer's keys. Costs add
 *  up; the library knows nothing else of them. */
typedef struct kvq_plan_problem {
  uint32_t struct_size;
  kvq_plan_goal goal;           /**< ::KVQ_PLAN_LOSS by default. */
  int32_t n_choices;            /**< 1 … 2^20. */
  int32_t reserved;             /**< 0. */
  const int32_t* option_counts; /**< Options of each choice, at least 1; 2^24 together at most.
                                     \length n_choices \memory host \keeps call */
  const double* bytes;          /**< Of the options of the first choice, then of the second, …; finite, not negative.
                                     NULL (default): 0. \nullable \length sum(option_counts) \memory host \keeps call */
  const double* seconds;        /**< The same. \nullable \length sum(option_counts) \memory host \keeps call */
  const double* loss;           /**< The same. \nullable \length sum(option_counts) \memory host \keeps call */
  double max_bytes;             /**< That all options taken may have together; infinity (default): any. */
  double max_seconds;           /**< The same. */
  double max_loss;              /**< The same. */
  double tolerance;             /**< Share of the smallest goal by which the plan's may be above it, 0 … 1; 0.0001 by
                                     default. */
} kvq_plan_problem;

/** Fill with defaults.
 *  \param problem  \nullable
 *  \param size     sizeof(kvq_plan_problem).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_plan_problem_init(kvq_plan_problem* problem, size_t size);

/** What a plan costs. */
typedef struct kvq_plan_costs {
  uint32_t struct_size;
  int32_t reserved; /**< 0. */
  double bytes;
  double seconds;
  double loss;
  double bound; /**< No plan that keeps the limits has a smaller goal. It is within the tolerance of this plan's, but
                   for the hardest problems with two limits. */
} kvq_plan_costs;

/** Take one option of every choice, so that the goal is as small as possible and the limits hold.
 *
 *  With one limit this takes milliseconds for hundreds of choices with dozens of options, with two below a second.
 *
 *  \param chosen  receives the number of each choice's option, from 0. \length n \memory host \keeps call
 *  \param n       as many as there are choices.
 *  \param costs   its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_LIMIT (no plan keeps the limits; the message says what is missing, and the
 *           goal ::KVQ_PLAN_BYTES finds the smallest plan); KVQ_E_MEMORY.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_plan_solve(kvq_context* context, const kvq_plan_problem* problem, int32_t* chosen, int32_t n,
                                  kvq_plan_costs* costs, kvq_error* error);

/** All ways to group matrices that read the same inputs and to write them: for engines whose kernels fuse only equal
 *  schemes. Those that another one beats in bytes, seconds and loss are left out; the others are the options of one
 *  choice for ::kvq_plan_solve. Immutable. \destroy kvq_plan_fusion_destroy */
typedef struct kvq_plan_fusion kvq_plan_fusion;

/** Matrices that read the same inputs, of which some may be multiplied together if they have one scheme. A group is a
 *  set of members, bit i for member i. */
typedef struct kvq_plan_fusion_options {
  uint32_t struct_size;
  int32_t n_members;     /**< 1 … ::KVQ_MAX_FUSED, for example 3: q, k and v. */
  int32_t n_schemes;     /**< 1 … 1024. */
  int32_t n_groups;      /**< Groups that can be multiplied together, those of one member, too; 1 … 15. */
  const int32_t* groups; /**< All different; every member must be in one. \length n_groups \memory host \keeps call */
  const double* bytes;   /**< `[n_members, n_schemes]`, finite, not negative. \length n_members * n_schemes
                              \memory host \keeps call */
  const double* loss;    /**< The same. \length n_members * n_schemes \memory host \keeps call */
  const double* seconds; /**< `[n_groups, n_schemes]`, of each group as a whole; the same, or infinity where a group
                              cannot have a scheme. \length n_groups * n_schemes \memory host \keeps call */
} kvq_plan_fusion_options;

/** Fill with defaults; the sizes and arrays are left 0 and must be set.
 *  \param options  \nullable
 *  \param size     sizeof(kvq_plan_fusion_options).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_plan_fusion_options_init(kvq_plan_fusion_options* options, size_t size);

/** Find the groupings.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_plan_fusion_create(kvq_context* context, const kvq_plan_fusion_options* options,
                                          kvq_plan_fusion** result, kvq_error* error);

/** How many groupings there are. */
typedef struct kvq_plan_fusion_info {
  uint32_t struct_size;
  int32_t n_members;
  int32_t n_groupings; /**< 0: no grouping has a time. */
  int32_t reserved;    /**< 0. */
} kvq_plan_fusion_info;

/** Describe groupings.
 *  \param info  its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_plan_fusion_describe(const kvq_plan_fusion* fusion, kvq_plan_fusion_info* info,
                                            kvq_error* error);

/** One grouping. */
typedef struct kvq_plan_grouping_info {
  uint32_t struct_size;
  int32_t reserved; /**< 0. */
  double bytes;
  double seconds;
  double loss;
  int32_t groups[KVQ_MAX_FUSED];  /**< Of each member, the group that it is multiplied in; then 0. */
  int32_t schemes[KVQ_MAX_FUSED]; /**< Of each member, the number of its scheme; then 0. */
} kvq_plan_grouping_info;

/** Describe one grouping.
 *  \param index  0 … n_groupings − 1, those with the smallest loss first.
 *  \param info   its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_plan_fusion_describe_grouping(const kvq_plan_fusion* fusion, int32_t index,
                                                     kvq_plan_grouping_info* info, kvq_error* error);

/** Destroy groupings.
 *  \param fusion  \nullable
 *  \threads exclusive use of the handle.  \since 1.0 */
KVQ_API void kvq_plan_fusion_destroy(kvq_plan_fusion* fusion);

/** The bits that each matrix would get if codes were as good as codes of Gaussian numbers can be: an error of 2^(−2b)
 *  with b bits a weight. What is lost then is a lower bound for every plan (Q-Palette, theorem 3.1).
 *
 *  \param n              matrices, 1 … 2^20.
 *  \param weights        numbers in each, above 0. \length n \memory host \keeps call
 *  \param sensitivities  loss of each at a relative squared error of 1, not negative. \length n \memory host
 *                        \keeps call
 *  \param least_bits     of a weight, at least 0.
 *  \param total_bits     of all weights, at least `least_bits` each.
 *  \param bits           receives the bits of a weight of each matrix. \length n \memory host \keeps call
 *  \param loss           receives what is lost. \length 1 \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_plan_rates(int32_t n, const double* weights, const double* sensitivities, double least_bits,
                                  double total_bits, double* bits, double* loss, kvq_error* error);

/** What a planner decided, as a file: the scheme of each matrix and how caches store pages. Immutable.
 *  \destroy kvq_plan_destroy */
typedef struct kvq_plan kvq_plan;

/** What is in a plan. */
typedef struct kvq_plan_content {
  uint32_t struct_size;
  int32_t n_matrices;         /**< 0 … 2^20. */
  const char* const* names;   /**< Of the matrices, all different, each a string of 1 to 200 bytes without control
                                   characters. \nullable \length n_matrices \memory host \keeps call */
  const char* const* schemes; /**< As in qp_quantize_options, each a string. \nullable \length n_matrices \memory host
                                   \keeps call */
  const kvq_policy* policy;   /**< Of the context. NULL (default): the plan says nothing of caches.
                                   \nullable \keeps call */
  double bytes;               /**< Expected; finite, not negative, 0 by default. */
  double seconds;             /**< The same. */
  double loss;                /**< The same. */
  const char* note;           /**< At most 4096 bytes, UTF-8 without control characters. NULL (default): "".
                                   \nullable \length string \memory host \keeps call */
} kvq_plan_content;

/** Fill with defaults.
 *  \param content  \nullable
 *  \param size     sizeof(kvq_plan_content).
 *  \threads any.  \since 1.0 */
KVQ_API void kvq_plan_content_init(kvq_plan_content* content, size_t size);

/** Make a plan.
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
 *  \param yaml    text, not necessarily NUL-terminated; at most 64 MiB. \length length \memory host \keeps call
 *  \param length  bytes of `yaml`.
 *  \param result  receives the handle. \parent context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (with the line); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads any.
 *  \since 1.0 */
KVQ_API kvq_status kvq_plan_load(kvq_context* context, const char* yaml, size_t length, kvq_plan** result,
                                 kvq_error* error);

/** Write a plan as YAML. The same plan gives the same text.
 *
 *  \param buffer    NULL: only the size is asked for. \nullable \length capacity \memory host \keeps call
 *  \param capacity  bytes available at `buffer`.
 *  \param size      receives the size of the text in bytes, without NUL; also when `capacity` is too small. \length 1
 *                   \memory host \keeps call
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
 *  \threads read-only.
 *  \since 1.0 */
KVQ_API kvq_status kvq_plan_save(const kvq_plan* plan, char* buffer, size_t capacity, size_t* size, kvq_error* error);

/** What is in a plan. */
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
 *  \param index   0 … n_matrices − 1, in the order of the plan.
 *  \param info    its `struct_size` must be set.
 *  \returns KVQ_OK; KVQ_E_ARGUMENT.  \threads read-only.  \since 1.0 */
KVQ_API kvq_status kvq_plan_describe_matrix(const kvq_plan* plan, int32_t index, kvq_plan_matrix_info* info,
                                            kvq_error* error);

/** The scheme that a plan gives a matrix; NULL if it does not name it.
 *  \param plan  \nullable
 *  \param name  \nullable \length string \memory host \keeps call
 *  \returns \nullable \length string \keeps static
 *  \threads read-only.  \since 1.0 */
KVQ_API const char* kvq_plan_scheme(const kvq_plan* plan, const char* name);

/** The policy of a plan.
 *  \param result  receives a handle of its own. \parent plan.context
 *  \returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (the plan says nothing of caches); KVQ_E_MEMORY; KVQ_E_LIMIT.
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
