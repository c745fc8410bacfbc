"""kvq: a compressed key/value cache for language models, with attention computed on the compressed form.

    import libkvq

    with libkvq.Context(n_threads=4) as context:
        cache = libkvq.Cache(context, n_layers=1, q_heads=8, kv_heads=2, head_dim=64, policy="int4+hadamard")
        sequence = cache.sequence()
        sequence.append(0, k, v)              # [tokens, kv_heads, head_dim]
        out = cache.attend(0, [sequence], q)  # [1, q_heads, head_dim]

Arrays may be NumPy's or anything with ``__dlpack__``, ``__cuda_array_interface__`` or a buffer, such as tensors of
PyTorch; they are not copied. ``libkvq.raw`` is the C API itself.
"""

from __future__ import annotations

from . import _native as raw
from . import experimental
from ._arrays import DevicePointer
from ._cache import Cache
from ._centres import Centres, LayerScales
from ._context import Context, cpu_isas, device_describe, version
from ._errors import *  # noqa: F403
from ._errors import __all__ as _errors_all
from ._infos import *  # noqa: F403
from ._infos import __all__ as _infos
from ._matrix import Matrix, MatrixSize, Scheme, linear_shared, predict_bytes, save_matrices, schemes
from ._objects import Codebook, Router
from ._policy import Policy
from ._pool import BlockLayout, Pool, PoolPlan
from ._sequence import Compressed, Decoded, Sequence
from ._shapes import LayerShape
from ._step import Step

__version__ = "%d.%d.%d" % (raw.KVQ_VERSION_MAJOR, raw.KVQ_VERSION_MINOR, raw.KVQ_VERSION_PATCH)
__all__ = [
    "BlockLayout",
    "Cache",
    "Centres",
    "Codebook",
    "Compressed",
    "Context",
    "Decoded",
    "DevicePointer",
    "LayerScales",
    "LayerShape",
    "Matrix",
    "MatrixSize",
    "Policy",
    "Pool",
    "PoolPlan",
    "Router",
    "Scheme",
    "Sequence",
    "Step",
    "cpu_isas",
    "device_describe",
    "experimental",
    "linear_shared",
    "predict_bytes",
    "raw",
    "save_matrices",
    "schemes",
    "version",
]
__all__ += _errors_all
__all__ += _infos
