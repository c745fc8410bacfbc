"""Addresses and layouts of NumPy, PyTorch, CuPy, DLPack and buffer arrays, without importing any of these packages."""

from __future__ import annotations

import ctypes
import math
import sys
from array import array
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple, Union

from . import _native
from ._dlpack import dense_strides, dlpack_view
from ._errors import KvqArgumentError

HOST = -1
CODES = {"f32": int(_native.KVQ_F32), "f16": int(_native.KVQ_F16), "bf16": int(_native.KVQ_BF16)}
_NATIVE = "<" if sys.byteorder == "little" else ">"
_TYPESTRS = {
    _NATIVE + "f4": ("f32", 4),
    _NATIVE + "f2": ("f16", 2),
    _NATIVE + "i4": ("i32", 4),
    _NATIVE + "u4": ("u32", 4),
    _NATIVE + "u2": ("u16", 2),
}
_TORCH = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int32": "i32",
    "uint32": "u32",
    "uint16": "u16",
}
_FORMATS = {"f": "f32", "e": "f16", "i": "i32", "I": "u32", "H": "u16"}


class View(NamedTuple):
    """An array in memory."""

    address: int
    shape: Sequence[int]
    strides: Sequence[int]  # in elements
    dtype: str  # "f32", "f16", "bf16", "i32", "u32", "u16", or the array's own name for other types
    device: int  # HOST, or the ordinal of a CUDA device
    writable: bool
    owner: Any  # keeps the memory alive
    requires_grad: bool = False


class DevicePointer:
    """A tensor in GPU memory, given by its address; the caller keeps it alive until the stream is done with it.

    :param dtype: "f32", "f16" or "bf16".
    :param strides: in elements; None: dense.
    """

    def __init__(
        self,
        address: int,
        shape: Sequence[int],
        dtype: str = "f32",
        strides: Optional[Sequence[int]] = None,
        device_index: int = 0,
    ) -> None:
        elements = dense_strides(shape) if strides is None else tuple(strides)
        self.view = View(address, tuple(shape), elements, dtype, device_index, True, self)


def _in_elements(name: str, strides: Sequence[int], size: int) -> Tuple[int, ...]:
    if any(one % size for one in strides):
        raise KvqArgumentError(
            "%s has the strides %s, which are no multiples of an element's %d bytes" % (name, tuple(strides), size)
        )
    return tuple([one // size for one in strides])


_torch_dtypes: Dict[Any, str] = {}


def _torch_view(name: str, x: Any) -> View:
    dtype = _torch_dtypes.get(x.dtype)
    if dtype is None:
        own = str(x.dtype).rpartition(".")[2]
        dtype = _TORCH.get(own, own)
        _torch_dtypes[x.dtype] = dtype
    if x.is_cpu:
        device = HOST
    elif x.is_cuda:
        device = x.get_device()
    else:
        raise KvqArgumentError("%s is on %s, must be in host memory or on a CUDA device" % (name, x.device))
    if x.is_neg():
        raise KvqArgumentError("%s has its numbers negated in memory: pass %s.resolve_neg()" % (name, name))
    return View(x.data_ptr(), x.shape, x.stride(), dtype, device, True, x, x.requires_grad)


def _interface_view(name: str, x: Any, interface: Dict[str, Any], device: int) -> View:
    """A view from `__array_interface__` or `__cuda_array_interface__`."""
    typestr = interface["typestr"]
    dtype, size = _TYPESTRS.get(typestr) or (typestr, int(typestr[2:]))
    if typestr == "<V2" and getattr(getattr(x, "dtype", None), "name", "") == "bfloat16":
        dtype = "bf16"  # from ml_dtypes
    shape = interface["shape"]
    strides = interface.get("strides")
    address, read_only = interface["data"]
    elements = dense_strides(shape) if strides is None else _in_elements(name, strides, size)
    return View(address, shape, elements, dtype, device, not read_only, x)


def _numpy_view(name: str, x: Any) -> View:
    return _interface_view(name, x, x.__array_interface__, HOST)


def _cuda_device(x: Any) -> int:
    """The device ordinal of an array, which its interface lacks."""
    device = getattr(x, "device_index", None)
    if device is None:
        device = getattr(getattr(x, "device", None), "id", 0)
    return int(device or 0)


def _cuda_view(name: str, x: Any) -> View:
    return _interface_view(name, x, x.__cuda_array_interface__, _cuda_device(x))


def _exchanged_view(name: str, x: Any) -> View:
    address, shape, strides, dtype, device, capsule = dlpack_view(name, x)
    return View(address, shape, strides, dtype, device, True, capsule)


def _buffer_view(name: str, x: Any) -> View:
    view = memoryview(x)
    if not view.shape or not view.strides:
        raise KvqArgumentError("%s is a buffer without shape and strides, must have both" % name)
    dtype = _FORMATS.get(view.format.lstrip("@=" + _NATIVE), view.format)
    strides = _in_elements(name, view.strides, view.itemsize)
    return View(_address_of(view), view.shape, strides, dtype, HOST, not view.readonly, view)


class _PyBuffer(ctypes.Structure):
    """Python's Py_buffer, for the address of read-only memory."""

    buf: Optional[int]
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_PYBUF_FULL_RO = 0x011C


def _address_of(view: memoryview) -> int:
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), _PYBUF_FULL_RO)
    try:
        return buffer.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


def _reader_for(name: str, x: Any) -> Callable[[str, Any], View]:
    if hasattr(x, "data_ptr") and hasattr(x, "is_cuda"):
        return _torch_view
    if hasattr(x, "__array_interface__"):
        return _numpy_view
    if hasattr(x, "__cuda_array_interface__"):
        return _cuda_view
    if hasattr(x, "__dlpack__"):
        return _exchanged_view
    try:
        memoryview(x)
    except TypeError:
        raise TypeError(
            "%s is %s, which is no array: it has neither __array_interface__, __cuda_array_interface__, __dlpack__ "
            "nor a buffer" % (name, type(x).__name__)
        ) from None
    return _buffer_view


_readers: Dict[type, Callable[[str, Any], View]] = {DevicePointer: lambda _, pointer: pointer.view}


def view_of(name: str, x: Any) -> View:
    """The address and layout of an array; errors call it `name`."""
    reader = _readers.get(type(x))
    if reader is None:
        reader = _readers[type(x)] = _reader_for(name, x)
    return reader(name, x)


def place(device: int) -> str:
    return "host memory" if device == HOST else "cuda:%d" % device


def shown(shape: Sequence[Any]) -> str:
    return "[%s]" % ", ".join(map(str, shape))


def dtype_code(name: str, view: View, dtype: Optional[str]) -> int:
    """The kvq_dtype of an array; `dtype` says what 16-bit integers of NumPy hold."""
    code = CODES.get(view.dtype)
    if code is not None and dtype is None:
        return code
    own = "bf16" if view.dtype == "u16" and dtype == "bf16" else view.dtype
    code = CODES.get(own)
    if code is None or own != (dtype or own):
        raise KvqArgumentError(
            "%s has elements of %s, must be %s"
            % (name, view.dtype, dtype or "f32, f16 or bf16 (or uint16 and dtype='bf16')")
        )
    return code


def refuse_gradient(name: str, view: View) -> None:
    """Refuse a tensor whose gradient would end in the library, which is no part of PyTorch's graph."""
    if view.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise KvqArgumentError(
            "%s requires a gradient, which kvq does not compute: pass %s.detach(), or call it under torch.no_grad()"
            % (name, name)
        )


#: What to do about strides that the library does not read.
_COPY = "pass a copy: .contiguous() of PyTorch, or numpy.ascontiguousarray"


class Rows(NamedTuple):
    """A tensor of tokens and heads, as the batch structs describe it."""

    address: int
    token_stride: int
    head_stride: int
    dtype: int
    tokens: int
    owner: Any


def rows_of(
    name: str,
    x: Any,
    dtype: Optional[str],
    device: int,
    tokens: Optional[int],
    heads: int,
    dim: int,
    output: bool = False,
) -> Rows:
    """Check an array `[tokens, heads, dim]`; None accepts any number of tokens."""
    view = view_of(name, x)
    if view.requires_grad:
        refuse_gradient(name, view)
    shape = view.shape
    if len(shape) != 3 or shape[1] != heads or shape[2] != dim or tokens is not None and shape[0] != tokens:
        expected = shown(("n" if tokens is None else tokens, heads, dim))
        raise KvqArgumentError("%s has the shape %s, must be %s" % (name, shown(shape), expected))
    if view.device != device or output and not view.writable:
        check_place(name, view, device, output)
    token_stride, head_stride, channel_stride = view.strides
    if channel_stride != 1:
        raise KvqArgumentError(
            "%s has channels %d elements apart, must be contiguous along its last axis: %s"
            % (name, channel_stride, _COPY)
        )
    if shape[0] <= 1:
        token_stride = 0
    elif token_stride <= 0:
        raise KvqArgumentError("%s has tokens %d elements apart, must be at least 1: %s" % (name, token_stride, _COPY))
    if heads == 1:
        head_stride = 0
    elif head_stride <= 0:
        raise KvqArgumentError("%s has heads %d elements apart, must be at least 1: %s" % (name, head_stride, _COPY))
    return Rows(view.address, token_stride, head_stride, dtype_code(name, view, dtype), shape[0], view)


def check_place(name: str, view: View, device: int, output: bool = False) -> None:
    if view.device != device:
        raise KvqArgumentError(
            "%s is in %s, must be in %s, where the context computes" % (name, place(view.device), place(device))
        )
    if output and not view.writable:
        raise KvqArgumentError("%s is read-only" % name)


def dense_of(
    name: str, x: Any, shape: Sequence[Optional[int]], dtype: Optional[str], device: int, output: bool = False
) -> View:
    """Check a contiguous array; None in the shape accepts any size."""
    view = view_of(name, x)
    if len(view.shape) != len(shape) or any(a != b for a, b in zip(view.shape, shape) if b is not None):
        raise KvqArgumentError(
            "%s has the shape %s, must be %s"
            % (name, shown(view.shape), shown(["n" if one is None else one for one in shape]))
        )
    check_place(name, view, device, output)
    if output:
        refuse_gradient(name, view)
    dense = dense_strides(view.shape)
    if any(a != b for a, b, size in zip(view.strides, dense, view.shape) if size > 1) and 0 not in view.shape:
        raise KvqArgumentError("%s has the strides %s, must be contiguous: %s" % (name, shown(view.strides), _COPY))
    if dtype is not None and view.dtype != dtype:
        raise KvqArgumentError("%s has elements of %s, must be %s" % (name, view.dtype, dtype))
    return view


def integers(name: str, values: Any, count: int) -> Optional["array[int]"]:
    """Integers in host memory for C, from a list or an array."""
    if values is None:
        return None
    found = array("i", values.tolist() if hasattr(values, "tolist") else values)
    if len(found) != count:
        raise KvqArgumentError("%s has %d numbers, must have %d" % (name, len(found), count))
    return found


def address_of(values: Optional["array[int]"]) -> Optional[int]:
    return None if values is None else values.buffer_info()[0]


def empty_like(x: Any, shape: Tuple[int, ...], dtype: Optional[str] = None) -> Any:
    """A new array of the same kind on the same device; `dtype` "f32", or None for the same element type."""
    reader = _readers[type(x)]
    if reader is _torch_view:
        if dtype is None:
            return x.new_empty(shape)
        return x.new_empty(shape, dtype=sys.modules["torch"].float32)
    if reader is _numpy_view:
        return sys.modules["numpy"].empty(shape, "f4" if dtype else x.dtype)
    module = type(x).__module__.partition(".")[0]
    if module == "cupy":
        return sys.modules["cupy"].empty(shape, "f4" if dtype else x.dtype)
    if reader is _buffer_view and "f32" in (dtype, reader("", x).dtype):
        return _memory(shape, "f")
    raise TypeError("pass output=: libkvq does not know how to make a %s" % type(x).__name__)


def _memory(shape: Tuple[int, ...], code: str) -> memoryview:
    values = array(code, bytes(4 * math.prod(shape)))
    return memoryview(values).cast("B").cast(code, shape)  # type: ignore[call-overload, no-any-return]


def empty_host(shape: Tuple[int, ...], dtype: str) -> Any:
    """A new array of "f32" or "i32" in host memory: NumPy's, or a memoryview without NumPy."""
    try:
        import numpy
    except ImportError:
        return _memory(shape, "f" if dtype == "f32" else "i")
    return numpy.empty(shape, "f4" if dtype == "f32" else "i4")


def bytes_of(name: str, data: Union[bytes, bytearray, memoryview]) -> Tuple[int, int, memoryview]:
    """Address and size of a file's bytes, and the object that keeps them alive."""
    view = memoryview(data)
    if not view.contiguous:
        raise ValueError("%s is not contiguous" % name)
    return _address_of(view), view.nbytes, view
