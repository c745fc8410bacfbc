"""Failures of the library as exceptions."""

from __future__ import annotations

from ctypes import byref, sizeof
from typing import Any, ClassVar, Dict, Optional, Type, TypeVar

from . import _native
from ._library import Function
from ._text import text

__all__ = [
    "KvqArgumentError",
    "KvqBackendError",
    "KvqBufferSizeError",
    "KvqCancelledError",
    "KvqError",
    "KvqFormatError",
    "KvqLimitError",
    "KvqMemoryError",
    "KvqMismatchError",
    "KvqStateError",
    "KvqUnsupportedError",
]

Struct = TypeVar("Struct")


class KvqError(RuntimeError):
    """A call failed; every object is as it was before."""

    #: Status of the subclass; KvqError itself is for statuses without one.
    _status: ClassVar[int] = int(_native.KVQ_E_INTERNAL)
    _classes: ClassVar[Dict[int, Type[KvqError]]] = {}

    def __init_subclass__(cls, status: Optional[int] = None) -> None:
        if status is not None:
            cls._status = int(status)
            KvqError._classes[cls._status] = cls

    def __init__(self, message: str, status: Optional[int] = None, backend_code: int = 0) -> None:
        super().__init__(message)
        self.status = self._status if status is None else status
        """A value of ``kvq_status``."""
        self.backend_code = backend_code
        """Error code of the device's library or of a hook; 0 if none."""

    @property
    def status_name(self) -> str:
        """Name of the status, for example "KVQ_E_LIMIT"."""
        return text(_native.kvq_status_name(self.status))


class KvqArgumentError(KvqError, ValueError, status=_native.KVQ_E_ARGUMENT):
    """An argument is out of range, or inconsistent with another one."""


class KvqMemoryError(KvqError, MemoryError, status=_native.KVQ_E_MEMORY):
    """The allocator returned NULL."""


class KvqLimitError(KvqError, MemoryError, status=_native.KVQ_E_LIMIT):
    """The call would exceed a byte limit of the context or of the cache."""


class KvqStateError(KvqError, status=_native.KVQ_E_STATE):
    """The object's state does not allow the call."""


class KvqFormatError(KvqError, ValueError, status=_native.KVQ_E_FORMAT):
    """A policy, snapshot or other input is malformed."""


class KvqMismatchError(KvqError, ValueError, status=_native.KVQ_E_MISMATCH):
    """The input is well-formed but belongs to another model, cache shape, policy or version."""


class KvqUnsupportedError(KvqError, NotImplementedError, status=_native.KVQ_E_UNSUPPORTED):
    """The request is valid, but this build or machine does not support it."""


class KvqBackendError(KvqError, status=_native.KVQ_E_BACKEND):
    """The device or a hook failed; see ``backend_code``."""


class KvqCancelledError(KvqError, status=_native.KVQ_E_CANCELLED):
    """A progress hook cancelled the call."""


class KvqBufferSizeError(KvqError, BufferError, status=_native.KVQ_E_BUFFER_SIZE):
    """A buffer is too small."""


def failure(status: int, error: _native.kvq_error) -> KvqError:
    """The exception for a failed call."""
    return KvqError._classes.get(status, KvqError)(text(error.message), status, error.backend_code)


def new_error() -> _native.kvq_error:
    return _native.kvq_error(struct_size=sizeof(_native.kvq_error))


def call(function: Function, *arguments: Any) -> None:
    """Call a function of the library that takes an error last."""
    for i, name, limit in function.limits:
        require_fit(name, arguments[i], limit)
    error = new_error()
    status = function(*arguments, byref(error))
    if status != 0:
        raise failure(status, error)


def require_fit(name: str, value: int, limit: int = 1 << 31) -> None:
    """Refuse a number that ctypes would truncate."""
    if not -limit <= value < limit:
        raise KvqArgumentError("%s is %d, must fit into %d bits" % (name, value, limit.bit_length()))


def assign(struct: Any, **values: Any) -> None:
    """Set fields of a struct; refuse integers that do not fit."""
    for name, value in values.items():
        setattr(struct, name, value)
        if isinstance(value, int) and getattr(struct, name) != value:
            bits = 8 * getattr(type(struct), name).size
            raise KvqArgumentError("%s is %d, must fit into %d bits" % (name, value, bits))


def initialised(kind: Type[Struct], **values: Any) -> Struct:
    """A struct with the library's defaults, and then these fields set like ``assign``."""
    it: Any = kind()
    getattr(_native, kind.__name__ + "_init")(byref(it), sizeof(it))
    assign(it, **values)
    return it  # type: ignore[no-any-return]
