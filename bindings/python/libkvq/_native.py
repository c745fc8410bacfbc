"""kvq.h in ctypes: every function, struct, enumeration and hook under its C name.

Pointers to numbers and to tensors are addresses (c_void_p): an int, in arguments also a ctypes array or byref().
Functions release the GIL while they run. Made by bindings/generate/generate.py from include/kvq.h; edit that
instead.

kvq: a compressed key/value cache for language models, attended to in compressed form.

An inference engine computes queries, keys and values; this library keeps the keys and values in 1 to 16 bits per
scalar and computes attention directly on them.

    context   memory, threads, limits and the device          kvq_context_create
    policy    which page format each layer uses               kvq_policy_load
    codebook  vector quantization trained for one model       kvq_codebook_load
    centres   what pages of one model are stored relative to  kvq_centres_load
    router    which page format each page gets, by its keys   kvq_router_load
    cache     the shape of one model's attention layers       kvq_cache_create
    sequence  one conversation: lists of pages per head       kvq_sequence_create, kvq_append, kvq_attend
    matrix    weights of a linear layer in few bits           qp_quantize, qp_linear

Rules that hold for every function:

- A call that can fail returns a ``kvq_status`` and takes, last, a caller-owned ``kvq_error`` or NULL. On failure the
  message names the argument and its value, and every object is as it was before the call.
- Structs begin with ``struct_size``. Call the struct's ``*_init(&it, sizeof(it))`` first, or set ``struct_size`` of
  one that the library fills. A struct only ever grows at its end: an older program's shorter one gets the defaults
  of what it lacks, of a newer program's longer one the rest must be zero. Reserved fields must be 0 and are filled
  with 0. No struct has more than 4096 bytes.
- Handles come out through the parameter ``result``, which is NULL after a failure. Objects may be destroyed in any
  order: what others still need goes with the last of them. Destroying NULL does nothing.
- Any number of threads may use a context, and a cache, at once, but for what a function's \\threads line says. Of
  other handles, ``const`` ones may be used from several threads at once, others need exclusive use. Destroying needs
  exclusive use of the handle.
- Beside the statuses that a function names, any may return ``KVQ_E_INTERNAL``; one that is given a newer header's
  struct with something in it that this library does not know, ``KVQ_E_UNSUPPORTED``; one on a CUDA context,
  ``KVQ_E_BACKEND``; and one of a sequence that a CUDA graph appends to, which first learns how far the graph has
  come, ``KVQ_E_MEMORY`` or ``KVQ_E_LIMIT``.
- The library never prints, aborts, reads environment variables, installs signal handlers, or starts threads that
  were not asked for. In a child process after a ``fork()`` at which no other thread was inside a call, contexts of a
  CPU compute on the calling thread alone and may be destroyed; contexts of a GPU may not be used.
- Hooks return, they do not unwind: an exception that a C++ hook throws nevertheless is caught and taken for the
  hook's failure; unwinding by other means (longjmp, a foreign runtime's panic) is undefined.
- Tensors are row-major. "Host memory" is memory that the CPU can read.
- Text is UTF-8; names of files are what the system's loader takes, UTF-8 in practice.
- A CUDA context works asynchronously: calls issue work to its stream and return. Appending and attending synchronise
  with nothing; saving, loading and decoding wait for the stream. An error that the device reports later is returned
  by a later call, and once the device's own state is broken every call returns it. What the host passes in host
  memory has been read when a call returns.

What is declared if KVQ_EXPERIMENTAL is defined before this file is included may change in a minor version;
everything else only grows until version 2.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from typing import Any, Optional

from ._library import Library

Text = bytes  # fields are named bytes too

KVQ_VERSION_MAJOR = 1
"""Version of this header, after Semantic Versioning."""
KVQ_VERSION_MINOR = 0
"""Version of this header, after Semantic Versioning."""
KVQ_VERSION_PATCH = 0
"""Version of this header, after Semantic Versioning."""
KVQ_API_VERSION = 1
"""Counts up by one with every release that adds to this header."""


class kvq_status(IntEnum):
    """Result of a call: ``KVQ_OK`` or one of the negative codes. Numbers never change."""

    KVQ_OK = 0
    """Done."""
    KVQ_E_ARGUMENT = -1
    """An argument is NULL, out of range, or inconsistent with another one."""
    KVQ_E_MEMORY = -2
    """The allocator returned NULL."""
    KVQ_E_LIMIT = -3
    """A byte limit of the context or of the cache would be exceeded."""
    KVQ_E_STATE = -4
    """The object is not in a state that allows the call, for example a rollback into a sealed page."""
    KVQ_E_FORMAT = -5
    """A policy, snapshot or other input is malformed."""
    KVQ_E_MISMATCH = -6
    """The input is well-formed but belongs to another model, cache shape, policy or version."""
    KVQ_E_UNSUPPORTED = -7
    """The request is valid but this build or machine cannot serve it."""
    KVQ_E_BACKEND = -8
    """The device or the caller's own hook reported a failure; see ``backend_code``."""
    KVQ_E_INTERNAL = -9
    """A defect of the library."""
    KVQ_E_CANCELLED = -10
    """The caller's progress hook asked to stop."""
    KVQ_E_BUFFER_SIZE = -11
    """The caller's buffer is too small; the call says how many bytes it takes."""


KVQ_OK = kvq_status.KVQ_OK
KVQ_E_ARGUMENT = kvq_status.KVQ_E_ARGUMENT
KVQ_E_MEMORY = kvq_status.KVQ_E_MEMORY
KVQ_E_LIMIT = kvq_status.KVQ_E_LIMIT
KVQ_E_STATE = kvq_status.KVQ_E_STATE
KVQ_E_FORMAT = kvq_status.KVQ_E_FORMAT
KVQ_E_MISMATCH = kvq_status.KVQ_E_MISMATCH
KVQ_E_UNSUPPORTED = kvq_status.KVQ_E_UNSUPPORTED
KVQ_E_BACKEND = kvq_status.KVQ_E_BACKEND
KVQ_E_INTERNAL = kvq_status.KVQ_E_INTERNAL
KVQ_E_CANCELLED = kvq_status.KVQ_E_CANCELLED
KVQ_E_BUFFER_SIZE = kvq_status.KVQ_E_BUFFER_SIZE


class kvq_dtype(IntEnum):
    """Element type of a tensor."""

    KVQ_F32 = 0
    """IEEE 754 binary32."""
    KVQ_F16 = 1
    """IEEE 754 binary16."""
    KVQ_BF16 = 2
    """bfloat16: the upper half of binary32."""


KVQ_F32 = kvq_dtype.KVQ_F32
KVQ_F16 = kvq_dtype.KVQ_F16
KVQ_BF16 = kvq_dtype.KVQ_BF16


class kvq_device(IntEnum):
    """Where a context computes."""

    KVQ_DEVICE_CPU = 0
    """Here."""
    KVQ_DEVICE_CUDA = 1
    """On an NVIDIA GPU, by way of libkvq_cuda.so."""


KVQ_DEVICE_CPU = kvq_device.KVQ_DEVICE_CPU
KVQ_DEVICE_CUDA = kvq_device.KVQ_DEVICE_CUDA


class kvq_rope(IntEnum):
    """How the library rotates queries and keys."""

    KVQ_ROPE_NONE = 0
    """Not: the caller passes them rotated, or the model has no rotary embedding."""
    KVQ_ROPE_HALF = 1
    """Channels (j, j + rotary_dim/2) form a pair: Hugging Face Llama, Mistral, Qwen."""
    KVQ_ROPE_INTERLEAVED = 2
    """Channels (2j, 2j+1) form a pair: original Llama, GPT-J."""


KVQ_ROPE_NONE = kvq_rope.KVQ_ROPE_NONE
KVQ_ROPE_HALF = kvq_rope.KVQ_ROPE_HALF
KVQ_ROPE_INTERLEAVED = kvq_rope.KVQ_ROPE_INTERLEAVED


class kvq_log_level(IntEnum):
    """Importance of a log message."""

    KVQ_LOG_ERROR = 0
    """Something failed."""
    KVQ_LOG_WARNING = 1
    """Something is not as it should be."""
    KVQ_LOG_INFO = 2
    """Something worth knowing."""


KVQ_LOG_ERROR = kvq_log_level.KVQ_LOG_ERROR
KVQ_LOG_WARNING = kvq_log_level.KVQ_LOG_WARNING
KVQ_LOG_INFO = kvq_log_level.KVQ_LOG_INFO

KVQ_PAGE_SLOTS = 32
"""Slots of a page: the unit of encoding, sharing and rollback, in tokens."""


class kvq_scope(IntEnum):
    """What shares a code, or a number."""

    KVQ_SCOPE_LAYER = 0
    """All KV heads of a token in a layer."""
    KVQ_SCOPE_HEAD = 1
    """One KV head of a token."""


KVQ_SCOPE_LAYER = kvq_scope.KVQ_SCOPE_LAYER
KVQ_SCOPE_HEAD = kvq_scope.KVQ_SCOPE_HEAD

KVQ_MAX_KEY_STAGES = 64
"""The most stages that codes for keys can have."""
KVQ_MAX_EXPERTS = 8
"""The most formats that a router can choose among."""
KVQ_MAX_FUSED = 4
"""The most matrices that a plan multiplies together."""
KVQ_FORMATS_SIZE = 256
"""Bytes of ``kvq_layer_info.formats``."""


class kvq_router_method(IntEnum):
    """How routers are trained."""

    KVQ_ROUTER_LABEL = 0
    """On the cheapest format of each page that leaves the attention as good as it has to be."""
    KVQ_ROUTER_PAPER = 1
    """By the loss of the MoQAE paper, for comparison: it tends to one format for all."""


KVQ_ROUTER_LABEL = kvq_router_method.KVQ_ROUTER_LABEL
KVQ_ROUTER_PAPER = kvq_router_method.KVQ_ROUTER_PAPER


class qp_rounding(IntEnum):
    """How a Hessian is used."""

    QP_ROUNDING_LDLQ = 0
    """Columns are coded from the last one to the first, each corrected for the errors of those behind it (block LDLQ).
    """
    QP_ROUNDING_NEAREST = 1
    """Every weight, pair or tile is rounded to what is nearest; the Hessian only tells ``qp_matrix_info.proxy_error``.
    """


QP_ROUNDING_LDLQ = qp_rounding.QP_ROUNDING_LDLQ
QP_ROUNDING_NEAREST = qp_rounding.QP_ROUNDING_NEAREST


class kvq_value_method(IntEnum):
    """How codes of values are trained, and how their bits are proposed when values are encoded."""

    KVQ_VALUES_LEAST_SQUARES = 0
    """Alternating least squares; a linear map proposes bits."""
    KVQ_VALUES_NETWORK = 1
    """The CommVQ paper's way: a network of one hidden layer proposes bits; it is trained together with the codes by
    gradient descent.
    """


KVQ_VALUES_LEAST_SQUARES = kvq_value_method.KVQ_VALUES_LEAST_SQUARES
KVQ_VALUES_NETWORK = kvq_value_method.KVQ_VALUES_NETWORK


class kvq_plan_goal(IntEnum):
    """What a plan makes as small as possible."""

    KVQ_PLAN_BYTES = 0
    """Memory."""
    KVQ_PLAN_SECONDS = 1
    """Time, of a step of decoding for example."""
    KVQ_PLAN_LOSS = 2
    """What is lost, in nats of divergence from the uncompressed model for example."""


KVQ_PLAN_BYTES = kvq_plan_goal.KVQ_PLAN_BYTES
KVQ_PLAN_SECONDS = kvq_plan_goal.KVQ_PLAN_SECONDS
KVQ_PLAN_LOSS = kvq_plan_goal.KVQ_PLAN_LOSS


class kvq_context(c_void_p):
    """Memory, threads, limits and device shared by any number of caches."""


class kvq_policy(c_void_p):
    """Which format pages are sealed in, per layer, how many stay FP16, and which tokens are evicted. Immutable."""


class kvq_codebook(c_void_p):
    """CommVQ codebooks for the layers of one model. Immutable; caches that use it share it. Files are in the
    safetensors format and hold about half of ``kvq_codebook_info.bytes``.
    """


class kvq_centres(c_void_p):
    """Centres of the keys and values of one model, for the formats gs and gt: a vector is stored relative to the
    nearest centre of its head. Immutable; caches that use them share them. Files are in the safetensors format and
    hold half of ``kvq_centres_info.bytes``.
    """


class kvq_router(c_void_p):
    """Routers for the layers of one model (MoQAE): small networks that choose the format of every page by the keys in
    it, before RoPE. Immutable; caches that use it share it. Files are in the safetensors format.
    """


class kvq_cache(c_void_p):
    """The attention layers of one model; owns the page formats and the work space of ``kvq_attend``."""


class kvq_sequence(c_void_p):
    """The pages of one conversation. Belongs to the cache that made it."""


class qp_matrix(c_void_p):
    """A linear layer y = x·Wᵀ + b on weights of 1 to 8 bits: NUQ, VQ and TCQ of Q-Palette, and trellises of single
    weights. Immutable; may be used by several threads at once.

    Inputs are rotated before a matrix sees them: random signs, then a Hadamard matrix. Matrices whose options have
    the same ``seed`` and that have the same number of columns share the rotation, which ``qp_linear_shared`` does
    once.
    """


class kvq_codebook_trainer(c_void_p):
    """Trains codebooks from keys and values that the caller's engine computed on some texts.

        kvq_codebook_trainer_create(context, &options, &trainer, &error);
        for every text, for every layer: kvq_codebook_trainer_add(trainer, layer, n, k, v, KVQ_BF16, &error);
        for every layer:                 kvq_codebook_trainer_run(trainer, layer, hook, user, &error);
        kvq_codebook_trainer_result(trainer, &codebook, &error);

    Layers are independent: where memory is short, add and run a few at a time. Mix the texts that the model will
    see, and take tens of thousands of tokens: what matters most is that codes meet in use what they were trained on.
    """


class kvq_centres_trainer(c_void_p):
    """Trains centres from keys and values that the caller's engine computed on some texts.

        kvq_centres_trainer_create(context, &options, &trainer, &error);
        for every text, for every layer: kvq_centres_trainer_add(trainer, layer, n, k, v, KVQ_BF16, &error);
        for every layer:                 kvq_centres_trainer_run(trainer, layer, hook, user, &error);
        kvq_centres_trainer_result(trainer, &centres, &error);

    Layers are independent: where memory is short, add and run a few at a time. Mix the texts that the model will
    see, and take some hundred tokens for each centre of a head.
    """


class kvq_router_trainer(c_void_p):
    """Trains routers from queries, keys and values that the caller's engine computed on some texts.

        kvq_router_trainer_create(context, &cache_options, policy, &options, &trainer, &error);
        for every text, for every layer: kvq_router_trainer_add(trainer, layer, n, q, k, v, KVQ_BF16, &error);
        kvq_router_trainer_run(trainer, loss, hook, user, &error);
        kvq_router_trainer_result(trainer, &router, &error);

    Texts should be as long as those that the model will see, a few thousand tokens each, and tens of thousands
    together: how much a page matters depends on what comes after it.
    """


class kvq_plan_fusion(c_void_p):
    """All ways to group matrices that read the same inputs and to write them: for engines whose kernels fuse only equal
    schemes. Those that another one beats in bytes, seconds and loss are left out; the others are the options of one
    choice for ``kvq_plan_solve``. Immutable.
    """


class kvq_plan(c_void_p):
    """What a planner decided, as a file: the scheme of each matrix and how caches store pages. Immutable."""


kvq_allocate_hook = CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)
"""A hook: kvq_allocate_hook(user: void*, bytes: size_t, alignment: size_t) -> void*

Allocate ``bytes`` (> 0) aligned to ``alignment`` (a power of two), or return NULL. Called from any thread, also from
several at once. Like all hooks it may not use the context or what was made from it.
"""

kvq_free_hook = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_size_t)
"""A hook: kvq_free_hook(user: void*, pointer: void*, bytes: size_t, alignment: size_t) -> void

Free what ``kvq_allocate_hook`` returned, with the same ``bytes`` and ``alignment``. Called from any thread, also
from several at once.
"""

kvq_log_hook = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
"""A hook: kvq_log_hook(user: void*, level: kvq_log_level, message: const char*) -> void

One message, NUL-terminated, without newline, valid until the hook returns. Called from any thread, also from several
at once.
"""

kvq_parallel_body = CFUNCTYPE(None, c_void_p, c_int32)
"""A hook: kvq_parallel_body(argument: void*, index: int32_t) -> void

Body of a parallel loop.
"""

kvq_parallel_for_hook = CFUNCTYPE(c_int32, c_void_p, c_int32, kvq_parallel_body, c_void_p)
"""A hook: kvq_parallel_for_hook(user: void*, n: int32_t, body: kvq_parallel_body, argument: void*) -> int32_t

Run ``body(argument, i)`` once for every i in [0, n), on any threads in any order, and return when all that began are
done. Results do not depend on the order or on the number of threads. Loops too short to be shared do not get here.
Called from the thread of the call that needs it, so from several at once if these use the context at once.

Returns 0; anything else, or fewer calls of ``body`` than n, says that the hook could not do it all: the calling
thread then does what is left.
"""

kvq_released_hook = CFUNCTYPE(None, c_void_p)
"""A hook: kvq_released_hook(user: void*) -> void

The last call of a context's hooks: none is used any more, and their ``user`` may go. Called by the thread that
destroys the context or the last object made from it; may use other contexts. Not called where a context could not be
created.
"""

kvq_device_allocate_hook = CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_void_p)
"""A hook: kvq_device_allocate_hook(user: void*, bytes: size_t, stream: void*) -> void*

Allocate ``bytes`` (> 0) of device memory aligned to 256 bytes, or return NULL. The memory is used in the order of
``stream``, the context's stream at that time. Called from the thread of the call that needs it.
"""

kvq_device_free_hook = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_void_p)
"""A hook: kvq_device_free_hook(user: void*, pointer: void*, bytes: size_t, stream: void*) -> void

Free what ``kvq_device_allocate_hook`` returned, once the work issued to ``stream`` so far is done: the hook may not
give it to another stream before.
"""

kvq_progress_hook = CFUNCTYPE(c_int32, c_void_p, c_double)
"""A hook: kvq_progress_hook(user: void*, done: double) -> int32_t

Told how far a long call has come, and asked whether to go on. Called now and then from the calling thread; may not
use the objects of the call.

- done: 0 … 1, an estimate of the share of the time, never falling.

Returns 0 to go on, anything else to end the call with ``KVQ_E_CANCELLED``.
"""


class kvq_error(Structure):
    """What went wrong. Owned by the caller; ``kvq_error_init`` before use."""

    struct_size: int
    """Of the caller's struct."""
    code: int
    """Same value as the call returned."""
    backend_code: int
    """Code of the device's own library or of a hook, 0 if none."""
    message: Text
    """English text, UTF-8, NUL-terminated, empty on success."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("code", c_int32),
        ("backend_code", c_int32),
        ("message", c_char * 256),
    ]


class kvq_context_options(Structure):
    """What a context runs on, and the hooks that it calls."""

    struct_size: int
    device: int
    """``KVQ_DEVICE_CPU`` by default."""
    n_threads: int
    """Threads for one call, the caller's included; 1 (default) starts none. At most 1024. Ignored when ``parallel_for``
    is set.
    """
    reserved: int
    """0."""
    max_bytes: int
    """Limit on everything allocated through the context, on the host and on the device together, the context included;
    0 (default): none.
    """
    cpu_isa: Optional[Text]
    """Name from ``kvq_cpu_isa_name``; NULL (default): the best of this machine."""
    allocate: Any
    """NULL (default): the C++ runtime's aligned operator new."""
    free: Any
    """NULL exactly when ``allocate`` is NULL."""
    allocator_user: Any
    """Passed to ``allocate`` and ``free``."""
    log: Any
    """NULL (default): no messages."""
    log_user: Any
    """Passed to ``log``."""
    parallel_for: Any
    """NULL (default): the library's own ``n_threads``."""
    parallel_for_user: Any
    """Passed to ``parallel_for``."""
    device_index: int
    """Ordinal of the GPU; 0 by default."""
    reserved2: int
    """0."""
    plugin: Optional[Text]
    """Path of libkvq_cuda.so; NULL (default): beside the library that holds this function, then where the loader
    searches.
    """
    stream: Any
    """cudaStream_t that everything is issued to; NULL (default): the legacy default stream. See
    ``kvq_context_set_stream``.
    """
    device_allocate: Any
    """NULL (default): a memory pool of the context's own."""
    device_free: Any
    """NULL exactly when ``device_allocate`` is NULL."""
    device_allocator_user: Any
    """Passed to both."""
    released: Any
    """Called when the context is gone, which objects made from it may put off: hooks and what they need live until
    then. NULL (default): nobody is told.
    """
    released_user: Any
    """Passed to ``released``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_int32),
        ("n_threads", c_int32),
        ("reserved", c_int32),
        ("max_bytes", c_uint64),
        ("cpu_isa", c_char_p),
        ("allocate", kvq_allocate_hook),
        ("free", kvq_free_hook),
        ("allocator_user", c_void_p),
        ("log", kvq_log_hook),
        ("log_user", c_void_p),
        ("parallel_for", kvq_parallel_for_hook),
        ("parallel_for_user", c_void_p),
        ("device_index", c_int32),
        ("reserved2", c_int32),
        ("plugin", c_char_p),
        ("stream", c_void_p),
        ("device_allocate", kvq_device_allocate_hook),
        ("device_free", kvq_device_free_hook),
        ("device_allocator_user", c_void_p),
        ("released", kvq_released_hook),
        ("released_user", c_void_p),
    ]


class kvq_context_info(Structure):
    """What a context runs on and uses."""

    struct_size: int
    device: int
    n_threads: int
    """0 when the caller's ``parallel_for`` hook is used."""
    reserved: int
    """0."""
    backend: Optional[Text]
    """"cpu" or "cuda"."""
    isa: Optional[Text]
    """Instruction set in use, for example "avx512vnni" or "sm_90"."""
    bytes: int
    """Allocated now."""
    peak_bytes: int
    """Largest value of ``bytes`` so far."""
    max_bytes: int
    """The limit, 0 if none."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("device", c_int32),
        ("n_threads", c_int32),
        ("reserved", c_int32),
        ("backend", c_char_p),
        ("isa", c_char_p),
        ("bytes", c_uint64),
        ("peak_bytes", c_uint64),
        ("max_bytes", c_uint64),
    ]


class kvq_device_info(Structure):
    """A device that contexts can be created on."""

    struct_size: int
    n_devices: int
    """Devices of this kind."""
    name: Text
    """For example "NVIDIA H100 80GB HBM3"."""
    compute_capability: int
    """90 for 9.0."""
    driver_version: int
    """Newest CUDA version that the driver supports, 13000 for 13.0."""
    memory_bytes: int
    """Of the device."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_devices", c_int32),
        ("name", c_char * 128),
        ("compute_capability", c_int32),
        ("driver_version", c_int32),
        ("memory_bytes", c_uint64),
    ]


class kvq_policy_info(Structure):
    """What a host has to know of a policy."""

    struct_size: int
    eviction_budget: int
    """Tokens of a KV head that ``kvq_compress`` keeps; INT32_MAX: a share; 0: it evicts none."""
    eviction_window: int
    """Newest tokens that it always keeps, of every head."""
    reserved: int
    """0."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("eviction_budget", c_int32),
        ("eviction_window", c_int32),
        ("reserved", c_int32),
    ]


class kvq_codebook_info(Structure):
    """What codebooks are made for and how well they do. Errors are ‖x̂ − x‖² / ‖x‖² of training, averaged over the
    layers that are present; 0 for a side without codes.
    """

    struct_size: int
    n_layers: int
    layers_present: int
    """Fewer than ``n_layers``: training was not finished; no cache takes such codebooks."""
    kv_heads: int
    head_dim: int
    rope: int
    """How channels of a key pair up: ``KVQ_ROPE_HALF`` or ``KVQ_ROPE_INTERLEAVED``."""
    key_stages: int
    """R, 0: no codes for keys."""
    key_codes: int
    """Nc, of a stage."""
    key_group: int
    """g, successive pairs that share their indices."""
    key_norms: int
    """What shares a norm."""
    value_bits: int
    """Code bits of a value scalar, 0: no codes for values."""
    value_scope: int
    """What shares a code."""
    key_true_bits: float
    """Bits of a key scalar, codes and norms."""
    value_true_bits: float
    """Bits of a value scalar, codes and scales."""
    key_error: float
    value_error: float
    tokens: int
    """Trained on, the fewest of any layer."""
    seed: int
    """Of everything random in training."""
    model_id: int
    """As in kvq_cache_options."""
    bytes: int
    """Of the numbers, in memory."""
    note: Optional[Text]
    """Where the codebooks come from, as their trainer said."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_layers", c_int32),
        ("layers_present", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rope", c_int32),
        ("key_stages", c_int32),
        ("key_codes", c_int32),
        ("key_group", c_int32),
        ("key_norms", c_int32),
        ("value_bits", c_int32),
        ("value_scope", c_int32),
        ("key_true_bits", c_double),
        ("value_true_bits", c_double),
        ("key_error", c_double),
        ("value_error", c_double),
        ("tokens", c_int64),
        ("seed", c_uint64),
        ("model_id", c_uint64),
        ("bytes", c_uint64),
        ("note", c_char_p),
    ]


class kvq_codebook_layer_info(Structure):
    """One layer of codebooks; see ``kvq_codebook_info``."""

    struct_size: int
    present: int
    """1; 0: the layer is missing and everything below is 0."""
    tokens: int
    key_error: float
    value_error: float
    key_stage_errors: Any
    """The key error of a decoder that knows only the first stage, the first two, …: the last of ``key_stages`` is
    ``key_error``, then 0.
    """

    _fields_ = [
        ("struct_size", c_uint32),
        ("present", c_int32),
        ("tokens", c_int64),
        ("key_error", c_double),
        ("value_error", c_double),
        ("key_stage_errors", c_double * 64),
    ]


class kvq_centres_info(Structure):
    """What centres are made for and how much they take away. Residuals are ‖x − c‖² / ‖x‖² of training, with the
    nearest centre c, averaged over the layers that are present; 0 for a side without centres.
    """

    struct_size: int
    n_layers: int
    layers_present: int
    """Fewer than ``n_layers``: training was not finished; no cache takes such centres."""
    kv_heads: int
    head_dim: int
    rope: int
    """Of the keys that follow; centres are before it."""
    key_centres: int
    """Of a head; 0: keys have none."""
    value_centres: int
    """Of a head; 0: values have none."""
    key_residual: float
    value_residual: float
    tokens: int
    """Trained on, the fewest of any layer."""
    seed: int
    """Of everything random in training."""
    model_id: int
    """As in kvq_cache_options."""
    bytes: int
    """Of the numbers, in memory."""
    note: Optional[Text]
    """Where the centres come from, as their trainer said."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_layers", c_int32),
        ("layers_present", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rope", c_int32),
        ("key_centres", c_int32),
        ("value_centres", c_int32),
        ("key_residual", c_double),
        ("value_residual", c_double),
        ("tokens", c_int64),
        ("seed", c_uint64),
        ("model_id", c_uint64),
        ("bytes", c_uint64),
        ("note", c_char_p),
    ]


class kvq_centres_layer_info(Structure):
    """One layer of centres; see ``kvq_centres_info``."""

    struct_size: int
    present: int
    """1; 0: the layer is missing and everything below is 0."""
    tokens: int
    key_residual: float
    value_residual: float

    _fields_ = [
        ("struct_size", c_uint32),
        ("present", c_int32),
        ("tokens", c_int64),
        ("key_residual", c_double),
        ("value_residual", c_double),
    ]


class kvq_router_info(Structure):
    """What routers are made for, and what they do on the pages that they were trained on."""

    struct_size: int
    n_layers: int
    kv_heads: int
    head_dim: int
    rope: int
    """Of the keys that follow; routers see them before."""
    sharing: int
    """Successive layers that share the decisions of the first of them."""
    groups: int
    """Of such layers; each has a network."""
    n_experts: int
    """Formats to choose among, 2 … ``KVQ_MAX_EXPERTS``."""
    method: int
    """It was trained with."""
    reserved: int
    """0."""
    loss_weight: float
    """Of training by the paper's loss; 0 for labels."""
    mean_bits: float
    """True bits of a scalar, as pages are stored; the first and the open one not counted."""
    tolerance: float
    """Labels: the error of attention up to which a format was good enough for a page."""
    accuracy: float
    """Labels: the share of pages that get the format they were labelled with."""
    tokens: int
    """Trained on."""
    seed: int
    """Of everything random in training."""
    model_id: int
    """As in kvq_cache_options."""
    bytes: int
    """Of one network in a file."""
    experts: Optional[Text]
    """Names of the formats as in a policy, those with more bits first, separated by ", "."""
    note: Optional[Text]
    """Where the routers come from, as their trainer said."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_layers", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rope", c_int32),
        ("sharing", c_int32),
        ("groups", c_int32),
        ("n_experts", c_int32),
        ("method", c_int32),
        ("reserved", c_int32),
        ("loss_weight", c_double),
        ("mean_bits", c_double),
        ("tolerance", c_double),
        ("accuracy", c_double),
        ("tokens", c_int64),
        ("seed", c_uint64),
        ("model_id", c_uint64),
        ("bytes", c_uint64),
        ("experts", c_char_p),
        ("note", c_char_p),
    ]


class kvq_router_group_info(Structure):
    """One group of layers; see ``kvq_router_info``."""

    struct_size: int
    first_layer: int
    """Whose keys decide."""
    last_layer: int
    reserved: int
    """0."""
    mean_bits: float
    """As in kvq_router_info, of these layers."""
    accuracy: float
    """As in kvq_router_info, of these layers."""
    shares: Any
    """Of the pages that each format gets; 0 beyond ``n_experts``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("first_layer", c_int32),
        ("last_layer", c_int32),
        ("reserved", c_int32),
        ("mean_bits", c_double),
        ("accuracy", c_double),
        ("shares", c_double * 8),
    ]


class kvq_cache_options(Structure):
    """The shape of a model's attention layers, and what their pages need."""

    struct_size: int
    n_layers: int
    """1 … 65536."""
    q_heads: int
    """Query heads, 1 … 65536; a multiple of ``kv_heads``."""
    kv_heads: int
    """Key/value heads, 1 … 4096."""
    head_dim: int
    """A multiple of 8, 8 … 256."""
    rope: int
    """``KVQ_ROPE_HALF`` by default."""
    rotary_dim: int
    """Leading channels that are rotated, even; 0 (default): ``head_dim``."""
    rope_base: float
    """10000 by default; frequencies must be finite. Unused when ``inv_freq`` is given."""
    inv_freq: Any
    """Radians per position, head_dim / 2 where ``rotary_dim`` is 0; NULL (default): rope_base^(-2j / rotary_dim)."""
    scale: float
    """Factor on q·k; 0 (default): 1 / sqrt(head_dim)."""
    reserved: int
    """0."""
    max_bytes: int
    """Limit on what this cache allocates, its own object included; 0 (default): only the context's."""
    model_id: int
    """Any number that identifies the model's weights; snapshots of another one are refused."""
    codebook: Any
    """What the format ``commvq`` of a policy needs: of this context, complete, for this many layers and KV heads, this
    ``head_dim`` and ``rope``, and this ``model_id`` unless one of them is 0. Any number of caches share it. NULL
    (default): none.
    """
    router: Any
    """What ``router`` in a policy needs: of this context, trained for this shape, ``rope``, ``model_id`` unless one of
    them is 0, and the policy's experts. Any number of caches share it. NULL (default): none.
    """
    centres: Any
    """What the formats gs and gt with trained centres need: of this context, complete, for this many layers and KV
    heads, this ``head_dim`` and, for keys, ``rope``, and this ``model_id`` unless one of them is 0. Any number of
    caches share it. A policy may need ``codebook`` or ``centres``, not both. NULL (default): none.
    """

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_layers", c_int32),
        ("q_heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rope", c_int32),
        ("rotary_dim", c_int32),
        ("rope_base", c_float),
        ("inv_freq", c_void_p),
        ("scale", c_float),
        ("reserved", c_int32),
        ("max_bytes", c_uint64),
        ("model_id", c_uint64),
        ("codebook", kvq_codebook),
        ("router", kvq_router),
        ("centres", kvq_centres),
    ]


class kvq_cache_info(Structure):
    """What a cache was made with, defaults filled in."""

    struct_size: int
    n_layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    rope: int
    rotary_dim: int
    """0 without RoPE."""
    scale: float
    sink: int
    """First pages of a list that stay FP16."""
    recent: int
    """Newest pages that stay FP16."""
    eviction_budget: int
    """As in kvq_policy_info."""
    eviction_window: int
    """As in kvq_policy_info."""
    max_bytes: int
    model_id: int

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_layers", c_int32),
        ("q_heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rope", c_int32),
        ("rotary_dim", c_int32),
        ("scale", c_float),
        ("sink", c_int32),
        ("recent", c_int32),
        ("eviction_budget", c_int32),
        ("eviction_window", c_int32),
        ("max_bytes", c_uint64),
        ("model_id", c_uint64),
    ]


class kvq_layer_info(Structure):
    """How a layer stores what is sealed."""

    struct_size: int
    n_formats: int
    """1, or those that a router chooses among."""
    formats: Text
    """Their names, keys/values where these differ, separated by ", "."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_formats", c_int32),
        ("formats", c_char * 256),
    ]


class kvq_append_batch(Structure):
    """Tokens for one layer of several sequences. Rows of ``k`` and ``v``, a token's, follow sequence by sequence."""

    struct_size: int
    n_sequences: int
    """≥ 1."""
    sequences: Any
    """All of this cache, none twice."""
    token_counts: Any
    """Each ≥ 1; NULL (default): one token each."""
    positions: Any
    """As for ``kvq_append``; NULL (default): consecutive in each sequence."""
    k: Any
    """As for ``kvq_append``."""
    v: Any
    """As for ``kvq_append``."""
    dtype: int
    """Of ``k`` and ``v``; ``KVQ_F32`` by default."""
    reserved: int
    """0."""
    k_token_stride: int
    """Elements from a token's keys to the next one's, not negative; 0 (default): dense, as many as its heads take. The
    channels of a head are always neighbours, and rows need no more alignment than their elements.
    """
    k_head_stride: int
    """Elements from a head to the next one, not negative; 0 (default): dense, head_dim."""
    v_token_stride: int
    """As for keys."""
    v_head_stride: int
    """As for keys."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_sequences", c_int32),
        ("sequences", c_void_p),
        ("token_counts", c_void_p),
        ("positions", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("dtype", c_int32),
        ("reserved", c_int32),
        ("k_token_stride", c_int64),
        ("k_head_stride", c_int64),
        ("v_token_stride", c_int64),
        ("v_head_stride", c_int64),
    ]


class kvq_compress_options(Structure):
    """What to compress to, and where to report."""

    struct_size: int
    budget: int
    """Tokens of a KV head that are kept on average; 0 (default): the policy's."""
    kept: Any
    """``[n_layers, kv_heads]`` receives the tokens that each head holds afterwards; NULL: skip."""
    bytes_freed: Any
    """Receives by how much the bytes of the sequence fell; NULL: skip."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("budget", c_int32),
        ("kept", c_void_p),
        ("bytes_freed", c_void_p),
    ]


class kvq_attend_batch(Structure):
    """Queries of one or several sequences, and where their results go."""

    struct_size: int
    n_sequences: int
    """≥ 1."""
    sequences: Any
    """All of this cache; the same one may occur repeatedly."""
    query_counts: Any
    """Each ≥ 1; NULL (default): one query each."""
    query_positions: Any
    """≥ 0; NULL (default): the last ``query_counts[i]`` tokens of each sequence, so append before attending."""
    q: Any
    """``[total queries, q_heads, head_dim]``, before RoPE unless the cache was made with ``KVQ_ROPE_NONE``. Finite, as
    its logits are: what comes of others means nothing.
    """
    q_dtype: int
    """``KVQ_F32`` by default."""
    output_dtype: int
    """``KVQ_F32`` by default."""
    output: Any
    """``[total queries, q_heads, head_dim]``; from the first row to the last, its memory may not overlap that of ``q``
    or ``sinks``.
    """
    sliding_window: int
    """A query at position p sees positions > p − window; 0 (default): all."""
    logit_softcap: float
    """cap·tanh(logit / cap); 0 (default): none."""
    q_token_stride: int
    """Elements from a query's row to the next one's, not negative; 0 (default): dense, as many as its heads take. The
    channels of a head are always neighbours, and rows need no more alignment than their elements.
    """
    q_head_stride: int
    """Elements from a head to the next one, not negative; 0 (default): dense, head_dim."""
    output_token_stride: int
    """As for queries. No two rows may overlap: all heads of a query lie before the next query's (token stride ≥
    (q_heads − 1) · head stride + head_dim), or all queries of a head before the next head's. What is between is left
    alone.
    """
    output_head_stride: int
    """As for queries."""
    lse: Any
    """``[total queries, q_heads]`` receives the natural logarithm of the sum of exp of the logits, after scale and cap,
    sinks included; -infinity for a query that sees nothing and has no sink. Results over parts of a context merge by
    it, where one part alone has the sinks: Σᵢ exp(lseᵢ − lse) · outputᵢ with lse = log Σᵢ exp lseᵢ. It may not
    overlap ``q``, ``output`` or ``sinks``. NULL (default): skip.
    """
    sinks: Any
    """``[q_heads]`` learned logits: each adds exp(sink) to the softmax denominator of its head and nothing to the sum
    of values; neither scaled nor capped; -infinity is none; NaN and +infinity are refused on a CPU. NULL (default):
    none.
    """

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_sequences", c_int32),
        ("sequences", c_void_p),
        ("query_counts", c_void_p),
        ("query_positions", c_void_p),
        ("q", c_void_p),
        ("q_dtype", c_int32),
        ("output_dtype", c_int32),
        ("output", c_void_p),
        ("sliding_window", c_int32),
        ("logit_softcap", c_float),
        ("q_token_stride", c_int64),
        ("q_head_stride", c_int64),
        ("output_token_stride", c_int64),
        ("output_head_stride", c_int64),
        ("lse", c_void_p),
        ("sinks", c_void_p),
    ]


class kvq_usage(Structure):
    """Where the bytes are. All sizes are bytes as allocated, padding and bookkeeping included."""

    struct_size: int
    reserved: int
    """0."""
    scalars: int
    """Key and value scalars held: 2 · head_dim · slots over all layers and KV heads."""
    sealed_bytes: int
    """Pages in their final compressed format."""
    fp16_bytes: int
    """FP16 pages: open, recent, sink, or of an fp16 policy."""
    metadata_bytes: int
    """Page records, positions, page lists, the sequence objects."""
    workspace_bytes: int
    """Work space of kvq_attend and the cache object; 0 when asked for one sequence."""
    total_bytes: int
    """Sum of the four."""
    plain_fp16_bytes: int
    """2 · scalars: what an uncompressed FP16 cache needs."""
    sealed_pages: int
    fp16_pages: int
    shared_pages: int
    """Pages that more than one sequence holds. For one sequence they are counted in full."""
    bits_per_scalar: float
    """8 · (sealed + fp16 + metadata bytes) / scalars; 0 when empty."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_int32),
        ("scalars", c_int64),
        ("sealed_bytes", c_uint64),
        ("fp16_bytes", c_uint64),
        ("metadata_bytes", c_uint64),
        ("workspace_bytes", c_uint64),
        ("total_bytes", c_uint64),
        ("plain_fp16_bytes", c_uint64),
        ("sealed_pages", c_uint64),
        ("fp16_pages", c_uint64),
        ("shared_pages", c_uint64),
        ("bits_per_scalar", c_double),
    ]


class qp_quantize_options(Structure):
    """How a matrix is written in few bits."""

    struct_size: int
    dtype: int
    """Of the weights; ``KVQ_F32`` by default."""
    scheme: Optional[Text]
    """See ``qp_scheme_name``; "nuq-4" by default."""
    seed: int
    """Of the signs; 1 by default."""
    hessian: Any
    """``[columns, columns]``, the mean of x·xᵀ over inputs x; NULL (default): weights are rounded alone."""
    rounding: int
    """What the Hessian is for; ``QP_ROUNDING_LDLQ`` by default."""
    reserved: int
    """0."""
    damping: float
    """Share of the Hessian's mean diagonal that is added to its diagonal, 0 … 1; 0.01 by default."""
    bias: Any
    """Kept as it is; NULL (default): none."""
    progress: Any
    """NULL (default): not called."""
    progress_user: Any
    """Passed to ``progress``."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("dtype", c_int32),
        ("scheme", c_char_p),
        ("seed", c_uint64),
        ("hessian", c_void_p),
        ("rounding", c_int32),
        ("reserved", c_int32),
        ("damping", c_double),
        ("bias", c_void_p),
        ("progress", kvq_progress_hook),
        ("progress_user", c_void_p),
    ]


class qp_matrix_info(Structure):
    """What a matrix is."""

    struct_size: int
    has_bias: int
    """1 or 0."""
    rows: int
    columns: int
    bytes: int
    """Of codes, scales, signs and bias."""
    bits: float
    """8 · bytes / (rows · columns), without the bias: true bits of a weight."""
    error: float
    """‖Ŵ − W‖² / ‖W‖² when it was quantized; 0 for a matrix of zeros."""
    proxy_error: float
    """tr(E·H·Eᵀ) / tr(W·H·Wᵀ) with E = Ŵ − W and the Hessian as given; 0 without one."""
    scheme: Optional[Text]
    """As in qp_quantize_options."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("has_bias", c_int32),
        ("rows", c_int64),
        ("columns", c_int64),
        ("bytes", c_uint64),
        ("bits", c_double),
        ("error", c_double),
        ("proxy_error", c_double),
        ("scheme", c_char_p),
    ]


class kvq_codebook_trainer_options(Structure):
    """What codebooks are trained for, and how many codes they have."""

    struct_size: int
    n_layers: int
    """1 … 65536."""
    kv_heads: int
    """1 … 4096."""
    head_dim: int
    """A multiple of 8, 8 … 256."""
    rope: int
    """``KVQ_ROPE_HALF`` by default, or ``KVQ_ROPE_INTERLEAVED``."""
    key_stages: int
    """0 … 64, 0: no codes for keys. A key scalar takes key_stages · log2(key_codes) / key_group bits: with groups of
    64, 11 (default) give 1.03 and 21 give 1.97.
    """
    key_codes: int
    """A power of two, 2 … 256; 64 by default."""
    key_group: int
    """A divisor of head_dim / 2; 0 (default): head_dim / 2, one group a head."""
    key_norms: int
    """``KVQ_SCOPE_HEAD`` by default."""
    value_bits: int
    """0, 1 (default) or 2, 0: no codes for values."""
    value_scope: int
    """``KVQ_SCOPE_LAYER`` by default: smaller errors, but tokens can be evicted only for all heads of a layer at once.
    """
    key_rounds: int
    """Rounds of joint refinement of all stages, at most 1000; 0 (default): the library's."""
    value_rounds: int
    """Rounds of least squares, or of 50 steps of the network each, at most 1000; 0 (default): the library's choice."""
    value_method: int
    """``KVQ_VALUES_LEAST_SQUARES`` by default."""
    seed: int
    """Of everything random; 1 by default."""
    model_id: int
    """Any number that identifies the model's weights, as in kvq_cache_options."""
    max_bytes: int
    """Limit on tokens kept and work space; 0 (default): only the context's."""
    note: Optional[Text]
    """At most 4096 bytes: where the codebooks come from, for example. NULL (default): ""."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_layers", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rope", c_int32),
        ("key_stages", c_int32),
        ("key_codes", c_int32),
        ("key_group", c_int32),
        ("key_norms", c_int32),
        ("value_bits", c_int32),
        ("value_scope", c_int32),
        ("key_rounds", c_int32),
        ("value_rounds", c_int32),
        ("value_method", c_int32),
        ("seed", c_uint64),
        ("model_id", c_uint64),
        ("max_bytes", c_uint64),
        ("note", c_char_p),
    ]


class kvq_centres_trainer_options(Structure):
    """What centres are trained for, and how many there are."""

    struct_size: int
    n_layers: int
    """1 … 65536."""
    kv_heads: int
    """1 … 4096."""
    head_dim: int
    """A multiple of 8, 8 … 256."""
    rope: int
    """That follows the keys; ``KVQ_ROPE_HALF`` by default."""
    key_centres: int
    """Of a head, 0 … 256; 256 by default, 1: the mean, 0: none for keys."""
    value_centres: int
    """The same for values."""
    rounds: int
    """Of k-means over all tokens, at most 1000; 0 (default): the library's choice."""
    seed: int
    """Of everything random; 1 by default."""
    model_id: int
    """Any number that identifies the model's weights, as in kvq_cache_options."""
    max_bytes: int
    """Limit on tokens kept and work space; 0 (default): only the context's."""
    note: Optional[Text]
    """At most 4096 bytes: where the centres come from, for example. NULL (default): ""."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_layers", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rope", c_int32),
        ("key_centres", c_int32),
        ("value_centres", c_int32),
        ("rounds", c_int32),
        ("seed", c_uint64),
        ("model_id", c_uint64),
        ("max_bytes", c_uint64),
        ("note", c_char_p),
    ]


class kvq_router_trainer_options(Structure):
    """How routers are trained, and for how many bits."""

    struct_size: int
    method: int
    """``KVQ_ROUTER_LABEL`` by default."""
    sharing: int
    """Successive layers that share decisions, 1 … 65536; 3 by default."""
    epochs: int
    """Passes over the keys, at most 10000; 0 (default): the library's choice."""
    mean_bits: float
    """For ``KVQ_ROUTER_LABEL``, which needs it: the wanted mean of true bits of a scalar over routed pages, from those
    of the last expert to those of the first. 0 by default.
    """
    loss_weight: float
    """For ``KVQ_ROUTER_PAPER``: the weight of the model's loss against that of memory (the paper's λ), 0 … 1; 0.5 by
    default.
    """
    learning_rate: float
    """Of AdamW, above 0, at most 1; 3e-4 by default."""
    seed: int
    """Of everything random; 1 by default."""
    max_bytes: int
    """Limit on keys kept and work space; 0 (default): only the context's."""
    note: Optional[Text]
    """At most 4096 bytes. NULL (default): ""."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("method", c_int32),
        ("sharing", c_int32),
        ("epochs", c_int32),
        ("mean_bits", c_double),
        ("loss_weight", c_double),
        ("learning_rate", c_double),
        ("seed", c_uint64),
        ("max_bytes", c_uint64),
        ("note", c_char_p),
    ]


class kvq_plan_problem(Structure):
    """Choices, of each of which a plan takes one option: the scheme of a matrix, the format of a layer's keys. Costs
    add up; the library knows nothing else of them.
    """

    struct_size: int
    goal: int
    """``KVQ_PLAN_LOSS`` by default."""
    n_choices: int
    """1 … 2^20."""
    reserved: int
    """0."""
    option_counts: Any
    """Options of each choice, at least 1; 2^24 together at most."""
    bytes: Any
    """Of the options of the first choice, then of the second, …; finite, not negative. NULL (default): 0."""
    seconds: Any
    """The same."""
    loss: Any
    """The same."""
    max_bytes: float
    """That all options taken may have together; infinity (default): any."""
    max_seconds: float
    """The same."""
    max_loss: float
    """The same."""
    tolerance: float
    """Share of the smallest goal by which the plan's may be above it, 0 … 1; 0.0001 by default."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("goal", c_int32),
        ("n_choices", c_int32),
        ("reserved", c_int32),
        ("option_counts", c_void_p),
        ("bytes", c_void_p),
        ("seconds", c_void_p),
        ("loss", c_void_p),
        ("max_bytes", c_double),
        ("max_seconds", c_double),
        ("max_loss", c_double),
        ("tolerance", c_double),
    ]


class kvq_plan_costs(Structure):
    """What a plan costs."""

    struct_size: int
    reserved: int
    """0."""
    bytes: float
    seconds: float
    loss: float
    bound: float
    """No plan that keeps the limits has a smaller goal. It is within the tolerance of this plan's, but for the hardest
    problems with two limits.
    """

    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_int32),
        ("bytes", c_double),
        ("seconds", c_double),
        ("loss", c_double),
        ("bound", c_double),
    ]


class kvq_plan_fusion_options(Structure):
    """Matrices that read the same inputs, of which some may be multiplied together if they have one scheme. A group is
    a set of members, bit i for member i.
    """

    struct_size: int
    n_members: int
    """1 … ``KVQ_MAX_FUSED``, for example 3: q, k and v."""
    n_schemes: int
    """1 … 1024."""
    n_groups: int
    """Groups that can be multiplied together, those of one member, too; 1 … 15."""
    groups: Any
    """All different; every member must be in one."""
    bytes: Any
    """``[n_members, n_schemes]``, finite, not negative."""
    loss: Any
    """The same."""
    seconds: Any
    """``[n_groups, n_schemes]``, of each group as a whole; the same, or infinity where a group cannot have a scheme."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_members", c_int32),
        ("n_schemes", c_int32),
        ("n_groups", c_int32),
        ("groups", c_void_p),
        ("bytes", c_void_p),
        ("loss", c_void_p),
        ("seconds", c_void_p),
    ]


class kvq_plan_fusion_info(Structure):
    """How many groupings there are."""

    struct_size: int
    n_members: int
    n_groupings: int
    """0: no grouping has a time."""
    reserved: int
    """0."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_members", c_int32),
        ("n_groupings", c_int32),
        ("reserved", c_int32),
    ]


class kvq_plan_grouping_info(Structure):
    """One grouping."""

    struct_size: int
    reserved: int
    """0."""
    bytes: float
    seconds: float
    loss: float
    groups: Any
    """Of each member, the group that it is multiplied in; then 0."""
    schemes: Any
    """Of each member, the number of its scheme; then 0."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_int32),
        ("bytes", c_double),
        ("seconds", c_double),
        ("loss", c_double),
        ("groups", c_int32 * 4),
        ("schemes", c_int32 * 4),
    ]


class kvq_plan_content(Structure):
    """What is in a plan."""

    struct_size: int
    n_matrices: int
    """0 … 2^20."""
    names: Any
    """Of the matrices, all different, each a string of 1 to 200 bytes without control characters."""
    schemes: Any
    """As in qp_quantize_options, each a string."""
    policy: Any
    """Of the context. NULL (default): the plan says nothing of caches."""
    bytes: float
    """Expected; finite, not negative, 0 by default."""
    seconds: float
    """The same."""
    loss: float
    """The same."""
    note: Optional[Text]
    """At most 4096 bytes, UTF-8 without control characters. NULL (default): ""."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_matrices", c_int32),
        ("names", c_void_p),
        ("schemes", c_void_p),
        ("policy", kvq_policy),
        ("bytes", c_double),
        ("seconds", c_double),
        ("loss", c_double),
        ("note", c_char_p),
    ]


class kvq_plan_info(Structure):
    """What is in a plan."""

    struct_size: int
    n_matrices: int
    has_policy: int
    """1 or 0."""
    reserved: int
    """0."""
    bytes: float
    seconds: float
    loss: float
    note: Optional[Text]

    _fields_ = [
        ("struct_size", c_uint32),
        ("n_matrices", c_int32),
        ("has_policy", c_int32),
        ("reserved", c_int32),
        ("bytes", c_double),
        ("seconds", c_double),
        ("loss", c_double),
        ("note", c_char_p),
    ]


class kvq_plan_matrix_info(Structure):
    """One matrix of a plan."""

    struct_size: int
    reserved: int
    """0."""
    name: Optional[Text]
    scheme: Optional[Text]

    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_int32),
        ("name", c_char_p),
        ("scheme", c_char_p),
    ]


library = Library(KVQ_API_VERSION)

kvq_error_init = library.function(
    "kvq_error_init",
    None,
    {"error": POINTER(kvq_error), "size": c_size_t},
    """kvq_error_init(error: kvq_error*, size: size_t) -> void

Clear an error.

- size: sizeof(kvq_error).

Threads: any.
""",
)
kvq_status_name = library.function(
    "kvq_status_name",
    c_char_p,
    {"status": c_int32},
    """kvq_status_name(status: kvq_status) -> const char*

Name of a status code, for example "KVQ_E_LIMIT"; "unknown status" for other numbers.

Threads: any.
""",
)
kvq_api_version = library.function(
    "kvq_api_version",
    c_int32,
    {},
    """kvq_api_version() -> int32_t

The ``KVQ_API_VERSION`` that the loaded library implements: it has everything that a header of this or a smaller
number declares, apart from experimental parts.

Threads: any.
""",
)
kvq_version_string = library.function(
    "kvq_version_string",
    c_char_p,
    {},
    """kvq_version_string() -> const char*

Version of the loaded library, "major.minor.patch".

Threads: any.
""",
)
kvq_context_options_init = library.function(
    "kvq_context_options_init",
    None,
    {"options": POINTER(kvq_context_options), "size": c_size_t},
    """kvq_context_options_init(options: kvq_context_options*, size: size_t) -> void

Fill with defaults.

- size: sizeof(kvq_context_options).

Threads: any.
""",
)
kvq_context_create = library.function(
    "kvq_context_create",
    c_int32,
    {"options": POINTER(kvq_context_options), "result": POINTER(kvq_context), "error": POINTER(kvq_error)},
    """kvq_context_create(options: const kvq_context_options*, result: kvq_context**, error: kvq_error*) -> kvq_status

Create a context.

- options: NULL: defaults.
- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED (device or instruction set not available here, with the
reason); KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND (a thread could not be started, or the device failed).

Threads: any.
""",
)
kvq_context_destroy = library.function(
    "kvq_context_destroy",
    None,
    {"context": kvq_context},
    """kvq_context_destroy(context: kvq_context*) -> void

Destroy a handle. What was made from the context keeps it alive.

Threads: exclusive use of the handle.
""",
)
kvq_context_describe = library.function(
    "kvq_context_describe",
    c_int32,
    {"context": kvq_context, "info": POINTER(kvq_context_info), "error": POINTER(kvq_error)},
    """kvq_context_describe(context: const kvq_context*, info: kvq_context_info*, error: kvq_error*) -> kvq_status

Describe a context.

- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: any.
""",
)
kvq_context_set_stream = library.function(
    "kvq_context_set_stream",
    c_int32,
    {"context": kvq_context, "stream": c_void_p, "error": POINTER(kvq_error)},
    """kvq_context_set_stream(context: kvq_context*, stream: void*, error: kvq_error*) -> kvq_status

Issue later calls of a CUDA context to another stream, ordered after everything issued before.

- stream: cudaStream_t, NULL for the legacy default stream. It must live until another one is set or the context
  is gone.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED (a CPU context); KVQ_E_BACKEND.

Threads: exclusive use of ``context``.
""",
)
kvq_device_describe = library.function(
    "kvq_device_describe",
    c_int32,
    {
        "device": c_int32,
        "index": c_int32,
        "plugin": c_char_p,
        "info": POINTER(kvq_device_info),
        "error": POINTER(kvq_error),
    },
    """kvq_device_describe(device: kvq_device, index: int32_t, plugin: const char*, info: kvq_device_info*, error:
kvq_error*) -> kvq_status

Ask whether contexts can be created on a device, and on what.

- device: ``KVQ_DEVICE_CUDA``.
- index: as ``kvq_context_options.device_index``.
- plugin: as ``kvq_context_options.plugin``.
- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED with the reason: no plug-in library, one of another version, a
library it needs is missing (its name), no driver, a driver too old, no such device.

Threads: any.
""",
)
kvq_cpu_isa_count = library.function(
    "kvq_cpu_isa_count",
    c_int32,
    {},
    """kvq_cpu_isa_count() -> int32_t

Number of CPU instruction sets that this build has kernels for and this machine can run.

Threads: any.
""",
)
kvq_cpu_isa_name = library.function(
    "kvq_cpu_isa_name",
    c_char_p,
    {"index": c_int32},
    """kvq_cpu_isa_name(index: int32_t) -> const char*

Name of instruction set ``index``, best first ("amx", "avx512vnni", "avx512", "avx2", "baseline"). "amx" is
"avx512vnni" with products of tiles for linear layers on five rows and more. Where a processor has tiles, the
first call that looks for instruction sets asks Linux to let this process use them; alternate signal stacks that
are set up later must then have room for them (AT_MINSIGSTKSZ).

Returns NULL if ``index`` is out of range.

Threads: any.
""",
)
kvq_policy_load = library.function(
    "kvq_policy_load",
    c_int32,
    {
        "context": kvq_context,
        "yaml": c_char_p,
        "length": c_size_t,
        "result": POINTER(kvq_policy),
        "error": POINTER(kvq_error),
    },
    """kvq_policy_load(context: kvq_context*, yaml: const char*, length: size_t, result: kvq_policy**, error:
kvq_error*) -> kvq_status

Read a policy from YAML, or from the short form of one or two formats.

The short form is the name of a format for keys and values of all layers, or two with a slash, KEYS/VALUES, and
optionally ``+METHOD:BUDGET`` of eviction at the end, like ``gs2``, ``gt2/gt1``, ``int4+adasnap:128``. The
formats:

- ``gs4``, ``gs3``, ``gs2``, ``gs1``: gain-shape pages. Codes of 4 to 1 bits after a Hadamard rotation, and a
  gain of 8 bits for each token and side, chosen so that what is decoded is unbiased. Keys are encoded relative
  to the mean of their page's, which a page has in 8 bits, and values as they are; with ``+nocentre`` keys, too.
  Nothing is trained for these two. With ``+centres`` a side is encoded relative to the nearest of its head's
  trained centres, which ``kvq_cache_options`` has, those of keys turned by RoPE to where the key is; a page then
  has a byte for each token that says which, unless there is but one.
- ``gt3``, ``gt2``, ``gt1``: the same with codes of 3 to 1 bits that are a path through a trellis of 64 states:
  their error is a quarter to a half smaller, and they take longer to encode and to attend to.
- ``fp16``; ``int8``, ``int4``, ``int3``, ``int2``: integers with a scale and a minimum for each channel of a
  page's keys and for each token and group of channels of values; optionally with ``+hadamard``, encoded after a
  Hadamard rotation.
- ``commvq``: codes of a codebook that was trained for the model.

The long form:

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

and instead of ``keys``, ``values`` and ``layers``, for pages that each get a format of their own:

    router:                        # needs a router that was trained for these experts
      experts: [fp16, int4, int2]  # 2 to 8 formats, those with more bits first; int8/int4: keys/values
      votes: layer                 # tokens of all heads choose together; or head

``group`` is the number of channels that share a scale in an integer value page (32, 64 or 128). Defaults: fp16,
recent 1, centres page, beam 1, as many flips as help, attention auto; sink 1 if any page gets gain-shape codes
of three bits or fewer, else 0: models give their first tokens much attention.

``attention`` says how the CPU attends to keys with codes; results are the same but for rounding. ``tables``:
products of each query with all codes, which are then summed for each token; ``rebuild``: keys summed up from
their codes once for all queries of a KV head; ``decode``: keys and values decoded one by one, tens of times
slower, for comparison; ``auto`` takes the faster of the first two.

- yaml: text, not necessarily NUL-terminated; at most 1 MiB, nested at most 16 deep.
- length: bytes of ``yaml``.
- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (with the line); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
)
kvq_policy_with_eviction = library.function(
    "kvq_policy_with_eviction",
    c_int32,
    {
        "context": kvq_context,
        "policy": kvq_policy,
        "method": c_char_p,
        "budget": c_int32,
        "result": POINTER(kvq_policy),
        "error": POINTER(kvq_error),
    },
    """kvq_policy_with_eviction(context: kvq_context*, policy: const kvq_policy*, method: const char*, budget: int32_t,
result: kvq_policy**, error: kvq_error*) -> kvq_status

A policy that evicts tokens and otherwise says what another one says.

- policy: of this context. If it evicts, all but the method and the budget stays.
- method: name of a method, see ``kvq_compress``.
- budget: tokens of a KV head that stay, on average.
- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT (also: an unknown method, a budget smaller than the window); KVQ_E_MEMORY;
KVQ_E_LIMIT.

Threads: any.
""",
)
kvq_policy_with_layer = library.function(
    "kvq_policy_with_layer",
    c_int32,
    {
        "context": kvq_context,
        "policy": kvq_policy,
        "first_layer": c_int32,
        "last_layer": c_int32,
        "keys": c_char_p,
        "values": c_char_p,
        "result": POINTER(kvq_policy),
        "error": POINTER(kvq_error),
    },
    """kvq_policy_with_layer(context: kvq_context*, policy: const kvq_policy*, first_layer: int32_t, last_layer:
int32_t, keys: const char*, values: const char*, result: kvq_policy**, error: kvq_error*) -> kvq_status

A policy whose layers ``first_layer`` to ``last_layer`` are stored in other formats and that otherwise says what
another one says.

- policy: of this context, without a router.
- first_layer: 0 … ``last_layer``.
- last_layer: at most 65535; creating a cache with fewer layers fails.
- keys: name of a format, see ``kvq_policy_load``; NULL: as before.
- values: the same for values.
- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT (also: the name of no format, a policy with a router); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
)
kvq_policy_save = library.function(
    "kvq_policy_save",
    c_int32,
    {"policy": kvq_policy, "buffer": c_char_p, "capacity": c_size_t, "size": c_void_p, "error": POINTER(kvq_error)},
    """kvq_policy_save(policy: const kvq_policy*, buffer: char*, capacity: size_t, size: size_t*, error: kvq_error*) ->
kvq_status

Write a policy in the long form, which ``kvq_policy_load`` reads: the same is then said of every layer. Reading
and writing again gives the same bytes.

- buffer: receives the text, without a NUL. NULL: only the size is asked for.
- capacity: bytes available at ``buffer``.
- size: receives the size of the text in bytes; also when ``capacity`` is too small.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_UNSUPPORTED (so many layers differ
that the text would be longer than can be read); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: read-only.
""",
)
kvq_policy_describe = library.function(
    "kvq_policy_describe",
    c_int32,
    {"policy": kvq_policy, "info": POINTER(kvq_policy_info), "error": POINTER(kvq_error)},
    """kvq_policy_describe(policy: const kvq_policy*, info: kvq_policy_info*, error: kvq_error*) -> kvq_status

Describe a policy.

- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: read-only.
""",
)
kvq_policy_destroy = library.function(
    "kvq_policy_destroy",
    None,
    {"policy": kvq_policy},
    """kvq_policy_destroy(policy: kvq_policy*) -> void

Destroy a policy. Caches made with it keep what they need.

Threads: exclusive use of the handle.
""",
)
kvq_codebook_load = library.function(
    "kvq_codebook_load",
    c_int32,
    {
        "context": kvq_context,
        "buffer": c_void_p,
        "size": c_size_t,
        "result": POINTER(kvq_codebook),
        "error": POINTER(kvq_error),
    },
    """kvq_codebook_load(context: kvq_context*, buffer: const void*, size: size_t, result: kvq_codebook**, error:
kvq_error*) -> kvq_status

Read codebooks from a file in memory. Every byte is checked; saving the result again gives the same bytes.

- buffer: bytes of a file written by ``kvq_codebook_save``.
- size: bytes at ``buffer``.
- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged, truncated, or no codebook; the message names the tensor or
field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
)
kvq_codebook_save = library.function(
    "kvq_codebook_save",
    c_int32,
    {"codebook": kvq_codebook, "buffer": c_void_p, "capacity": c_size_t, "size": c_void_p, "error": POINTER(kvq_error)},
    """kvq_codebook_save(codebook: const kvq_codebook*, buffer: void*, capacity: size_t, size: size_t*, error:
kvq_error*) -> kvq_status

Write codebooks as a file. The same codebooks give the same bytes.

- buffer: NULL: only the size is asked for.
- capacity: bytes available at ``buffer``.
- size: receives the size of the file in bytes; also when ``capacity`` is too small.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: read-only.
""",
)
kvq_codebook_describe = library.function(
    "kvq_codebook_describe",
    c_int32,
    {"codebook": kvq_codebook, "info": POINTER(kvq_codebook_info), "error": POINTER(kvq_error)},
    """kvq_codebook_describe(codebook: const kvq_codebook*, info: kvq_codebook_info*, error: kvq_error*) -> kvq_status

Describe codebooks.

- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: read-only.
""",
)
kvq_codebook_describe_layer = library.function(
    "kvq_codebook_describe_layer",
    c_int32,
    {"codebook": kvq_codebook, "layer": c_int32, "info": POINTER(kvq_codebook_layer_info), "error": POINTER(kvq_error)},
    """kvq_codebook_describe_layer(codebook: const kvq_codebook*, layer: int32_t, info: kvq_codebook_layer_info*, error:
kvq_error*) -> kvq_status

Describe one layer of codebooks.

- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: read-only.
""",
)
kvq_codebook_destroy = library.function(
    "kvq_codebook_destroy",
    None,
    {"codebook": kvq_codebook},
    """kvq_codebook_destroy(codebook: kvq_codebook*) -> void

Destroy a handle.

Threads: exclusive use of the handle.
""",
)
kvq_centres_load = library.function(
    "kvq_centres_load",
    c_int32,
    {
        "context": kvq_context,
        "buffer": c_void_p,
        "size": c_size_t,
        "result": POINTER(kvq_centres),
        "error": POINTER(kvq_error),
    },
    """kvq_centres_load(context: kvq_context*, buffer: const void*, size: size_t, result: kvq_centres**, error:
kvq_error*) -> kvq_status

Read centres from a file in memory. Every byte is checked; saving the result again gives the same bytes.

- buffer: bytes of a file written by ``kvq_centres_save``.
- size: bytes at ``buffer``.
- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged, truncated, or no centres; the message names the tensor or
field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
)
kvq_centres_save = library.function(
    "kvq_centres_save",
    c_int32,
    {"centres": kvq_centres, "buffer": c_void_p, "capacity": c_size_t, "size": c_void_p, "error": POINTER(kvq_error)},
    """kvq_centres_save(centres: const kvq_centres*, buffer: void*, capacity: size_t, size: size_t*, error: kvq_error*)
-> kvq_status

Write centres as a file. The same centres give the same bytes.

- buffer: NULL: only the size is asked for.
- capacity: bytes available at ``buffer``.
- size: receives the size of the file in bytes; also when ``capacity`` is too small.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: read-only.
""",
)
kvq_centres_describe = library.function(
    "kvq_centres_describe",
    c_int32,
    {"centres": kvq_centres, "info": POINTER(kvq_centres_info), "error": POINTER(kvq_error)},
    """kvq_centres_describe(centres: const kvq_centres*, info: kvq_centres_info*, error: kvq_error*) -> kvq_status

Describe centres.

- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: read-only.
""",
)
kvq_centres_describe_layer = library.function(
    "kvq_centres_describe_layer",
    c_int32,
    {"centres": kvq_centres, "layer": c_int32, "info": POINTER(kvq_centres_layer_info), "error": POINTER(kvq_error)},
    """kvq_centres_describe_layer(centres: const kvq_centres*, layer: int32_t, info: kvq_centres_layer_info*, error:
kvq_error*) -> kvq_status

Describe one layer of centres.

- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: read-only.
""",
)
kvq_centres_destroy = library.function(
    "kvq_centres_destroy",
    None,
    {"centres": kvq_centres},
    """kvq_centres_destroy(centres: kvq_centres*) -> void

Destroy a handle.

Threads: exclusive use of the handle.
""",
)
kvq_router_load = library.function(
    "kvq_router_load",
    c_int32,
    {
        "context": kvq_context,
        "buffer": c_void_p,
        "size": c_size_t,
        "result": POINTER(kvq_router),
        "error": POINTER(kvq_error),
    },
    """kvq_router_load(context: kvq_context*, buffer: const void*, size: size_t, result: kvq_router**, error:
kvq_error*) -> kvq_status

Read routers from a file in memory. Every byte is checked; saving the result again gives the same bytes.

- buffer: bytes of a file written by ``kvq_router_save``.
- size: bytes at ``buffer``.
- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged, truncated, or no router; the message names the tensor or
field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
)
kvq_router_save = library.function(
    "kvq_router_save",
    c_int32,
    {"router": kvq_router, "buffer": c_void_p, "capacity": c_size_t, "size": c_void_p, "error": POINTER(kvq_error)},
    """kvq_router_save(router: const kvq_router*, buffer: void*, capacity: size_t, size: size_t*, error: kvq_error*) ->
kvq_status

Write routers as a file. The same routers give the same bytes.

- buffer: NULL: only the size is asked for.
- capacity: bytes available at ``buffer``.
- size: receives the size of the file in bytes; also when ``capacity`` is too small.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: read-only.
""",
)
kvq_router_describe = library.function(
    "kvq_router_describe",
    c_int32,
    {"router": kvq_router, "info": POINTER(kvq_router_info), "error": POINTER(kvq_error)},
    """kvq_router_describe(router: const kvq_router*, info: kvq_router_info*, error: kvq_error*) -> kvq_status

Describe routers.

- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: read-only.
""",
)
kvq_router_describe_group = library.function(
    "kvq_router_describe_group",
    c_int32,
    {"router": kvq_router, "group": c_int32, "info": POINTER(kvq_router_group_info), "error": POINTER(kvq_error)},
    """kvq_router_describe_group(router: const kvq_router*, group: int32_t, info: kvq_router_group_info*, error:
kvq_error*) -> kvq_status

Describe one group of layers.

- group: 0 … groups − 1.
- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: read-only.
""",
)
kvq_router_destroy = library.function(
    "kvq_router_destroy",
    None,
    {"router": kvq_router},
    """kvq_router_destroy(router: kvq_router*) -> void

Destroy a handle.

Threads: exclusive use of the handle.
""",
)
kvq_cache_options_init = library.function(
    "kvq_cache_options_init",
    None,
    {"options": POINTER(kvq_cache_options), "size": c_size_t},
    """kvq_cache_options_init(options: kvq_cache_options*, size: size_t) -> void

Fill with defaults; the four sizes are left 0 and must be set.

- size: sizeof(kvq_cache_options).

Threads: any.
""",
)
kvq_cache_create = library.function(
    "kvq_cache_create",
    c_int32,
    {
        "context": kvq_context,
        "options": POINTER(kvq_cache_options),
        "policy": kvq_policy,
        "result": POINTER(kvq_cache),
        "error": POINTER(kvq_error),
    },
    """kvq_cache_create(context: kvq_context*, options: const kvq_cache_options*, policy: const kvq_policy*, result:
kvq_cache**, error: kvq_error*) -> kvq_status

Create a cache.

- policy: of this or another context; NULL: fp16.
- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT (also: the policy needs a codebook, centres or a router and there is none);
KVQ_E_MISMATCH (a codebook, centres or router for another model, with the difference); KVQ_E_UNSUPPORTED (a
format that the context's device does not compute with; formats of which some need a codebook and others
centres); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
)
kvq_cache_destroy = library.function(
    "kvq_cache_destroy",
    None,
    {"cache": kvq_cache},
    """kvq_cache_destroy(cache: kvq_cache*) -> void

Destroy a handle. Sequences of the cache keep it alive.

Threads: exclusive use of the handle.
""",
)
kvq_cache_describe = library.function(
    "kvq_cache_describe",
    c_int32,
    {"cache": kvq_cache, "info": POINTER(kvq_cache_info), "error": POINTER(kvq_error)},
    """kvq_cache_describe(cache: const kvq_cache*, info: kvq_cache_info*, error: kvq_error*) -> kvq_status

Describe a cache.

- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: any.
""",
)
kvq_cache_describe_layer = library.function(
    "kvq_cache_describe_layer",
    c_int32,
    {"cache": kvq_cache, "layer": c_int32, "info": POINTER(kvq_layer_info), "error": POINTER(kvq_error)},
    """kvq_cache_describe_layer(cache: const kvq_cache*, layer: int32_t, info: kvq_layer_info*, error: kvq_error*) ->
kvq_status

Describe a layer of a cache.

- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: any.
""",
)
kvq_cache_context = library.function(
    "kvq_cache_context",
    kvq_context,
    {"cache": kvq_cache},
    """kvq_cache_context(cache: const kvq_cache*) -> kvq_context*

The context that a cache was created from, which lives as long as the cache does.

Returns NULL for NULL.

Threads: any.
""",
)
kvq_sequence_create = library.function(
    "kvq_sequence_create",
    c_int32,
    {"cache": kvq_cache, "result": POINTER(kvq_sequence), "error": POINTER(kvq_error)},
    """kvq_sequence_create(cache: kvq_cache*, result: kvq_sequence**, error: kvq_error*) -> kvq_status

Create an empty sequence.

- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any number of sequences of one cache may be created, used and destroyed concurrently.
""",
)
kvq_sequence_fork = library.function(
    "kvq_sequence_fork",
    c_int32,
    {"cache": kvq_cache, "parent": kvq_sequence, "result": POINTER(kvq_sequence), "error": POINTER(kvq_error)},
    """kvq_sequence_fork(cache: kvq_cache*, parent: const kvq_sequence*, result: kvq_sequence**, error: kvq_error*) ->
kvq_status

Create a sequence that starts with everything ``parent`` holds. Pages are shared until one side changes them.

- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT (NULL, or ``parent`` belongs to another cache); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: ``parent`` may be read concurrently.
""",
)
kvq_sequence_truncate = library.function(
    "kvq_sequence_truncate",
    c_int32,
    {"cache": kvq_cache, "sequence": kvq_sequence, "length": c_int32, "error": POINTER(kvq_error)},
    """kvq_sequence_truncate(cache: kvq_cache*, sequence: kvq_sequence*, length: int32_t, error: kvq_error*) ->
kvq_status

Drop tokens from the end of every layer, so that each layer keeps the first ``length`` tokens.

Exact while the cut lies in an FP16 page or on a page border (a multiple of ``KVQ_PAGE_SLOTS``). A cut inside a
sealed page is refused: keep ``recent: 2`` or more pages in FP16 to be able to roll back at least 32 tokens. On a
border, a page that had been sealed stays sealed.

- length: 0 … the shortest layer's length.

Returns KVQ_OK; KVQ_E_ARGUMENT (negative or beyond the length); KVQ_E_STATE (inside a sealed page; the message
gives the nearest lengths that work; or evicted tokens had gaps in their positions); KVQ_E_MEMORY, KVQ_E_LIMIT (a
shared page had to be copied).

Threads: exclusive use of ``sequence``.
""",
)
kvq_sequence_destroy = library.function(
    "kvq_sequence_destroy",
    None,
    {"sequence": kvq_sequence},
    """kvq_sequence_destroy(sequence: kvq_sequence*) -> void

Destroy a sequence; pages shared with a fork live on.

Threads: exclusive use of the handle.
""",
)
kvq_sequence_cache = library.function(
    "kvq_sequence_cache",
    kvq_cache,
    {"sequence": kvq_sequence},
    """kvq_sequence_cache(sequence: const kvq_sequence*) -> kvq_cache*

The cache that a sequence belongs to, which lives as long as the sequence does.

Returns NULL for NULL.

Threads: any.
""",
)
kvq_sequence_reserve = library.function(
    "kvq_sequence_reserve",
    c_int32,
    {"cache": kvq_cache, "sequence": kvq_sequence, "tokens": c_int32, "error": POINTER(kvq_error)},
    """kvq_sequence_reserve(cache: kvq_cache*, sequence: kvq_sequence*, tokens: int32_t, error: kvq_error*) ->
kvq_status

Make pages ahead, so that every layer has room for ``tokens`` more tokens.

Appends then take these pages: while there is room, no append of up to ``KVQ_PAGE_SLOTS`` tokens allocates page
memory, and on a CPU the pages of a head lie next to each other from the start. On a GPU this is what a CUDA
graph needs:

    kvq_context_set_stream(context, stream);
    kvq_attend(…)                                  // once with the graph's batch: it allocates its work space
    kvq_sequence_reserve(cache, sequence, 4096, …);
    cudaStreamBeginCapture(stream, …);
    kvq_append(…, 1, k, v, …); kvq_attend(…);      // of every layer
    cudaStreamEndCapture(stream, &graph);

Every launch of the graph appends one token more and attends to all: lengths, positions and page tables live on
the device. While a stream is captured, kvq_append takes at most ``KVQ_PAGE_SLOTS`` tokens and no positions,
kvq_attend takes no query positions, and other functions of the sequence may not be called. Afterwards they may:
each first waits for the context's stream to learn how far the graph has come, so launch graphs on it, or let it
wait for them. A launch without room appends nothing, and a later call on the context returns KVQ_E_LIMIT. A
graph stays valid until kvq_sequence_reserve is called again, or something it refers to is destroyed. Forks of a
sequence with pages made ahead copy its open pages. Layers with a codebook's codes cannot be captured, nor can
attention where a policy evicts by what queries look at: these calls return KVQ_E_UNSUPPORTED.

- tokens: ≥ 0, per layer; 0 gives back the pages that are left.

Returns KVQ_OK; KVQ_E_ARGUMENT (NULL; a sequence of another cache; negative, or more than a layer can hold);
KVQ_E_STATE (a stream is captured); KVQ_E_UNSUPPORTED (above 0 where a router chooses the formats); KVQ_E_MEMORY;
KVQ_E_LIMIT; KVQ_E_BACKEND.

Threads: exclusive use of ``sequence``.
""",
)
kvq_sequence_room = library.function(
    "kvq_sequence_room",
    c_int32,
    {"sequence": kvq_sequence, "layer": c_int32, "room": c_void_p, "error": POINTER(kvq_error)},
    """kvq_sequence_room(sequence: const kvq_sequence*, layer: int32_t, room: int32_t*, error: kvq_error*) -> kvq_status

Number of tokens that ``layer`` has pages for, made by ``kvq_sequence_reserve``. Truncating makes room again,
except for pages that a fork still holds.

- room: receives the number; unchanged on failure.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BACKEND.

Threads: read-only.
""",
)
kvq_sequence_length = library.function(
    "kvq_sequence_length",
    c_int32,
    {"sequence": kvq_sequence, "layer": c_int32, "length": c_void_p, "error": POINTER(kvq_error)},
    """kvq_sequence_length(sequence: const kvq_sequence*, layer: int32_t, length: int32_t*, error: kvq_error*) ->
kvq_status

Number of tokens appended to ``layer``, evicted ones included.

- length: receives the number; unchanged on failure.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BACKEND.

Threads: read-only.
""",
)
kvq_sequence_slots = library.function(
    "kvq_sequence_slots",
    c_int32,
    {"sequence": kvq_sequence, "layer": c_int32, "kv_head": c_int32, "slots": c_void_p, "error": POINTER(kvq_error)},
    """kvq_sequence_slots(sequence: const kvq_sequence*, layer: int32_t, kv_head: int32_t, slots: int32_t*, error:
kvq_error*) -> kvq_status

Number of tokens that a KV head of ``layer`` holds: what eviction has left. ``kvq_sequence_decode`` tells their
positions.

- kv_head: 0 … kv_heads − 1.
- slots: receives the number; unchanged on failure.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BACKEND.

Threads: read-only.
""",
)
kvq_sequence_save = library.function(
    "kvq_sequence_save",
    c_int32,
    {
        "cache": kvq_cache,
        "sequence": kvq_sequence,
        "buffer": c_void_p,
        "capacity": c_size_t,
        "size": c_void_p,
        "error": POINTER(kvq_error),
    },
    """kvq_sequence_save(cache: kvq_cache*, sequence: const kvq_sequence*, buffer: void*, capacity: size_t, size:
size_t*, error: kvq_error*) -> kvq_status

Write a snapshot of a sequence.

- buffer: NULL: only the size is asked for.
- capacity: bytes available at ``buffer``.
- size: receives the size of the snapshot in bytes; also when ``capacity`` is too small.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_BACKEND.

Threads: ``sequence`` may be read concurrently.
""",
)
kvq_sequence_load = library.function(
    "kvq_sequence_load",
    c_int32,
    {
        "cache": kvq_cache,
        "buffer": c_void_p,
        "size": c_size_t,
        "result": POINTER(kvq_sequence),
        "error": POINTER(kvq_error),
    },
    """kvq_sequence_load(cache: kvq_cache*, buffer: const void*, size: size_t, result: kvq_sequence**, error:
kvq_error*) -> kvq_status

Make a sequence from a snapshot. Every byte is checked; saving the result again gives the same bytes.

- buffer: what ``kvq_sequence_save`` wrote.
- size: bytes at ``buffer``.
- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged or truncated); KVQ_E_MISMATCH (another model, shape, policy
format or version; tokens were evicted, which the cache's policy never does); KVQ_E_MEMORY; KVQ_E_LIMIT;
KVQ_E_BACKEND.

Threads: see ``kvq_sequence_create``.
""",
)
kvq_append = library.function(
    "kvq_append",
    c_int32,
    {
        "cache": kvq_cache,
        "sequence": kvq_sequence,
        "layer": c_int32,
        "n": c_int32,
        "k": c_void_p,
        "v": c_void_p,
        "dtype": c_int32,
        "positions": c_void_p,
        "error": POINTER(kvq_error),
    },
    """kvq_append(cache: kvq_cache*, sequence: kvq_sequence*, layer: int32_t, n: int32_t, k: const void*, v: const
void*, dtype: kvq_dtype, positions: const int32_t*, error: kvq_error*) -> kvq_status

Append tokens to one layer of a sequence, from dense tensors.

Fills the layer's open page; a full page is sealed (encoded in its final format) when it leaves the newest
``recent`` pages, that is when the next token arrives. Either all ``n`` tokens are appended or none.

- n: number of tokens, ≥ 1.
- k: keys ``[n, kv_heads, head_dim]``, before RoPE unless the cache was made with ``KVQ_ROPE_NONE``; of a CUDA
  context read in stream order. Finite, magnitude at most 65504 (FP16) after rotation, in layers stored with
  ``+hadamard`` or in gain-shape pages after that rotation too.
- v: values, same shape and rules.
- dtype: element type of ``k`` and ``v``.
- positions: original positions, ≥ 0, strictly increasing and beyond the layer's last one; NULL: consecutive.

Returns KVQ_OK; KVQ_E_ARGUMENT (NULL, shape, dtype, position, value not representable: a CUDA context stores the
nearest representable number, 0 for NaN, and a later call reports it); KVQ_E_STATE (a CUDA graph is captured or
lives, see ``kvq_sequence_reserve``; the layer takes the formats of its pages from another one, which would hold
fewer tokens: append to layers in their order); KVQ_E_LIMIT; KVQ_E_MEMORY; KVQ_E_BACKEND.

Threads: exclusive use of ``sequence``; other sequences of the cache may be appended to, attended to, saved and
so on concurrently.
""",
)
kvq_append_batch_init = library.function(
    "kvq_append_batch_init",
    None,
    {"batch": POINTER(kvq_append_batch), "size": c_size_t},
    """kvq_append_batch_init(batch: kvq_append_batch*, size: size_t) -> void

Fill with defaults (one dense F32 token a sequence).

- size: sizeof(kvq_append_batch).

Threads: any.
""",
)
kvq_append_sequences = library.function(
    "kvq_append_sequences",
    c_int32,
    {"cache": kvq_cache, "layer": c_int32, "batch": POINTER(kvq_append_batch), "error": POINTER(kvq_error)},
    """kvq_append_sequences(cache: kvq_cache*, layer: int32_t, batch: const kvq_append_batch*, error: kvq_error*) ->
kvq_status

Append tokens to one layer of several sequences: to all of them, or to none.

Strides reach tokens and heads in tensors of any layout, such as queries, keys and values in one: ``k`` then
points to the first key, and ``k_token_stride`` is (q_heads + 2 · kv_heads) · head_dim. What is stored is what
``kvq_append`` stores. A batch shares the work on all sequences among threads, and on a GPU takes one launch (in
a CUDA graph one for each sequence).

Returns as ``kvq_append``; KVQ_E_ARGUMENT also if a sequence occurs twice, or an offset by the strides is too
large. Messages count tokens over all sequences.

Threads: exclusive use of these sequences; others of the cache may be used concurrently.
""",
)
kvq_sequence_decode = library.function(
    "kvq_sequence_decode",
    c_int32,
    {
        "cache": kvq_cache,
        "sequence": kvq_sequence,
        "layer": c_int32,
        "kv_head": c_int32,
        "begin": c_int32,
        "n": c_int32,
        "k": c_void_p,
        "v": c_void_p,
        "positions": c_void_p,
        "error": POINTER(kvq_error),
    },
    """kvq_sequence_decode(cache: const kvq_cache*, sequence: const kvq_sequence*, layer: int32_t, kv_head: int32_t,
begin: int32_t, n: int32_t, k: float*, v: float*, positions: int32_t*, error: kvq_error*) -> kvq_status

Decode stored keys and values, for inspection and tests. Not fast.

- kv_head: 0 … kv_heads − 1.
- begin: first slot of the head's list.
- n: slots from there on, ≥ 1.
- k: receives ``[n, head_dim]`` keys as attention sees them (after RoPE); NULL: skip.
- v: receives ``[n, head_dim]`` values; NULL: skip.
- positions: receives original positions; NULL: skip.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.

Threads: ``sequence`` may be read concurrently.
""",
)
kvq_compress_options_init = library.function(
    "kvq_compress_options_init",
    None,
    {"options": POINTER(kvq_compress_options), "size": c_size_t},
    """kvq_compress_options_init(options: kvq_compress_options*, size: size_t) -> void

Fill with defaults.

- size: sizeof(kvq_compress_options).

Threads: any.
""",
)
kvq_compress = library.function(
    "kvq_compress",
    c_int32,
    {
        "cache": kvq_cache,
        "sequence": kvq_sequence,
        "options": POINTER(kvq_compress_options),
        "error": POINTER(kvq_error),
    },
    """kvq_compress(cache: kvq_cache*, sequence: kvq_sequence*, options: const kvq_compress_options*, error: kvq_error*)
-> kvq_status

Evict tokens as the ``eviction`` of the cache's policy says, at a moment of the caller's choice: after a prompt,
and again when a conversation has grown.

Tokens are judged by the queries that kvq_attend has seen: by the last ``window`` of them (of a prompt, if this
follows it), or by all. A policy names one of the papers' methods and a budget, the tokens that a KV head keeps
on average:

    eviction:
      method: adasnap  # streaming: the first and the newest tokens (StreamingLLM)
                       # h2o: most attention from all queries (H2O)
                       # snapkv: most attention from the newest queries (SnapKV)
                       # pyramid: the same, more in the first layers and less in the last (PyramidKV)
                       # adasnap, adapyramid: and heads share a layer's budget as they need it (Ada-KV)
      budget: 128      # the window included; or a share of the tokens that were appended, like 25%

or the parts of a method: ``score`` (window, streaming, mass), ``layers`` (uniform, pyramid) and ``heads``
(uniform, adaptive, reserved, together: the same tokens for all heads, as CommVQ values of scope layer need).
Further: ``window`` (32) newest tokens that are always kept; ``kernel`` (7, odd) and ``pooling`` (max, mean) of
scores along positions; ``group`` (mean, max) of the query heads of a KV head; ``first`` (4) tokens for
streaming; ``alpha`` (0.5), from 0, which splits freely, to 1, uniformly; with ``reserved`` the part of the
budget that every head has for itself; ``beta`` (20): the last layer of a pyramid keeps budget / beta.

What stays keeps its positions and moves to new, dense pages in the policy's formats; forks keep what they have.
Nothing happens to layers that hold no more than their budget. Lengths of sequences still count the evicted
tokens, and kvq_sequence_truncate drops what lies beyond the position. What has been observed is not part of a
snapshot: after kvq_sequence_load, attend before compressing.

- options: NULL: defaults.

Returns KVQ_OK; KVQ_E_ARGUMENT (also: a budget smaller than the window); KVQ_E_STATE (the policy has no eviction,
a layer is empty, no query has been observed or more than ``window`` tokens have come since, pages have been made
ahead); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: exclusive use of ``sequence``.
""",
)
kvq_attend_batch_init = library.function(
    "kvq_attend_batch_init",
    None,
    {"batch": POINTER(kvq_attend_batch), "size": c_size_t},
    """kvq_attend_batch_init(batch: kvq_attend_batch*, size: size_t) -> void

Fill with defaults (one dense F32 query a sequence).

- size: sizeof(kvq_attend_batch).

Threads: any.
""",
)
kvq_attend = library.function(
    "kvq_attend",
    c_int32,
    {"cache": kvq_cache, "layer": c_int32, "batch": POINTER(kvq_attend_batch), "error": POINTER(kvq_error)},
    """kvq_attend(cache: kvq_cache*, layer: int32_t, batch: const kvq_attend_batch*, error: kvq_error*) -> kvq_status

Attention of a batch of queries over one layer.

``output = softmax(scale · q·kᵀ) v`` for every query head, where query head h reads KV head h / (q_heads /
kv_heads) and a query at position p sees the tokens at positions ≤ p. A query that sees no token gives zeros,
with a sink too. Accumulation is in FP32. On a CPU the result is the same, bit for bit, for any number of threads
and any composition of the batch; on a GPU it is the same for the same batch. Allocates only when a batch needs
more work space than any before it, more calls come at once than ever before, or the policy evicts.

Relative to exact attention over the decoded pages, the error is rounding of FP32 for FP16 pages. On instruction
sets with int8 dot products ("avx512vnni", "amx") integer pages multiply 16-bit (INT8) or 8-bit (INT4, INT3,
INT2) fixed-point queries and probabilities, whose error stays well below that of the format itself; select
"avx512" or "avx2" in ``kvq_context_options`` for FP32 products. On a GPU queries, probabilities and their
products with a page's scales are rounded to FP16.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (a CUDA graph is captured, see ``kvq_sequence_reserve``);
KVQ_E_MEMORY; KVQ_E_LIMIT (work space); KVQ_E_BACKEND.

Threads: any number of calls on a cache at once; the sequences are only read, but for what kvq_compress judges
by: if the policy evicts, exclusive use of the sequences.
""",
)
kvq_cache_usage = library.function(
    "kvq_cache_usage",
    c_int32,
    {"cache": kvq_cache, "sequence": kvq_sequence, "usage": POINTER(kvq_usage), "error": POINTER(kvq_error)},
    """kvq_cache_usage(cache: const kvq_cache*, sequence: const kvq_sequence*, usage: kvq_usage*, error: kvq_error*) ->
kvq_status

Bytes used by one sequence, or by the whole cache with shared pages counted once.

- sequence: NULL: the whole cache.
- usage: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BACKEND.

Threads: read-only for one sequence; exclusive use of all sequences when ``sequence`` is NULL.
""",
)
kvq_cache_predict_usage = library.function(
    "kvq_cache_predict_usage",
    c_int32,
    {
        "cache": kvq_cache,
        "sequences": c_int32,
        "tokens": c_int32,
        "queries": c_int32,
        "usage": POINTER(kvq_usage),
        "error": POINTER(kvq_error),
    },
    """kvq_cache_predict_usage(cache: const kvq_cache*, sequences: int32_t, tokens: int32_t, queries: int32_t, usage:
kvq_usage*, error: kvq_error*) -> kvq_status

What ``kvq_cache_usage`` would say of the whole cache if it held nothing but new sequences, to the byte. Computed
from sizes: no page is made, and what the cache holds now does not matter.

Each sequence is one for which ``kvq_sequence_reserve`` made pages for ``tokens`` tokens, and to every layer of
which these were then appended: at consecutive positions, up to ``KVQ_PAGE_SLOTS`` at once or all at once. With
``queries``, ``kvq_attend`` was then called for each layer, with ``queries`` queries of each sequence in one
batch and without sinks; calls of several threads at once take a work space each.

- sequences: ≥ 1.
- tokens: of each sequence, ≥ 0.
- queries: of each sequence, ≥ 0; 0: nothing is attended to.
- usage: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT (NULL; a number out of range; more pages or queries than are counted);
KVQ_E_UNSUPPORTED (a router chooses the formats of pages, so nobody knows their sizes before; ``queries`` above 0
on a CUDA context, whose work space depends on the device); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
)
qp_scheme_count = library.function(
    "qp_scheme_count",
    c_int32,
    {},
    """qp_scheme_count() -> int32_t

Number of schemes that ``qp_quantize_options.scheme`` may name.

Threads: any.
""",
)
qp_scheme_name = library.function(
    "qp_scheme_name",
    c_char_p,
    {"index": c_int32},
    """qp_scheme_name(index: int32_t) -> const char*

"nuq-4", "vq-2.5", "tcq-2.75", "tcx-3", "fp16", …: a family and the bits of a weight.

- ``nuq``: every weight is one of 2^bits levels. 1, 2, 3, 4, 5, 6 and 8 bits.
- ``vq``: every pair of weights is one of 4^bits points. 1.5 to 5 bits in steps of a half.
- ``tcq``: pairs on a path through a trellis of 65 536 states, levels from a table. 1.5 to 5 bits in steps of a
  quarter; odd quarters write half of each row in a quarter bit less and half in a quarter bit more.
- ``tcx``: single weights on such a path, of 256 levels: less error and faster. 1.5 to 5 bits in steps of a half.
- ``fp16``: the weights as they are, rounded to FP16 and not rotated.

Returns NULL if ``index`` is out of range.

Threads: any.
""",
)
qp_scheme_bits = library.function(
    "qp_scheme_bits",
    c_double,
    {"name": c_char_p},
    """qp_scheme_bits(name: const char*) -> double

Bits of a weight in a scheme, without scales and signs; 0 for a name that is no scheme.

Threads: any.
""",
)
qp_quantize_options_init = library.function(
    "qp_quantize_options_init",
    None,
    {"options": POINTER(qp_quantize_options), "size": c_size_t},
    """qp_quantize_options_init(options: qp_quantize_options*, size: size_t) -> void

Fill with defaults.

- size: sizeof(qp_quantize_options).

Threads: any.
""",
)
qp_quantize = library.function(
    "qp_quantize",
    c_int32,
    {
        "context": kvq_context,
        "options": POINTER(qp_quantize_options),
        "w": c_void_p,
        "rows": c_int64,
        "columns": c_int64,
        "result": POINTER(qp_matrix),
        "error": POINTER(kvq_error),
    },
    """qp_quantize(context: kvq_context*, options: const qp_quantize_options*, w: const void*, rows: int64_t, columns:
int64_t, result: qp_matrix**, error: kvq_error*) -> kvq_status

Write a matrix in few bits. The result depends on the arguments alone, not on threads or instruction sets.

- w: weights ``[rows, columns]`` of ``options->dtype``.
- rows: outputs of the layer, from 1 to 2^24.
- columns: its inputs, a multiple of 64 from 64 to 2^20.
- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT (shape, dtype, a scheme that does not exist, weights, bias or Hessian that are not
finite, a Hessian that is not symmetric or, damped, not positive definite); KVQ_E_CANCELLED; KVQ_E_MEMORY;
KVQ_E_LIMIT. Rows of zeros stay zeros.

Threads: any.
""",
)
qp_matrix_dequantize = library.function(
    "qp_matrix_dequantize",
    c_int32,
    {"matrix": qp_matrix, "first_row": c_int64, "rows": c_int64, "w": c_void_p, "error": POINTER(kvq_error)},
    """qp_matrix_dequantize(matrix: const qp_matrix*, first_row: int64_t, rows: int64_t, w: float*, error: kvq_error*)
-> kvq_status

Rows of the matrix that ``qp_linear`` multiplies by, in the order of the original.

- w: receives ``[rows, columns]`` floats.

Returns KVQ_OK; KVQ_E_ARGUMENT (NULL, rows beyond the last one); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: read-only.
""",
)
qp_linear = library.function(
    "qp_linear",
    c_int32,
    {
        "matrix": qp_matrix,
        "x": c_void_p,
        "batch": c_int32,
        "y": c_void_p,
        "dtype": c_int32,
        "error": POINTER(kvq_error),
    },
    """qp_linear(matrix: const qp_matrix*, x: const void*, batch: int32_t, y: void*, dtype: kvq_dtype, error:
kvq_error*) -> kvq_status

y = x·Wᵀ + b.

Inputs are rotated in FP32 and, but for ``fp16``, rounded to integers of 8 bits with a scale for every 256 of
them; products are summed exactly within these and in FP32 beyond, in the same order on every processor: a row of
``y`` depends on its row of ``x`` alone. Allocates nothing once a batch of this size has been seen.

- x: ``[batch, columns]`` of ``dtype``.
- batch: rows of ``x`` and ``y``, at least 1.
- y: receives ``[batch, rows]`` of ``dtype``; may not overlap ``x``.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED (the context's device does not multiply by packed matrices);
KVQ_E_MEMORY; KVQ_E_LIMIT. NaN or infinity in a row of ``x`` makes its row of ``y`` NaN.

Threads: any, on the same matrix too.
""",
)
qp_linear_shared = library.function(
    "qp_linear_shared",
    c_int32,
    {
        "matrices": POINTER(qp_matrix),
        "n": c_int32,
        "x": c_void_p,
        "batch": c_int32,
        "y": c_void_p,
        "dtype": c_int32,
        "error": POINTER(kvq_error),
    },
    """qp_linear_shared(matrices: const qp_matrix* const*, n: int32_t, x: const void*, batch: int32_t, y: void* const*,
dtype: kvq_dtype, error: kvq_error*) -> kvq_status

Several matrices on the same inputs in one call: y[i] = x·Wᵢᵀ + bᵢ, the same numbers as one by one. Schemes and
numbers of rows may differ.

- matrices: of one context, with the same columns and, those that rotate, the same signs.
- n: matrices, 1 … 1024.
- x: as for ``qp_linear``.
- y: outputs, ``[batch, rows of matrix i]`` each, in the context's memory, apart from each other and from ``x``.

Returns as ``qp_linear``; KVQ_E_MISMATCH (matrices that do not share their inputs).

Threads: any, on the same matrices too.
""",
)
qp_matrix_describe = library.function(
    "qp_matrix_describe",
    c_int32,
    {"matrix": qp_matrix, "info": POINTER(qp_matrix_info), "error": POINTER(kvq_error)},
    """qp_matrix_describe(matrix: const qp_matrix*, info: qp_matrix_info*, error: kvq_error*) -> kvq_status

Describe a matrix.

- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: read-only.
""",
)
qp_matrix_save = library.function(
    "qp_matrix_save",
    c_int32,
    {
        "matrices": POINTER(qp_matrix),
        "names": POINTER(c_char_p),
        "n": c_int32,
        "buffer": c_void_p,
        "capacity": c_size_t,
        "size": c_void_p,
        "error": POINTER(kvq_error),
    },
    """qp_matrix_save(matrices: const qp_matrix* const*, names: const char* const*, n: int32_t, buffer: void*, capacity:
size_t, size: size_t*, error: kvq_error*) -> kvq_status

Write matrices as a safetensors file; docs/weights.md has its layout. The same matrices give the same bytes.

- names: different names, each a string of up to 200 bytes.
- n: matrices, at least 1.
- buffer: NULL: only the size is asked for.
- capacity: bytes available at ``buffer``.
- size: receives the size of the file in bytes; also when ``capacity`` is too small.

Returns KVQ_OK; KVQ_E_ARGUMENT (NULL; names); KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: read-only.
""",
)
qp_matrix_load = library.function(
    "qp_matrix_load",
    c_int32,
    {
        "context": kvq_context,
        "buffer": c_void_p,
        "size": c_size_t,
        "name": c_char_p,
        "result": POINTER(qp_matrix),
        "error": POINTER(kvq_error),
    },
    """qp_matrix_load(context: kvq_context*, buffer: const void*, size: size_t, name: const char*, result: qp_matrix**,
error: kvq_error*) -> kvq_status

Read one matrix from a safetensors file in memory, which may hold other tensors and matrices too.

- buffer: bytes of the file.
- size: bytes at ``buffer``.
- name: as given to ``qp_matrix_save``.
- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT (NULL, no matrix of that name); KVQ_E_FORMAT (damaged, truncated, sizes that do
not fit together; the message names the tensor or field); KVQ_E_MISMATCH (a file of another version);
KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
)
qp_matrix_destroy = library.function(
    "qp_matrix_destroy",
    None,
    {"matrix": qp_matrix},
    """qp_matrix_destroy(matrix: qp_matrix*) -> void

Destroy a matrix.

Threads: exclusive use of the handle.
""",
)
qp_matrix_predict_bytes = library.function(
    "qp_matrix_predict_bytes",
    c_int32,
    {
        "scheme": c_char_p,
        "rows": c_int64,
        "columns": c_int64,
        "has_bias": c_int32,
        "bytes": c_void_p,
        "allocated": c_void_p,
        "error": POINTER(kvq_error),
    },
    """qp_matrix_predict_bytes(scheme: const char*, rows: int64_t, columns: int64_t, has_bias: int32_t, bytes:
uint64_t*, allocated: uint64_t*, error: kvq_error*) -> kvq_status

How large a matrix will be, before there is one.

- scheme: as in qp_quantize_options.
- rows: as for ``qp_quantize``.
- columns: as for ``qp_quantize``.
- has_bias: 1 or 0.
- bytes: receives what ``qp_matrix_info.bytes`` will be; unchanged on failure.
- allocated: receives by how much ``kvq_context_info.bytes`` of a CPU context grows with such a matrix, by
  ``qp_quantize`` or ``qp_matrix_load``: padding and the object included; unchanged on failure. NULL: not wanted.

Returns KVQ_OK; KVQ_E_ARGUMENT (NULL, a scheme that does not exist, shape, ``has_bias``).

Threads: any.
""",
)
qp_tune = library.function(
    "qp_tune",
    c_int32,
    {"matrices": POINTER(qp_matrix), "n": c_int32, "batch": c_int32, "error": POINTER(kvq_error)},
    """qp_tune(matrices: const qp_matrix* const*, n: int32_t, batch: int32_t, error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Measure which of a device's kernels are the fastest for calls of ``qp_linear_shared`` like this one, instead of
going by an estimate, which was made on an H100. It holds for all matrices of the context of the same schemes and
shapes, with exactly this batch; what is known already is not measured again.

Another kernel adds numbers up in another order, so that the last bits may change, now and from one measurement
to the next: keep what was measured (``qp_tuning_save``) where results are to stay the same.

Takes tenths of a second, waits for the context's stream and for measurements, and meanwhile allocates inputs,
outputs and as many copies of the codes as twice the device's L2 cache holds. Not while a graph is captured.

- matrices: as for ``qp_linear_shared``.
- n: matrices, 1 … 1024.
- batch: rows, at least 1. Calls of more than 1024 go in pieces of so many, which are measured.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MISMATCH (matrices that do not share their inputs); KVQ_E_UNSUPPORTED (a
CPU context, a stream that is captured); KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.

Threads: any.
""",
    experimental=True,
)
qp_tuning_save = library.function(
    "qp_tuning_save",
    c_int32,
    {"context": kvq_context, "buffer": c_char_p, "capacity": c_size_t, "size": c_void_p, "error": POINTER(kvq_error)},
    """qp_tuning_save(context: kvq_context*, buffer: char*, capacity: size_t, size: size_t*, error: kvq_error*) ->
kvq_status

Experimental: may change in a minor version.

Write what ``qp_tune`` measured and what ``qp_tuning_load`` read, as a text: a line for each device, scheme and
shape.

- buffer: receives the text, without a NUL. NULL: only the size is asked for.
- capacity: bytes available at ``buffer``.
- size: receives the size of the text in bytes; also when ``capacity`` is too small.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_UNSUPPORTED (a CPU context);
KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
    experimental=True,
)
qp_tuning_load = library.function(
    "qp_tuning_load",
    c_int32,
    {"context": kvq_context, "text": c_char_p, "length": c_size_t, "error": POINTER(kvq_error)},
    """qp_tuning_load(context: kvq_context*, text: const char*, length: size_t, error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Go by what was measured before. What was measured on another device or by another version of the library is kept
for ``qp_tuning_save`` and not used.

- text: as ``qp_tuning_save`` wrote it.
- length: bytes of ``text``.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (the message names the line); KVQ_E_MISMATCH (a text of another
version); KVQ_E_UNSUPPORTED (a CPU context); KVQ_E_MEMORY; KVQ_E_LIMIT. Nothing is taken over on failure.

Threads: any.
""",
    experimental=True,
)
kvq_codebook_trainer_options_init = library.function(
    "kvq_codebook_trainer_options_init",
    None,
    {"options": POINTER(kvq_codebook_trainer_options), "size": c_size_t},
    """kvq_codebook_trainer_options_init(options: kvq_codebook_trainer_options*, size: size_t) -> void

Experimental: may change in a minor version.

Fill with defaults; the three sizes are left 0 and must be set.

- size: sizeof(kvq_codebook_trainer_options).

Threads: any.
""",
    experimental=True,
)
kvq_codebook_trainer_create = library.function(
    "kvq_codebook_trainer_create",
    c_int32,
    {
        "context": kvq_context,
        "options": POINTER(kvq_codebook_trainer_options),
        "result": POINTER(kvq_codebook_trainer),
        "error": POINTER(kvq_error),
    },
    """kvq_codebook_trainer_create(context: kvq_context*, options: const kvq_codebook_trainer_options*, result:
kvq_codebook_trainer**, error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Create a trainer. It works on the device of the context; networks of values, on the host.

- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
    experimental=True,
)
kvq_codebook_trainer_resume = library.function(
    "kvq_codebook_trainer_resume",
    c_int32,
    {"trainer": kvq_codebook_trainer, "codebook": kvq_codebook, "error": POINTER(kvq_error)},
    """kvq_codebook_trainer_resume(trainer: kvq_codebook_trainer*, codebook: const kvq_codebook*, error: kvq_error*) ->
kvq_status

Experimental: may change in a minor version.

Take over finished layers of an earlier, unfinished result. Tokens already added to these layers are dropped.

- codebook: of the trainer's context, of the same shape, seed, model and note.

Returns KVQ_OK; KVQ_E_ARGUMENT (also: of another context); KVQ_E_MISMATCH (with the difference).

Threads: exclusive use of ``trainer``.
""",
    experimental=True,
)
kvq_codebook_trainer_add = library.function(
    "kvq_codebook_trainer_add",
    c_int32,
    {
        "trainer": kvq_codebook_trainer,
        "layer": c_int32,
        "n": c_int32,
        "k": c_void_p,
        "v": c_void_p,
        "dtype": c_int32,
        "error": POINTER(kvq_error),
    },
    """kvq_codebook_trainer_add(trainer: kvq_codebook_trainer*, layer: int32_t, n: int32_t, k: const void*, v: const
void*, dtype: kvq_dtype, error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Add tokens to a layer that is not finished. They are kept as FP16 until the layer is.

- n: number of tokens, ≥ 1.
- k: keys before RoPE, ``[n, kv_heads, head_dim]``; finite, magnitude at most 65504. NULL is allowed without
  codes for keys.
- v: values, same shape and rules.
- dtype: element type of ``k`` and ``v``.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (the layer is finished); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: exclusive use of ``trainer``.
""",
    experimental=True,
)
kvq_codebook_trainer_run = library.function(
    "kvq_codebook_trainer_run",
    c_int32,
    {
        "trainer": kvq_codebook_trainer,
        "layer": c_int32,
        "progress": kvq_progress_hook,
        "user": c_void_p,
        "error": POINTER(kvq_error),
    },
    """kvq_codebook_trainer_run(trainer: kvq_codebook_trainer*, layer: int32_t, progress: kvq_progress_hook, user:
void*, error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Train one layer on the tokens added to it, and drop them. Takes minutes for a large model; uses the threads of
the context. The result depends on the options, the tokens and the kind of device alone.

- progress: it may not use ``trainer``. NULL: not called.
- user: passed to ``progress``.

Returns KVQ_OK; KVQ_E_ARGUMENT (also: too few tokens); KVQ_E_STATE (the layer is finished, or has no tokens);
KVQ_E_CANCELLED; KVQ_E_MEMORY; KVQ_E_LIMIT. After a failure the layer has its tokens still.

Threads: exclusive use of ``trainer``.
""",
    experimental=True,
)
kvq_codebook_trainer_result = library.function(
    "kvq_codebook_trainer_result",
    c_int32,
    {"trainer": kvq_codebook_trainer, "result": POINTER(kvq_codebook), "error": POINTER(kvq_error)},
    """kvq_codebook_trainer_result(trainer: const kvq_codebook_trainer*, result: kvq_codebook**, error: kvq_error*) ->
kvq_status

Experimental: may change in a minor version.

The codebooks of the layers finished so far. They share memory with the trainer and outlive it.

- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: read-only.
""",
    experimental=True,
)
kvq_codebook_trainer_destroy = library.function(
    "kvq_codebook_trainer_destroy",
    None,
    {"trainer": kvq_codebook_trainer},
    """kvq_codebook_trainer_destroy(trainer: kvq_codebook_trainer*) -> void

Experimental: may change in a minor version.

Destroy a trainer.

Threads: exclusive use of the handle.
""",
    experimental=True,
)
kvq_centres_trainer_options_init = library.function(
    "kvq_centres_trainer_options_init",
    None,
    {"options": POINTER(kvq_centres_trainer_options), "size": c_size_t},
    """kvq_centres_trainer_options_init(options: kvq_centres_trainer_options*, size: size_t) -> void

Experimental: may change in a minor version.

Fill with defaults; the three sizes are left 0 and must be set.

- size: sizeof(kvq_centres_trainer_options).

Threads: any.
""",
    experimental=True,
)
kvq_centres_trainer_create = library.function(
    "kvq_centres_trainer_create",
    c_int32,
    {
        "context": kvq_context,
        "options": POINTER(kvq_centres_trainer_options),
        "result": POINTER(kvq_centres_trainer),
        "error": POINTER(kvq_error),
    },
    """kvq_centres_trainer_create(context: kvq_context*, options: const kvq_centres_trainer_options*, result:
kvq_centres_trainer**, error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Create a trainer. It works on the device of the context.

- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
    experimental=True,
)
kvq_centres_trainer_add = library.function(
    "kvq_centres_trainer_add",
    c_int32,
    {
        "trainer": kvq_centres_trainer,
        "layer": c_int32,
        "n": c_int32,
        "k": c_void_p,
        "v": c_void_p,
        "dtype": c_int32,
        "error": POINTER(kvq_error),
    },
    """kvq_centres_trainer_add(trainer: kvq_centres_trainer*, layer: int32_t, n: int32_t, k: const void*, v: const
void*, dtype: kvq_dtype, error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Add tokens to a layer that is not finished. They are kept as FP16 until the layer is.

- n: number of tokens, ≥ 1.
- k: keys before RoPE, ``[n, kv_heads, head_dim]``; finite, magnitude at most 65504. NULL is allowed without
  centres for keys.
- v: values, same shape and rules.
- dtype: element type of ``k`` and ``v``.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (the layer is finished); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: exclusive use of ``trainer``.
""",
    experimental=True,
)
kvq_centres_trainer_run = library.function(
    "kvq_centres_trainer_run",
    c_int32,
    {
        "trainer": kvq_centres_trainer,
        "layer": c_int32,
        "progress": kvq_progress_hook,
        "user": c_void_p,
        "error": POINTER(kvq_error),
    },
    """kvq_centres_trainer_run(trainer: kvq_centres_trainer*, layer: int32_t, progress: kvq_progress_hook, user: void*,
error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Train one layer on the tokens added to it, and drop them. Uses the threads of the context. The result depends on
the options and the tokens alone.

- progress: it may not use ``trainer``. NULL: not called.
- user: passed to ``progress``.

Returns KVQ_OK; KVQ_E_ARGUMENT (also: fewer tokens than centres); KVQ_E_STATE (the layer is finished, or has no
tokens); KVQ_E_CANCELLED; KVQ_E_MEMORY; KVQ_E_LIMIT. After a failure the layer has its tokens still.

Threads: exclusive use of ``trainer``.
""",
    experimental=True,
)
kvq_centres_trainer_result = library.function(
    "kvq_centres_trainer_result",
    c_int32,
    {"trainer": kvq_centres_trainer, "result": POINTER(kvq_centres), "error": POINTER(kvq_error)},
    """kvq_centres_trainer_result(trainer: const kvq_centres_trainer*, result: kvq_centres**, error: kvq_error*) ->
kvq_status

Experimental: may change in a minor version.

The centres of the layers finished so far. They share memory with the trainer and outlive it.

- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: read-only.
""",
    experimental=True,
)
kvq_centres_trainer_destroy = library.function(
    "kvq_centres_trainer_destroy",
    None,
    {"trainer": kvq_centres_trainer},
    """kvq_centres_trainer_destroy(trainer: kvq_centres_trainer*) -> void

Experimental: may change in a minor version.

Destroy a trainer.

Threads: exclusive use of the handle.
""",
    experimental=True,
)
kvq_router_trainer_options_init = library.function(
    "kvq_router_trainer_options_init",
    None,
    {"options": POINTER(kvq_router_trainer_options), "size": c_size_t},
    """kvq_router_trainer_options_init(options: kvq_router_trainer_options*, size: size_t) -> void

Experimental: may change in a minor version.

Fill with defaults; ``mean_bits`` is left 0 and must be set for labels.

- size: sizeof(kvq_router_trainer_options).

Threads: any.
""",
    experimental=True,
)
kvq_router_trainer_create = library.function(
    "kvq_router_trainer_create",
    c_int32,
    {
        "context": kvq_context,
        "cache": POINTER(kvq_cache_options),
        "policy": kvq_policy,
        "options": POINTER(kvq_router_trainer_options),
        "result": POINTER(kvq_router_trainer),
        "error": POINTER(kvq_error),
    },
    """kvq_router_trainer_create(context: kvq_context*, cache: const kvq_cache_options*, policy: const kvq_policy*,
options: const kvq_router_trainer_options*, result: kvq_router_trainer**, error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Create a trainer.

- context: computes on the CPU.
- cache: what a cache of the model would be made with: its shape, RoPE, scale and ``model_id``, and a codebook if
  an expert is commvq.
- policy: with a router's experts, those with more bits first; ``votes`` and the effort for commvq are used too.
- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MISMATCH (a codebook for another model); KVQ_E_UNSUPPORTED (the context
computes on a GPU); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
    experimental=True,
)
kvq_router_trainer_add = library.function(
    "kvq_router_trainer_add",
    c_int32,
    {
        "trainer": kvq_router_trainer,
        "layer": c_int32,
        "n": c_int32,
        "q": c_void_p,
        "k": c_void_p,
        "v": c_void_p,
        "dtype": c_int32,
        "error": POINTER(kvq_error),
    },
    """kvq_router_trainer_add(trainer: kvq_router_trainer*, layer: int32_t, n: int32_t, q: const void*, k: const void*,
v: const void*, dtype: kvq_dtype, error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Add one text to a layer. Every layer needs the same texts in the same order; layers may come in any order. For
labels this stores the text in every format and compares the attention of some of its queries, which takes most
of the time of training. Only keys of the first layer of each group are kept, as FP16.

- n: tokens of the text, ≥ 1, at positions 0, 1, …. Pages are judged by the quarter of the text's tokens that
  follows them, so the first page and those in the last quarter are not learned from: a text of fewer than 85
  tokens teaches nothing.
- q: queries before RoPE, ``[n, q_heads, head_dim]``; finite. NULL is allowed for ``KVQ_ROUTER_PAPER``.
- k: keys before RoPE, ``[n, kv_heads, head_dim]``, as for kvq_append.
- v: values, same shape and rules; NULL is allowed for ``KVQ_ROUTER_PAPER``.
- dtype: element type of the three.

Returns KVQ_OK; KVQ_E_ARGUMENT (also: another length than in other layers); KVQ_E_STATE (the training is done);
KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: exclusive use of ``trainer``.
""",
    experimental=True,
)
kvq_router_trainer_run = library.function(
    "kvq_router_trainer_run",
    c_int32,
    {
        "trainer": kvq_router_trainer,
        "loss": c_double,
        "progress": kvq_progress_hook,
        "user": c_void_p,
        "error": POINTER(kvq_error),
    },
    """kvq_router_trainer_run(trainer: kvq_router_trainer*, loss: double, progress: kvq_progress_hook, user: void*,
error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Train the routers of all layers on the texts added, and drop them. Uses the threads of the context. The result
depends on the options and the texts alone.

- loss: for ``KVQ_ROUTER_PAPER``: the model's mean negative log-likelihood of a token of the texts (natural
  logarithm), above 0. Ignored for labels.
- progress: it may not use ``trainer``. NULL: not called.
- user: passed to ``progress``.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (the training is done; a layer lacks texts that another one has; no
text is long enough; the training diverged); KVQ_E_CANCELLED; KVQ_E_MEMORY; KVQ_E_LIMIT. After a failure the
texts are there still.

Threads: exclusive use of ``trainer``.
""",
    experimental=True,
)
kvq_router_trainer_result = library.function(
    "kvq_router_trainer_result",
    c_int32,
    {"trainer": kvq_router_trainer, "result": POINTER(kvq_router), "error": POINTER(kvq_error)},
    """kvq_router_trainer_result(trainer: const kvq_router_trainer*, result: kvq_router**, error: kvq_error*) ->
kvq_status

Experimental: may change in a minor version.

The routers, after ``kvq_router_trainer_run``. They outlive the trainer.

- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (not trained yet); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: read-only.
""",
    experimental=True,
)
kvq_router_trainer_destroy = library.function(
    "kvq_router_trainer_destroy",
    None,
    {"trainer": kvq_router_trainer},
    """kvq_router_trainer_destroy(trainer: kvq_router_trainer*) -> void

Experimental: may change in a minor version.

Destroy a trainer.

Threads: exclusive use of the handle.
""",
    experimental=True,
)
kvq_plan_problem_init = library.function(
    "kvq_plan_problem_init",
    None,
    {"problem": POINTER(kvq_plan_problem), "size": c_size_t},
    """kvq_plan_problem_init(problem: kvq_plan_problem*, size: size_t) -> void

Experimental: may change in a minor version.

Fill with defaults.

- size: sizeof(kvq_plan_problem).

Threads: any.
""",
    experimental=True,
)
kvq_plan_solve = library.function(
    "kvq_plan_solve",
    c_int32,
    {
        "context": kvq_context,
        "problem": POINTER(kvq_plan_problem),
        "chosen": c_void_p,
        "n": c_int32,
        "costs": POINTER(kvq_plan_costs),
        "error": POINTER(kvq_error),
    },
    """kvq_plan_solve(context: kvq_context*, problem: const kvq_plan_problem*, chosen: int32_t*, n: int32_t, costs:
kvq_plan_costs*, error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Take one option of every choice, so that the goal is as small as possible and the limits hold.

With one limit this takes milliseconds for hundreds of choices with dozens of options, with two below a second.

- chosen: receives the number of each choice's option, from 0.
- n: as many as there are choices.
- costs: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_LIMIT (no plan keeps the limits; the message says what is missing, and the
goal ``KVQ_PLAN_BYTES`` finds the smallest plan); KVQ_E_MEMORY.

Threads: any.
""",
    experimental=True,
)
kvq_plan_fusion_options_init = library.function(
    "kvq_plan_fusion_options_init",
    None,
    {"options": POINTER(kvq_plan_fusion_options), "size": c_size_t},
    """kvq_plan_fusion_options_init(options: kvq_plan_fusion_options*, size: size_t) -> void

Experimental: may change in a minor version.

Fill with defaults; the sizes and arrays are left 0 and must be set.

- size: sizeof(kvq_plan_fusion_options).

Threads: any.
""",
    experimental=True,
)
kvq_plan_fusion_create = library.function(
    "kvq_plan_fusion_create",
    c_int32,
    {
        "context": kvq_context,
        "options": POINTER(kvq_plan_fusion_options),
        "result": POINTER(kvq_plan_fusion),
        "error": POINTER(kvq_error),
    },
    """kvq_plan_fusion_create(context: kvq_context*, options: const kvq_plan_fusion_options*, result: kvq_plan_fusion**,
error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Find the groupings.

- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
    experimental=True,
)
kvq_plan_fusion_describe = library.function(
    "kvq_plan_fusion_describe",
    c_int32,
    {"fusion": kvq_plan_fusion, "info": POINTER(kvq_plan_fusion_info), "error": POINTER(kvq_error)},
    """kvq_plan_fusion_describe(fusion: const kvq_plan_fusion*, info: kvq_plan_fusion_info*, error: kvq_error*) ->
kvq_status

Experimental: may change in a minor version.

Describe groupings.

- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: read-only.
""",
    experimental=True,
)
kvq_plan_fusion_describe_grouping = library.function(
    "kvq_plan_fusion_describe_grouping",
    c_int32,
    {"fusion": kvq_plan_fusion, "index": c_int32, "info": POINTER(kvq_plan_grouping_info), "error": POINTER(kvq_error)},
    """kvq_plan_fusion_describe_grouping(fusion: const kvq_plan_fusion*, index: int32_t, info: kvq_plan_grouping_info*,
error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Describe one grouping.

- index: 0 … n_groupings − 1, those with the smallest loss first.
- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: read-only.
""",
    experimental=True,
)
kvq_plan_fusion_destroy = library.function(
    "kvq_plan_fusion_destroy",
    None,
    {"fusion": kvq_plan_fusion},
    """kvq_plan_fusion_destroy(fusion: kvq_plan_fusion*) -> void

Experimental: may change in a minor version.

Destroy groupings.

Threads: exclusive use of the handle.
""",
    experimental=True,
)
kvq_plan_rates = library.function(
    "kvq_plan_rates",
    c_int32,
    {
        "n": c_int32,
        "weights": c_void_p,
        "sensitivities": c_void_p,
        "least_bits": c_double,
        "total_bits": c_double,
        "bits": c_void_p,
        "loss": c_void_p,
        "error": POINTER(kvq_error),
    },
    """kvq_plan_rates(n: int32_t, weights: const double*, sensitivities: const double*, least_bits: double, total_bits:
double, bits: double*, loss: double*, error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

The bits that each matrix would get if codes were as good as codes of Gaussian numbers can be: an error of
2^(−2b) with b bits a weight. What is lost then is a lower bound for every plan (Q-Palette, theorem 3.1).

- n: matrices, 1 … 2^20.
- weights: numbers in each, above 0.
- sensitivities: loss of each at a relative squared error of 1, not negative.
- least_bits: of a weight, at least 0.
- total_bits: of all weights, at least ``least_bits`` each.
- bits: receives the bits of a weight of each matrix.
- loss: receives what is lost.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: any.
""",
    experimental=True,
)
kvq_plan_content_init = library.function(
    "kvq_plan_content_init",
    None,
    {"content": POINTER(kvq_plan_content), "size": c_size_t},
    """kvq_plan_content_init(content: kvq_plan_content*, size: size_t) -> void

Experimental: may change in a minor version.

Fill with defaults.

- size: sizeof(kvq_plan_content).

Threads: any.
""",
    experimental=True,
)
kvq_plan_create = library.function(
    "kvq_plan_create",
    c_int32,
    {
        "context": kvq_context,
        "content": POINTER(kvq_plan_content),
        "result": POINTER(kvq_plan),
        "error": POINTER(kvq_error),
    },
    """kvq_plan_create(context: kvq_context*, content: const kvq_plan_content*, result: kvq_plan**, error: kvq_error*)
-> kvq_status

Experimental: may change in a minor version.

Make a plan.

- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
    experimental=True,
)
kvq_plan_load = library.function(
    "kvq_plan_load",
    c_int32,
    {
        "context": kvq_context,
        "yaml": c_char_p,
        "length": c_size_t,
        "result": POINTER(kvq_plan),
        "error": POINTER(kvq_error),
    },
    """kvq_plan_load(context: kvq_context*, yaml: const char*, length: size_t, result: kvq_plan**, error: kvq_error*) ->
kvq_status

Experimental: may change in a minor version.

Read a plan from YAML:

    version: 1
    note: "..."                                    # optional
    expected: {bytes: 1000, seconds: 0.01, loss: 0.02}  # optional
    weights:                                       # optional
      "model.layers.0.mlp.up_proj": tcx-3
    cache: {keys: gs3, values: gs2}                # a policy, optional

- yaml: text, not necessarily NUL-terminated; at most 64 MiB.
- length: bytes of ``yaml``.
- result: receives the handle.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_FORMAT (with the line); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: any.
""",
    experimental=True,
)
kvq_plan_save = library.function(
    "kvq_plan_save",
    c_int32,
    {"plan": kvq_plan, "buffer": c_char_p, "capacity": c_size_t, "size": c_void_p, "error": POINTER(kvq_error)},
    """kvq_plan_save(plan: const kvq_plan*, buffer: char*, capacity: size_t, size: size_t*, error: kvq_error*) ->
kvq_status

Experimental: may change in a minor version.

Write a plan as YAML. The same plan gives the same text.

- buffer: NULL: only the size is asked for.
- capacity: bytes available at ``buffer``.
- size: receives the size of the text in bytes, without NUL; also when ``capacity`` is too small.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: read-only.
""",
    experimental=True,
)
kvq_plan_describe = library.function(
    "kvq_plan_describe",
    c_int32,
    {"plan": kvq_plan, "info": POINTER(kvq_plan_info), "error": POINTER(kvq_error)},
    """kvq_plan_describe(plan: const kvq_plan*, info: kvq_plan_info*, error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

Describe a plan.

- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: read-only.
""",
    experimental=True,
)
kvq_plan_describe_matrix = library.function(
    "kvq_plan_describe_matrix",
    c_int32,
    {"plan": kvq_plan, "index": c_int32, "info": POINTER(kvq_plan_matrix_info), "error": POINTER(kvq_error)},
    """kvq_plan_describe_matrix(plan: const kvq_plan*, index: int32_t, info: kvq_plan_matrix_info*, error: kvq_error*)
-> kvq_status

Experimental: may change in a minor version.

Describe one matrix of a plan.

- index: 0 … n_matrices − 1, in the order of the plan.
- info: its ``struct_size`` must be set.

Returns KVQ_OK; KVQ_E_ARGUMENT.

Threads: read-only.
""",
    experimental=True,
)
kvq_plan_scheme = library.function(
    "kvq_plan_scheme",
    c_char_p,
    {"plan": kvq_plan, "name": c_char_p},
    """kvq_plan_scheme(plan: const kvq_plan*, name: const char*) -> const char*

Experimental: may change in a minor version.

The scheme that a plan gives a matrix; NULL if it does not name it.

Threads: read-only.
""",
    experimental=True,
)
kvq_plan_policy = library.function(
    "kvq_plan_policy",
    c_int32,
    {"plan": kvq_plan, "result": POINTER(kvq_policy), "error": POINTER(kvq_error)},
    """kvq_plan_policy(plan: const kvq_plan*, result: kvq_policy**, error: kvq_error*) -> kvq_status

Experimental: may change in a minor version.

The policy of a plan.

- result: receives a handle of its own.

Returns KVQ_OK; KVQ_E_ARGUMENT; KVQ_E_STATE (the plan says nothing of caches); KVQ_E_MEMORY; KVQ_E_LIMIT.

Threads: read-only.
""",
    experimental=True,
)
kvq_plan_destroy = library.function(
    "kvq_plan_destroy",
    None,
    {"plan": kvq_plan},
    """kvq_plan_destroy(plan: kvq_plan*) -> void

Experimental: may change in a minor version.

Destroy a plan.

Threads: exclusive use of the handle.
""",
    experimental=True,
)
