"""Contexts: memory, threads, limits and the device."""

from __future__ import annotations

from ctypes import byref, c_int32, sizeof
from typing import Any, Callable, List, Optional

from . import _native
from ._arrays import HOST, bytes_of
from ._errors import assign, call, initialised
from ._handle import Data
from ._hooks import Hooks, LogHook, ParallelForHook
from ._infos import DeviceInfo
from ._objects import ContextMethods
from ._text import encoded, name_of, text, value_of


class Context(ContextMethods):
    """Memory, threads, limits and a device, shared by any number of caches.

    :param device: "cpu" or "cuda".
    :param n_threads: threads per call, including the caller's; 1 starts none.
    :param max_bytes: limit on all memory allocated through the context; 0: none.
    :param cpu_isa: one of ``cpu_isas()``; None: the best that this machine supports.
    :param log: called as ``log(level, message)`` with a level of "error", "warning" or "info".
    :param allocator: has ``allocate(bytes, alignment)``, which returns an address or None, and
        ``free(address, bytes, alignment)``.
    :param parallel_for: called as ``parallel_for(n, body)``; must call ``body(i)`` once for every i in ``range(n)``, on
        any threads, before it returns.
    :param released: called without arguments once no hook is used any more.
    :param device_index: ordinal of the GPU.
    :param plugin: path of libkvq_cuda.so; None: next to libkvq, then the loader's search path.
    :param stream: CUDA stream, see ``set_stream``.
    :param device_allocator: has ``allocate(bytes, stream)`` and ``free(address, bytes, stream)``, for device memory.

    Hooks may be called from any thread and may not use the context or objects made from it. An exception in a hook
    counts as its failure and is raised again by the call that ran the hook; if the hook ran on a thread of the library,
    by a later call.
    """

    _new = _native.kvq_context
    _destroy = _native.kvq_context_destroy

    def __init__(
        self,
        device: str = "cpu",
        n_threads: int = 1,
        max_bytes: int = 0,
        cpu_isa: Optional[str] = None,
        log: Optional[LogHook] = None,
        allocator: Any = None,
        parallel_for: Optional[ParallelForHook] = None,
        released: Optional[Callable[[], Any]] = None,
        device_index: int = 0,
        plugin: Optional[str] = None,
        stream: Any = None,
        device_allocator: Any = None,
    ) -> None:
        options = initialised(_native.kvq_context_options, n_threads=n_threads, max_bytes=max_bytes)
        assign(options, device=value_of(_native.kvq_device, "device", device), device_index=device_index)
        options.cpu_isa = None if cpu_isa is None else encoded("cpu_isa", cpu_isa)
        options.plugin = None if plugin is None else encoded("plugin", plugin)
        options.stream = stream_address(stream)
        hooks = None
        if any(one is not None for one in (log, allocator, parallel_for, released, device_allocator)):
            hooks = Hooks()
            hooks.install(options, log, allocator, parallel_for, device_allocator, released)
        try:
            self._create(hooks, _native.kvq_context_create, byref(options))
        except BaseException:
            if hooks is not None and not hasattr(self, "_pointer"):
                hooks.dismiss()
            raise
        self._stream = stream  # alive as long as it is used
        self._device = device_index if options.device == _native.KVQ_DEVICE_CUDA else HOST

    @property
    def device(self) -> str:
        """The device: "cpu", or for example "cuda:0"."""
        return "cpu" if self._device == HOST else "cuda:%d" % self._device

    def set_stream(self, stream: Any) -> None:
        """Enqueue later calls on another CUDA stream, ordered after all earlier work. No other thread may use the
        context or objects made from it at the same time.

        :param stream: a cudaStream_t as an int, an object with ``cuda_stream`` (PyTorch), ``ptr`` (CuPy) or
            ``__cuda_stream__``; None: the legacy default stream. It must live until another one is set or the context
            is freed.
        """
        with self._alone() as pointer:
            self._call(_native.kvq_context_set_stream, pointer, stream_address(stream))
            self._stream = stream

    def file_type(self, data: Data) -> str:
        """Tell what the bytes of a file hold: "policy", "codebook", "centres", "router", "matrix", "snapshot", "plan"
        or "unknown".
        """
        address, size, _view = bytes_of("data", data)
        kind = c_int32()
        with self._shared() as pointer:
            self._call(_native.kvq_file_type, pointer, address, size, byref(kind))
        return name_of(_native.kvq_file_kind, kind.value)


def stream_address(stream: Any) -> Optional[int]:
    """The cudaStream_t of a stream object."""
    if stream is None or isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise TypeError("stream is %s, must be an int or a stream of PyTorch or CuPy" % type(stream).__name__)


def version() -> str:
    """Version of the loaded library, "major.minor.patch"."""
    return text(_native.kvq_version_string())


def cpu_isas() -> List[str]:
    """The CPU instruction sets that this machine supports, best first."""
    return [text(_native.kvq_cpu_isa_name(i)) for i in range(_native.kvq_cpu_isa_count())]


def device_describe(device: str = "cuda", index: int = 0, plugin: Optional[str] = None) -> DeviceInfo:
    """Describe a device; raises KvqUnsupportedError with the reason if contexts cannot be created on it."""
    info = _native.kvq_device_info(struct_size=sizeof(_native.kvq_device_info))
    number = value_of(_native.kvq_device, "device", device)
    call(_native.kvq_device_describe, number, index, None if plugin is None else encoded("plugin", plugin), byref(info))
    return DeviceInfo._of(info)
