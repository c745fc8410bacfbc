"""Failures of the library as exceptions."""

from __future__ import annotations

from ctypes import byref, sizeof
from typing import Any, Dict, Optional, Type, TypeVar

from . import _native
from ._library import Function
from ._text import text

Struct = TypeVar("Struct")


class KvqError(RuntimeError):
    """A call failed; every object is as it was before."""

    #: Status of the subclass; KvqError itself is for statuses without one.
    _status = int(_native.KVQ_E_INTERNAL)

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


class KvqArgumentError(KvqError, ValueError):
    """An argument is out of range, or inconsistent with another one."""

    _status = int(_native.KVQ_E_ARGUMENT)


class KvqMemoryError(KvqError, MemoryError):
    """The allocator returned NULL."""

    _status = int(_native.KVQ_E_MEMORY)


class KvqLimitError(KvqError, MemoryError):
    """The call would exceed a byte limit of the context or of the cache."""

    _status = int(_native.KVQ_E_LIMIT)


class KvqStateError(KvqError):
    """The object's state does not allow the call."""

    _status = int(_native.KVQ_E_STATE)


class KvqFormatError(KvqError, ValueError):
    """A policy, snapshot or other input is malformed."""

    _status = int(_native.KVQ_E_FORMAT)


class KvqMismatchError(KvqError, ValueError):
    """The input is well-formed but belongs to another model, cache shape, policy or version."""

    _status = int(_native.KVQ_E_MISMATCH)


class KvqUnsupportedError(KvqError, NotImplementedError):
    """The request is valid, but this build or machine does not support it."""

    _status = int(_native.KVQ_E_UNSUPPORTED)


class KvqBackendError(KvqError):
    """The device or a hook failed; see ``backend_code``."""

    _status = int(_native.KVQ_E_BACKEND)


class KvqCancelledError(KvqError):
    """A progress hook cancelled the call."""

    _status = int(_native.KVQ_E_CANCELLED)


class KvqBufferSizeError(KvqError, BufferError):
    """A buffer is too small."""

    _status = int(_native.KVQ_E_BUFFER_SIZE)


_CLASSES: Dict[int, Type[KvqError]] = {one._status: one for one in KvqError.__subclasses__()}


def failure(status: int, error: _native.kvq_error) -> KvqError:
    """The exception for a failed call."""
    return _CLASSES.get(status, KvqError)(text(error.message), status, error.backend_code)


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
