// Made by bindings/generate/generate.py from include/kvq.h; edit that instead.
//! Comments of the header: `#[doc = header!(kvq_append)]`.

macro_rules! header {
    (kvq_context) => {
        r#"Memory, threads, limits and device shared by any number of caches."#
    };
    (kvq_policy) => {
        r#"Which format pages are sealed in, per layer, how many stay FP16, and which tokens are evicted. Immutable."#
    };
    (kvq_codebook) => {
        r#"CommVQ codebooks for the layers of one model. Immutable; caches that use it share it. Files are in the
safetensors format and hold about half of [`CodebookInfo::bytes`](crate::CodebookInfo::bytes)."#
    };
    (kvq_centres) => {
        r#"Centres of the keys and values of one model, for the formats gs and gt: a vector is stored relative to the
nearest centre of its head. Immutable; caches that use them share them. Files are in the safetensors format
and hold half of [`CentresInfo::bytes`](crate::CentresInfo::bytes)."#
    };
    (kvq_router) => {
        r#"Routers for the layers of one model (MoQAE): small networks that choose the format of every page by the keys
in it, before RoPE. Immutable; caches that use it share it. Files are in the safetensors format."#
    };
    (kvq_cache) => {
        r#"The attention layers of one model; owns the page formats and the work space of
[`Cache::attend`](crate::Cache::attend)."#
    };
    (kvq_sequence) => {
        r#"The pages of one conversation. Belongs to the cache that made it."#
    };
    (qp_matrix) => {
        r#"A linear layer y = x·Wᵀ + b on weights of 1 to 8 bits: NUQ, VQ and TCQ of Q-Palette, and trellises of single
weights. Immutable; may be used by several threads at once.

Inputs are rotated before a matrix sees them: random signs, then a Hadamard matrix. Matrices whose options
have the same `seed` and that have the same number of columns share the rotation, which
[`Matrix::linear_shared`](crate::Matrix::linear_shared) does once."#
    };
    (kvq_allocate_hook) => {
        r#"Allocate `bytes` (\> 0) aligned to `alignment` (a power of two), or return NULL. Called from any thread,
also from several at once. Like all hooks it may not use the context or what was made from it."#
    };
    (kvq_free_hook) => {
        r#"Free what [`HostAllocator`](crate::HostAllocator) returned, with the same `bytes` and `alignment`. Called
from any thread, also from several at once."#
    };
    (kvq_log_hook) => {
        r#"One message, NUL-terminated, without newline, valid until the hook returns. Called from any thread, also
from several at once."#
    };
    (kvq_parallel_body) => {
        r#"Body of a parallel loop."#
    };
    (kvq_parallel_for_hook) => {
        r#"Run `body(argument, i)` once for every i in \[0, n), on any threads in any order, and return when all that
began are done. Results do not depend on the order or on the number of threads. Loops too short to be shared
do not get here. Called from the thread of the call that needs it, so from several at once if these use the
context at once.

Returns 0; anything else, or fewer calls of `body` than n, says that the hook could not do it all: the
calling thread then does what is left."#
    };
    (kvq_released_hook) => {
        r#"The last call of a context's hooks: none is used any more, and their `user` may go. Called by the thread
that destroys the context or the last object made from it; may use other contexts. Not called where a
context could not be created."#
    };
    (kvq_device_allocate_hook) => {
        r#"Allocate `bytes` (\> 0) of device memory aligned to 256 bytes, or return NULL. The memory is used in the
order of `stream`, the context's stream at that time. Called from the thread of the call that needs it."#
    };
    (kvq_device_free_hook) => {
        r#"Free what [`DeviceAllocator`](crate::DeviceAllocator) returned, once the work issued to `stream` so far is
done: the hook may not give it to another stream before."#
    };
    (kvq_progress_hook) => {
        r#"Told how far a long call has come, and asked whether to go on. Called now and then from the calling thread;
may not use the objects of the call.

- `done`: 0 … 1, an estimate of the share of the time, never falling.

Returns 0 to go on, anything else to end the call with [`Status::Cancelled`](crate::Status::Cancelled)."#
    };
    (kvq_error) => {
        r#"What went wrong. Owned by the caller; [`kvq_error_init`](crate::sys::kvq_error_init) before use."#
    };
    (kvq_context_options) => {
        r#"What a context runs on, and the hooks that it calls."#
    };
    (kvq_context_options, cpu_isa) => {
        r#"Name from [`cpu_isas`](crate::cpu_isas); NULL (default): the best of this machine."#
    };
    (kvq_context_options, allocate) => {
        r#"NULL (default): the C++ runtime's aligned operator new."#
    };
    (kvq_context_options, free) => {
        r#"NULL exactly when `allocate` is NULL."#
    };
    (kvq_context_options, allocator_user) => {
        r#"Passed to `allocate` and `free`."#
    };
    (kvq_context_options, log) => {
        r#"NULL (default): no messages."#
    };
    (kvq_context_options, log_user) => {
        r#"Passed to `log`."#
    };
    (kvq_context_options, parallel_for) => {
        r#"NULL (default): the library's own `n_threads`."#
    };
    (kvq_context_options, parallel_for_user) => {
        r#"Passed to `parallel_for`."#
    };
    (kvq_context_options, plugin) => {
        r#"Path of libkvq_cuda.so; NULL (default): beside the library that holds this function, then where the loader
searches."#
    };
    (kvq_context_options, stream) => {
        r#"cudaStream_t that everything is issued to; NULL (default): the legacy default stream. See
[`Context::set_stream`](crate::Context::set_stream)."#
    };
    (kvq_context_options, device_allocate) => {
        r#"NULL (default): a memory pool of the context's own."#
    };
    (kvq_context_options, device_free) => {
        r#"NULL exactly when `device_allocate` is NULL."#
    };
    (kvq_context_options, device_allocator_user) => {
        r#"Passed to both."#
    };
    (kvq_context_options, released) => {
        r#"Called when the context is gone, which objects made from it may put off: hooks and what they need live until
then. NULL (default): nobody is told."#
    };
    (kvq_context_options, released_user) => {
        r#"Passed to `released`."#
    };
    (kvq_cache_options) => {
        r#"The shape of a model's attention layers, and what their pages need."#
    };
    (kvq_cache_options, inv_freq) => {
        r#"Radians per position, head_dim / 2 where `rotary_dim` is 0; NULL (default): rope_base^(-2j / rotary_dim)."#
    };
    (kvq_cache_options, codebook) => {
        r#"What the format `commvq` of a policy needs: of this context, complete, for this many layers and KV heads,
this `head_dim` and `rope`, and this `model_id` unless one of them is 0. Any number of caches share it. NULL
(default): none."#
    };
    (kvq_cache_options, router) => {
        r#"What `router` in a policy needs: of this context, trained for this shape, `rope`, `model_id` unless one of
them is 0, and the policy's experts. Any number of caches share it. NULL (default): none."#
    };
    (kvq_cache_options, centres) => {
        r#"What the formats gs and gt with trained centres need: of this context, complete, for this many layers and KV
heads, this `head_dim` and, for keys, `rope`, and this `model_id` unless one of them is 0. Any number of
caches share it. A policy may need `codebook` or `centres`, not both. NULL (default): none."#
    };
    (kvq_append_batch) => {
        r#"Tokens for one layer of several sequences. Rows of `k` and `v`, a token's, follow sequence by sequence."#
    };
    (kvq_append_batch, token_counts) => {
        r#"Each ≥ 1; NULL (default): one token each."#
    };
    (kvq_append_batch, positions) => {
        r#"As for [`Sequence::append`](crate::Sequence::append); NULL (default): consecutive in each sequence."#
    };
    (kvq_append_batch, k) => {
        r#"As for [`Sequence::append`](crate::Sequence::append)."#
    };
    (kvq_append_batch, v) => {
        r#"As for [`Sequence::append`](crate::Sequence::append)."#
    };
    (kvq_compress_options) => {
        r#"What to compress to, and where to report."#
    };
    (kvq_compress_options, kept) => {
        r#"`[n_layers, kv_heads]` receives the tokens that each head holds afterwards; NULL: skip."#
    };
    (kvq_compress_options, bytes_freed) => {
        r#"Receives by how much the bytes of the sequence fell; NULL: skip."#
    };
    (kvq_attend_batch) => {
        r#"Queries of one or several sequences, and where their results go."#
    };
    (kvq_attend_batch, query_counts) => {
        r#"Each ≥ 1; NULL (default): one query each."#
    };
    (kvq_attend_batch, query_positions) => {
        r#"≥ 0; NULL (default): the last `query_counts[i]` tokens of each sequence, so append before attending."#
    };
    (kvq_attend_batch, q) => {
        r#"`[total queries, q_heads, head_dim]`, before RoPE unless the cache was made with
[`Rope::None`](crate::Rope::None). Finite, as its logits are: what comes of others means nothing."#
    };
    (kvq_attend_batch, output) => {
        r#"`[total queries, q_heads, head_dim]`; from the first row to the last, its memory may not overlap that of `q`
or `sinks`."#
    };
    (kvq_attend_batch, lse) => {
        r#"`[total queries, q_heads]` receives the natural logarithm of the sum of exp of the logits, after scale and
cap, sinks included; -infinity for a query that sees nothing and has no sink. Results over parts of a
context merge by it, where one part alone has the sinks: Σᵢ exp(lseᵢ − lse) · outputᵢ with lse = log Σᵢ exp
lseᵢ. It may not overlap `q`, `output` or `sinks`. NULL (default): skip."#
    };
    (kvq_attend_batch, sinks) => {
        r#"`[q_heads]` learned logits: each adds exp(sink) to the softmax denominator of its head and nothing to the
sum of values; neither scaled nor capped; -infinity is none; NaN and +infinity are refused on a CPU. NULL
(default): none."#
    };
    (qp_quantize_options) => {
        r#"How a matrix is written in few bits."#
    };
    (qp_quantize_options, scheme) => {
        r#"See [`schemes`](crate::schemes); "nuq-4" by default."#
    };
    (qp_quantize_options, hessian) => {
        r#"`[columns, columns]`, the mean of x·xᵀ over inputs x; NULL (default): weights are rounded alone."#
    };
    (qp_quantize_options, bias) => {
        r#"Kept as it is; NULL (default): none."#
    };
    (qp_quantize_options, progress) => {
        r#"NULL (default): not called."#
    };
    (qp_quantize_options, progress_user) => {
        r#"Passed to `progress`."#
    };
    (kvq_status_name) => {
        r#"Name of a status code, for example "[`Status::Limit`](crate::Status::Limit)"; "unknown status" for other
numbers."#
    };
    (kvq_api_version) => {
        r#"The [`KVQ_API_VERSION`](crate::sys::KVQ_API_VERSION) that the loaded library implements: it has everything
that a header of this or a smaller number declares, apart from experimental parts."#
    };
    (kvq_version_string) => {
        r#"Version of the loaded library, "major.minor.patch"."#
    };
    (kvq_context_create) => {
        r#"Create a context.

- `options`: NULL: defaults.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Unsupported`](crate::Status::Unsupported) (device
or instruction set not available here, with the reason); [`Status::Memory`](crate::Status::Memory);
[`Status::Limit`](crate::Status::Limit); [`Status::Backend`](crate::Status::Backend) (a thread could not be
started, or the device failed)."#
    };
    (kvq_context_describe) => {
        r#"Describe a context.

# Errors

[`Status::Argument`](crate::Status::Argument)."#
    };
    (kvq_context_set_stream) => {
        r#"Issue later calls of a CUDA context to another stream, ordered after everything issued before.

- `stream`: cudaStream_t, NULL for the legacy default stream. It must live until another one is set or the
  context is gone.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Unsupported`](crate::Status::Unsupported) (a CPU
context); [`Status::Backend`](crate::Status::Backend)."#
    };
    (kvq_device_describe) => {
        r#"Ask whether contexts can be created on a device, and on what.

- `device`: [`Device::Cuda`](crate::Device::Cuda).
- `index`: as [`ContextOptions::device_index`](crate::ContextOptions::device_index).
- `plugin`: as [`ContextOptions::plugin`](crate::ContextOptions::plugin).

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Unsupported`](crate::Status::Unsupported) with the
reason: no plug-in library, one of another version, a library it needs is missing (its name), no driver, a
driver too old, no such device."#
    };
    (kvq_cpu_isa_count) => {
        r#"Number of CPU instruction sets that this build has kernels for and this machine can run."#
    };
    (kvq_cpu_isa_name) => {
        r#"Name of instruction set `index`, best first ("amx", "avx512vnni", "avx512", "avx2", "baseline"). "amx" is
"avx512vnni" with products of tiles for linear layers on five rows and more. Where a processor has tiles,
the first call that looks for instruction sets asks Linux to let this process use them; alternate signal
stacks that are set up later must then have room for them (AT_MINSIGSTKSZ)."#
    };
    (kvq_policy_load) => {
        r#"Read a policy from YAML, or from the short form of one or two formats.

The short form is the name of a format for keys and values of all layers, or two with a slash, KEYS/VALUES,
and optionally `+METHOD:BUDGET` of eviction at the end, like `gs2`, `gt2/gt1`, `int4+adasnap:128`. The
formats:

- `gs4`, `gs3`, `gs2`, `gs1`: gain-shape pages. Codes of 4 to 1 bits after a Hadamard rotation, and a gain
  of 8 bits for each token and side, chosen so that what is decoded is unbiased. Keys are encoded relative
  to the mean of their page's, which a page has in 8 bits, and values as they are; with `+nocentre` keys,
  too. Nothing is trained for these two. With `+centres` a side is encoded relative to the nearest of its
  head's trained centres, which [`CacheOptions`](crate::CacheOptions) has, those of keys turned by RoPE to
  where the key is; a page then has a byte for each token that says which, unless there is but one.
- `gt3`, `gt2`, `gt1`: the same with codes of 3 to 1 bits that are a path through a trellis of 64 states:
  their error is a quarter to a half smaller, and they take longer to encode and to attend to.
- `fp16`; `int8`, `int4`, `int3`, `int2`: integers with a scale and a minimum for each channel of a page's
  keys and for each token and group of channels of values; optionally with `+hadamard`, encoded after a
  Hadamard rotation.
- `commvq`: codes of a codebook that was trained for the model.

The long form:

```text
version: 1
keys: int4+hadamard            # a format name, or a map:
values: {format: int2, hadamard: false, group: 32}
sink: 1                        # first pages that stay FP16
recent: 1                      # newest pages that stay FP16, the open one included
layers:                        # later entries win
  - {range: [0, 1], keys: fp16, values: int8}
  - {range: [2, 3], keys: {format: gs2, centres: none}}   # or page, trained: +nocentre, nothing, +centres
centres: page                  # of all gain-shape formats, of experts too, that do not say it themselves
commvq:                        # for the format commvq, which needs a codebook
  beam: 4                      # sums of codes kept while a key is encoded, 1 to 16
  flips: 100                   # bits of a value's code flipped to lower its error, at most
  attention: auto              # or tables, rebuild, decode

eviction: {method: adasnap, budget: 128}   # what kvq_compress does, see there
```

and instead of `keys`, `values` and `layers`, for pages that each get a format of their own:

```text
router:                        # needs a router that was trained for these experts
  experts: [fp16, int4, int2]  # 2 to 8 formats, those with more bits first; int8/int4: keys/values
  votes: layer                 # tokens of all heads choose together; or head
```

`group` is the number of channels that share a scale in an integer value page (32, 64 or 128). Defaults:
fp16, recent 1, centres page, beam 1, as many flips as help, attention auto; sink 1 if any page gets
gain-shape codes of three bits or fewer, else 0: models give their first tokens much attention.

`attention` says how the CPU attends to keys with codes; results are the same but for rounding. `tables`:
products of each query with all codes, which are then summed for each token; `rebuild`: keys summed up from
their codes once for all queries of a KV head; `decode`: keys and values decoded one by one, tens of times
slower, for comparison; `auto` takes the faster of the first two.

- `yaml`: text, not necessarily NUL-terminated; at most 1 MiB, nested at most 16 deep.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Format`](crate::Status::Format) (with the line);
[`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_policy_with_eviction) => {
        r#"A policy that evicts tokens and otherwise says what another one says.

- `policy`: of this context. If it evicts, all but the method and the budget stays.
- `method`: name of a method, see [`Sequence::compress`](crate::Sequence::compress).
- `budget`: tokens of a KV head that stay, on average.

# Errors

[`Status::Argument`](crate::Status::Argument) (also: an unknown method, a budget smaller than the window);
[`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_policy_with_layer) => {
        r#"A policy whose layers `first_layer` to `last_layer` are stored in other formats and that otherwise says what
another one says.

- `policy`: of this context, without a router.
- `first_layer`: 0 … `last_layer`.
- `last_layer`: at most 65535; creating a cache with fewer layers fails.
- `keys`: name of a format, see [`Policy::load`](crate::Policy::load); NULL: as before.
- `values`: the same for values.

# Errors

[`Status::Argument`](crate::Status::Argument) (also: the name of no format, a policy with a router);
[`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_policy_save) => {
        r#"Write a policy in the long form, which [`Policy::load`](crate::Policy::load) reads: the same is then said of
every layer. Reading and writing again gives the same bytes.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::BufferSize`](crate::Status::BufferSize) (nothing is
written); [`Status::Unsupported`](crate::Status::Unsupported) (so many layers differ that the text would be
longer than can be read); [`Status::Memory`](crate::Status::Memory);
[`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_policy_describe) => {
        r#"Describe a policy.

# Errors

[`Status::Argument`](crate::Status::Argument)."#
    };
    (kvq_codebook_load) => {
        r#"Read codebooks from a file in memory. Every byte is checked; saving the result again gives the same bytes.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Format`](crate::Status::Format) (damaged,
truncated, or no codebook; the message names the tensor or field);
[`Status::Mismatch`](crate::Status::Mismatch) (a file of another version);
[`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_codebook_save) => {
        r#"Write codebooks as a file. The same codebooks give the same bytes.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::BufferSize`](crate::Status::BufferSize) (nothing is
written); [`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_codebook_describe) => {
        r#"Describe codebooks.

# Errors

[`Status::Argument`](crate::Status::Argument)."#
    };
    (kvq_codebook_describe_layer) => {
        r#"Describe one layer of codebooks.

# Errors

[`Status::Argument`](crate::Status::Argument)."#
    };
    (kvq_centres_load) => {
        r#"Read centres from a file in memory. Every byte is checked; saving the result again gives the same bytes.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Format`](crate::Status::Format) (damaged,
truncated, or no centres; the message names the tensor or field);
[`Status::Mismatch`](crate::Status::Mismatch) (a file of another version);
[`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_centres_save) => {
        r#"Write centres as a file. The same centres give the same bytes.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::BufferSize`](crate::Status::BufferSize) (nothing is
written); [`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_centres_describe) => {
        r#"Describe centres.

# Errors

[`Status::Argument`](crate::Status::Argument)."#
    };
    (kvq_centres_describe_layer) => {
        r#"Describe one layer of centres.

# Errors

[`Status::Argument`](crate::Status::Argument)."#
    };
    (kvq_router_load) => {
        r#"Read routers from a file in memory. Every byte is checked; saving the result again gives the same bytes.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Format`](crate::Status::Format) (damaged,
truncated, or no router; the message names the tensor or field);
[`Status::Mismatch`](crate::Status::Mismatch) (a file of another version);
[`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_router_save) => {
        r#"Write routers as a file. The same routers give the same bytes.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::BufferSize`](crate::Status::BufferSize) (nothing is
written); [`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_router_describe) => {
        r#"Describe routers.

# Errors

[`Status::Argument`](crate::Status::Argument)."#
    };
    (kvq_router_describe_group) => {
        r#"Describe one group of layers.

- `group`: 0 … groups − 1.

# Errors

[`Status::Argument`](crate::Status::Argument)."#
    };
    (kvq_cache_create) => {
        r#"Create a cache.

- `policy`: of this or another context; NULL: fp16.

# Errors

[`Status::Argument`](crate::Status::Argument) (also: the policy needs a codebook, centres or a router and
there is none); [`Status::Mismatch`](crate::Status::Mismatch) (a codebook, centres or router for another
model, with the difference); [`Status::Unsupported`](crate::Status::Unsupported) (a format that the
context's device does not compute with; formats of which some need a codebook and others centres);
[`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_cache_describe) => {
        r#"Describe a cache.

# Errors

[`Status::Argument`](crate::Status::Argument)."#
    };
    (kvq_cache_describe_layer) => {
        r#"Describe a layer of a cache.

# Errors

[`Status::Argument`](crate::Status::Argument)."#
    };
    (kvq_cache_context) => {
        r#"The context that a cache was created from, which lives as long as the cache does."#
    };
    (kvq_sequence_create) => {
        r#"Create an empty sequence.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Memory`](crate::Status::Memory);
[`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_sequence_fork) => {
        r#"Create a sequence that starts with everything `parent` holds. Pages are shared until one side changes them.

# Errors

[`Status::Argument`](crate::Status::Argument) (NULL, or `parent` belongs to another cache);
[`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_sequence_truncate) => {
        r#"Drop tokens from the end of every layer, so that each layer keeps the first `length` tokens.

Exact while the cut lies in an FP16 page or on a page border (a multiple of
[`PAGE_SLOTS`](crate::PAGE_SLOTS)). A cut inside a sealed page is refused: keep `recent: 2` or more pages in
FP16 to be able to roll back at least 32 tokens. On a border, a page that had been sealed stays sealed.

# Errors

[`Status::Argument`](crate::Status::Argument) (negative or beyond the length);
[`Status::State`](crate::Status::State) (inside a sealed page; the message gives the nearest lengths that
work; or evicted tokens had gaps in their positions); [`Status::Memory`](crate::Status::Memory),
[`Status::Limit`](crate::Status::Limit) (a shared page had to be copied)."#
    };
    (kvq_sequence_cache) => {
        r#"The cache that a sequence belongs to, which lives as long as the sequence does."#
    };
    (kvq_sequence_reserve) => {
        r#"Make pages ahead, so that every layer has room for `tokens` more tokens.

Appends then take these pages: while there is room, no append of up to [`PAGE_SLOTS`](crate::PAGE_SLOTS)
tokens allocates page memory, and on a CPU the pages of a head lie next to each other from the start. On a
GPU this is what a CUDA graph needs:

```text
kvq_context_set_stream(context, stream);
kvq_attend(…)                                  // once with the graph's batch: it allocates its work space
kvq_sequence_reserve(cache, sequence, 4096, …);
cudaStreamBeginCapture(stream, …);
kvq_append(…, 1, k, v, …); kvq_attend(…);      // of every layer
cudaStreamEndCapture(stream, &graph);
```

Every launch of the graph appends one token more and attends to all: lengths, positions and page tables live
on the device. While a stream is captured, [`Sequence::append`](crate::Sequence::append) takes at most
[`PAGE_SLOTS`](crate::PAGE_SLOTS) tokens and no positions, [`Cache::attend`](crate::Cache::attend) takes no
query positions, and other functions of the sequence may not be called. Afterwards they may: each first
waits for the context's stream to learn how far the graph has come, so launch graphs on it, or let it wait
for them. A launch without room appends nothing, and a later call on the context returns
[`Status::Limit`](crate::Status::Limit). A graph stays valid until
[`Sequence::reserve`](crate::Sequence::reserve) is called again, or something it refers to is destroyed.
Forks of a sequence with pages made ahead copy its open pages. Layers with a codebook's codes cannot be
captured, nor can attention where a policy evicts by what queries look at: these calls return
[`Status::Unsupported`](crate::Status::Unsupported).

- `tokens`: ≥ 0, per layer; 0 gives back the pages that are left.

# Errors

[`Status::Argument`](crate::Status::Argument) (NULL; a sequence of another cache; negative, or more than a
layer can hold); [`Status::State`](crate::Status::State) (a stream is captured);
[`Status::Unsupported`](crate::Status::Unsupported) (above 0 where a router chooses the formats);
[`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit);
[`Status::Backend`](crate::Status::Backend)."#
    };
    (kvq_sequence_room) => {
        r#"Number of tokens that `layer` has pages for, made by [`Sequence::reserve`](crate::Sequence::reserve).
Truncating makes room again, except for pages that a fork still holds.

- `room`: receives the number; unchanged on failure.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Backend`](crate::Status::Backend)."#
    };
    (kvq_sequence_length) => {
        r#"Number of tokens appended to `layer`, evicted ones included.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Backend`](crate::Status::Backend)."#
    };
    (kvq_sequence_slots) => {
        r#"Number of tokens that a KV head of `layer` holds: what eviction has left.
[`Sequence::decode`](crate::Sequence::decode) tells their positions.

- `kv_head`: 0 … kv_heads − 1.
- `slots`: receives the number; unchanged on failure.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Backend`](crate::Status::Backend)."#
    };
    (kvq_sequence_save) => {
        r#"Write a snapshot of a sequence.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::BufferSize`](crate::Status::BufferSize) (nothing is
written); [`Status::Backend`](crate::Status::Backend)."#
    };
    (kvq_sequence_load) => {
        r#"Make a sequence from a snapshot. Every byte is checked; saving the result again gives the same bytes.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Format`](crate::Status::Format) (damaged or
truncated); [`Status::Mismatch`](crate::Status::Mismatch) (another model, shape, policy format or version;
tokens were evicted, which the cache's policy never does); [`Status::Memory`](crate::Status::Memory);
[`Status::Limit`](crate::Status::Limit); [`Status::Backend`](crate::Status::Backend)."#
    };
    (kvq_append) => {
        r#"Append tokens to one layer of a sequence, from dense tensors.

Fills the layer's open page; a full page is sealed (encoded in its final format) when it leaves the newest
`recent` pages, that is when the next token arrives. Either all `n` tokens are appended or none.

- `k`: keys `[n, kv_heads, head_dim]`, before RoPE unless the cache was made with
  [`Rope::None`](crate::Rope::None); of a CUDA context read in stream order. Finite, magnitude at most 65504
  (FP16) after rotation, in layers stored with `+hadamard` or in gain-shape pages after that rotation too.
- `v`: values, same shape and rules.
- `positions`: original positions, ≥ 0, strictly increasing and beyond the layer's last one; NULL:
  consecutive.

# Errors

[`Status::Argument`](crate::Status::Argument) (NULL, shape, dtype, position, value not representable: a CUDA
context stores the nearest representable number, 0 for NaN, and a later call reports it);
[`Status::State`](crate::Status::State) (a CUDA graph is captured or lives, see
[`Sequence::reserve`](crate::Sequence::reserve); the layer takes the formats of its pages from another one,
which would hold fewer tokens: append to layers in their order); [`Status::Limit`](crate::Status::Limit);
[`Status::Memory`](crate::Status::Memory); [`Status::Backend`](crate::Status::Backend)."#
    };
    (kvq_append_sequences) => {
        r#"Append tokens to one layer of several sequences: to all of them, or to none.

Strides reach tokens and heads in tensors of any layout, such as queries, keys and values in one: `k` then
points to the first key, and `k_token_stride` is (q_heads + 2 · kv_heads) · head_dim. What is stored is what
[`Sequence::append`](crate::Sequence::append) stores. A batch shares the work on all sequences among
threads, and on a GPU takes one launch (in a CUDA graph one for each sequence).

# Errors

As [`Sequence::append`](crate::Sequence::append); [`Status::Argument`](crate::Status::Argument) also if a
sequence occurs twice, or an offset by the strides is too large. Messages count tokens over all sequences."#
    };
    (kvq_sequence_decode) => {
        r#"Decode stored keys and values, for inspection and tests. Not fast.

- `kv_head`: 0 … kv_heads − 1.
- `begin`: first slot of the head's list.
- `k`: receives `[n, head_dim]` keys as attention sees them (after RoPE); NULL: skip.
- `v`: receives `[n, head_dim]` values; NULL: skip.
- `positions`: receives original positions; NULL: skip.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Memory`](crate::Status::Memory);
[`Status::Limit`](crate::Status::Limit); [`Status::Backend`](crate::Status::Backend)."#
    };
    (kvq_compress) => {
        r#"Evict tokens as the `eviction` of the cache's policy says, at a moment of the caller's choice: after a
prompt, and again when a conversation has grown.

Tokens are judged by the queries that [`Cache::attend`](crate::Cache::attend) has seen: by the last `window`
of them (of a prompt, if this follows it), or by all. A policy names one of the papers' methods and a
budget, the tokens that a KV head keeps on average:

```text
eviction:
  method: adasnap  # streaming: the first and the newest tokens (StreamingLLM)
                   # h2o: most attention from all queries (H2O)
                   # snapkv: most attention from the newest queries (SnapKV)
                   # pyramid: the same, more in the first layers and less in the last (PyramidKV)
                   # adasnap, adapyramid: and heads share a layer's budget as they need it (Ada-KV)
  budget: 128      # the window included; or a share of the tokens that were appended, like 25%
```

or the parts of a method: `score` (window, streaming, mass), `layers` (uniform, pyramid) and `heads`
(uniform, adaptive, reserved, together: the same tokens for all heads, as CommVQ values of scope layer
need). Further: `window` (32) newest tokens that are always kept; `kernel` (7, odd) and `pooling` (max,
mean) of scores along positions; `group` (mean, max) of the query heads of a KV head; `first` (4) tokens for
streaming; `alpha` (0.5), from 0, which splits freely, to 1, uniformly; with `reserved` the part of the
budget that every head has for itself; `beta` (20): the last layer of a pyramid keeps budget / beta.

What stays keeps its positions and moves to new, dense pages in the policy's formats; forks keep what they
have. Nothing happens to layers that hold no more than their budget. Lengths of sequences still count the
evicted tokens, and [`Sequence::truncate`](crate::Sequence::truncate) drops what lies beyond the position.
What has been observed is not part of a snapshot: after [`Cache::load`](crate::Cache::load), attend before
compressing.

- `options`: NULL: defaults.

# Errors

[`Status::Argument`](crate::Status::Argument) (also: a budget smaller than the window);
[`Status::State`](crate::Status::State) (the policy has no eviction, a layer is empty, no query has been
observed or more than `window` tokens have come since, pages have been made ahead);
[`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (kvq_attend) => {
        r#"Attention of a batch of queries over one layer.

`output = softmax(scale · q·kᵀ) v` for every query head, where query head h reads KV head h / (q_heads /
kv_heads) and a query at position p sees the tokens at positions ≤ p. A query that sees no token gives
zeros, with a sink too. Accumulation is in FP32. On a CPU the result is the same, bit for bit, for any
number of threads and any composition of the batch; on a GPU it is the same for the same batch. Allocates
only when a batch needs more work space than any before it, more calls come at once than ever before, or the
policy evicts.

Relative to exact attention over the decoded pages, the error is rounding of FP32 for FP16 pages. On
instruction sets with int8 dot products ("avx512vnni", "amx") integer pages multiply 16-bit (INT8) or 8-bit
(INT4, INT3, INT2) fixed-point queries and probabilities, whose error stays well below that of the format
itself; select "avx512" or "avx2" in [`ContextOptions`](crate::ContextOptions) for FP32 products. On a GPU
queries, probabilities and their products with a page's scales are rounded to FP16.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::State`](crate::Status::State) (a CUDA graph is
captured, see [`Sequence::reserve`](crate::Sequence::reserve)); [`Status::Memory`](crate::Status::Memory);
[`Status::Limit`](crate::Status::Limit) (work space); [`Status::Backend`](crate::Status::Backend)."#
    };
    (kvq_cache_usage) => {
        r#"Bytes used by one sequence, or by the whole cache with shared pages counted once.

- `sequence`: NULL: the whole cache.
- `usage`: its `struct_size` must be set.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Backend`](crate::Status::Backend)."#
    };
    (kvq_cache_predict_usage) => {
        r#"What [`Cache::usage`](crate::Cache::usage) would say of the whole cache if it held nothing but new
sequences, to the byte. Computed from sizes: no page is made, and what the cache holds now does not matter.

Each sequence is one for which [`Sequence::reserve`](crate::Sequence::reserve) made pages for `tokens`
tokens, and to every layer of which these were then appended: at consecutive positions, up to
[`PAGE_SLOTS`](crate::PAGE_SLOTS) at once or all at once. With `queries`,
[`Cache::attend`](crate::Cache::attend) was then called for each layer, with `queries` queries of each
sequence in one batch and without sinks; calls of several threads at once take a work space each.

- `sequences`: ≥ 1.
- `tokens`: of each sequence, ≥ 0.
- `queries`: of each sequence, ≥ 0; 0: nothing is attended to.
- `usage`: its `struct_size` must be set.

# Errors

[`Status::Argument`](crate::Status::Argument) (NULL; a number out of range; more pages or queries than are
counted); [`Status::Unsupported`](crate::Status::Unsupported) (a router chooses the formats of pages, so
nobody knows their sizes before; `queries` above 0 on a CUDA context, whose work space depends on the
device); [`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (qp_scheme_count) => {
        r#"Number of schemes that [`QuantizeOptions::scheme`](crate::QuantizeOptions::scheme) may name."#
    };
    (qp_scheme_name) => {
        r#""nuq-4", "vq-2.5", "tcq-2.75", "tcx-3", "fp16", …: a family and the bits of a weight.

- `nuq`: every weight is one of 2^bits levels. 1, 2, 3, 4, 5, 6 and 8 bits.
- `vq`: every pair of weights is one of 4^bits points. 1.5 to 5 bits in steps of a half.
- `tcq`: pairs on a path through a trellis of 65 536 states, levels from a table. 1.5 to 5 bits in steps of
  a quarter; odd quarters write half of each row in a quarter bit less and half in a quarter bit more.
- `tcx`: single weights on such a path, of 256 levels: less error and faster. 1.5 to 5 bits in steps of a
  half.
- `fp16`: the weights as they are, rounded to FP16 and not rotated."#
    };
    (qp_scheme_bits) => {
        r#"Bits of a weight in a scheme, without scales and signs; 0 for a name that is no scheme."#
    };
    (qp_quantize) => {
        r#"Write a matrix in few bits. The result depends on the arguments alone, not on threads or instruction sets.

- `w`: weights `[rows, columns]` of `options->dtype`.
- `rows`: outputs of the layer, from 1 to 2^24.
- `columns`: its inputs, a multiple of 64 from 64 to 2^20.

# Errors

[`Status::Argument`](crate::Status::Argument) (shape, dtype, a scheme that does not exist, weights, bias or
Hessian that are not finite, a Hessian that is not symmetric or, damped, not positive definite);
[`Status::Cancelled`](crate::Status::Cancelled); [`Status::Memory`](crate::Status::Memory);
[`Status::Limit`](crate::Status::Limit). Rows of zeros stay zeros."#
    };
    (qp_matrix_dequantize) => {
        r#"Rows of the matrix that [`Matrix::linear`](crate::Matrix::linear) multiplies by, in the order of the
original.

- `w`: receives `[rows, columns]` floats.

# Errors

[`Status::Argument`](crate::Status::Argument) (NULL, rows beyond the last one);
[`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (qp_linear) => {
        r#"y = x·Wᵀ + b.

Inputs are rotated in FP32 and, but for `fp16`, rounded to integers of 8 bits with a scale for every 256 of
them; products are summed exactly within these and in FP32 beyond, in the same order on every processor: a
row of `y` depends on its row of `x` alone. Allocates nothing once a batch of this size has been seen.

- `x`: `[batch, columns]` of `dtype`.
- `y`: receives `[batch, rows]` of `dtype`; may not overlap `x`.

# Errors

[`Status::Argument`](crate::Status::Argument); [`Status::Unsupported`](crate::Status::Unsupported) (the
context's device does not multiply by packed matrices); [`Status::Memory`](crate::Status::Memory);
[`Status::Limit`](crate::Status::Limit). NaN or infinity in a row of `x` makes its row of `y` NaN."#
    };
    (qp_linear_shared) => {
        r#"Several matrices on the same inputs in one call: y\[i\] = x·Wᵢᵀ + bᵢ, the same numbers as one by one.
Schemes and numbers of rows may differ.

- `matrices`: of one context, with the same columns and, those that rotate, the same signs.
- `x`: as for [`Matrix::linear`](crate::Matrix::linear).
- `y`: outputs, `[batch, rows of matrix i]` each, in the context's memory, apart from each other and from
  `x`.

# Errors

As [`Matrix::linear`](crate::Matrix::linear); [`Status::Mismatch`](crate::Status::Mismatch) (matrices that
do not share their inputs)."#
    };
    (qp_matrix_describe) => {
        r#"Describe a matrix.

# Errors

[`Status::Argument`](crate::Status::Argument)."#
    };
    (qp_matrix_save) => {
        r#"Write matrices as a safetensors file; docs/weights.md has its layout. The same matrices give the same bytes.

- `names`: different names, each a string of up to 200 bytes.

# Errors

[`Status::Argument`](crate::Status::Argument) (NULL; names);
[`Status::BufferSize`](crate::Status::BufferSize) (nothing is written);
[`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (qp_matrix_load) => {
        r#"Read one matrix from a safetensors file in memory, which may hold other tensors and matrices too.

- `name`: as given to [`Matrix::save`](crate::Matrix::save).

# Errors

[`Status::Argument`](crate::Status::Argument) (NULL, no matrix of that name);
[`Status::Format`](crate::Status::Format) (damaged, truncated, sizes that do not fit together; the message
names the tensor or field); [`Status::Mismatch`](crate::Status::Mismatch) (a file of another version);
[`Status::Memory`](crate::Status::Memory); [`Status::Limit`](crate::Status::Limit)."#
    };
    (qp_matrix_predict_bytes) => {
        r#"How large a matrix will be, before there is one.

- `scheme`: as in [`QuantizeOptions`](crate::QuantizeOptions).
- `rows`: as for [`Matrix::quantize`](crate::Matrix::quantize).
- `columns`: as for [`Matrix::quantize`](crate::Matrix::quantize).
- `has_bias`: 1 or 0.
- `bytes`: receives what [`MatrixInfo::bytes`](crate::MatrixInfo::bytes) will be; unchanged on failure.
- `allocated`: receives by how much [`ContextInfo::bytes`](crate::ContextInfo::bytes) of a CPU context grows
  with such a matrix, by [`Matrix::quantize`](crate::Matrix::quantize) or
  [`Matrix::load`](crate::Matrix::load): padding and the object included; unchanged on failure. NULL: not
  wanted.

# Errors

[`Status::Argument`](crate::Status::Argument) (NULL, a scheme that does not exist, shape, `has_bias`)."#
    };
}
pub(crate) use header;
