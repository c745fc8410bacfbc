"""The part of DLPack that gives a tensor's address and layout. Nothing is copied, and ownership does not change."""

from __future__ import annotations

import ctypes
from typing import Any, Sequence, Tuple

from ._errors import KvqArgumentError


def dense_strides(shape: Sequence[int]) -> Tuple[int, ...]:
    """Strides of a row-major array."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 1, 0, -1):
        strides[i - 1] = strides[i] * shape[i]
    return tuple(strides)


_CPU_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost
_CUDA_DEVICES = (2, 13)  # kDLCUDA, kDLCUDAManaged
_CODES = {(0, 32): "i32", (1, 16): "u16", (2, 32): "f32", (2, 16): "f16", (4, 16): "bf16"}


class _Tensor(ctypes.Structure):
    """DLTensor."""

    data: int
    device_type: int
    device_id: int
    ndim: int
    code: int
    bits: int
    lanes: int
    shape: Any
    strides: Any
    byte_offset: int
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def dlpack_view(name: str, x: Any) -> Tuple[int, Tuple[int, ...], Tuple[int, ...], str, int, Any]:
    """Address, shape, strides, element type, device (-1: host), and the capsule, which releases the tensor when it is
    dropped."""
    kind, index = x.__dlpack_device__()
    if kind in _CPU_DEVICES:
        device = -1
    elif kind in _CUDA_DEVICES:
        device = int(index)
    else:
        raise KvqArgumentError("%s is on DLPack's device %d, must be in host memory or on a CUDA device" % (name, kind))
    capsule = x.__dlpack__()
    address = _get_pointer(capsule, b"dltensor")
    tensor = _Tensor.from_address(address)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    else:
        strides = dense_strides(shape)
    other = "%d bits of DLPack's type %d" % (tensor.bits, tensor.code)
    dtype = _CODES.get((tensor.code, tensor.bits), other) if tensor.lanes == 1 else other
    return (tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, device, capsule
