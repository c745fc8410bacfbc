"""Base of all library objects: one owner, an end, and rules for threads."""

from __future__ import annotations

import time
import weakref
from contextlib import contextmanager
from ctypes import Structure, byref, c_size_t, c_void_p, create_string_buffer, sizeof
from threading import Lock
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ClassVar,
    Collection,
    Iterable,
    Iterator,
    List,
    NoReturn,
    Optional,
    Type,
    TypeVar,
    Union,
)
from typing import Sequence as Many

from ._arrays import bytes_of
from ._errors import call
from ._hooks import Hooks, destroy, inside_hook
from ._library import Function

if TYPE_CHECKING:
    from ._context import Context

Self = TypeVar("Self", bound="Handle")
Loaded = TypeVar("Loaded", bound="Trained")
Info = TypeVar("Info")
Data = Union[bytes, bytearray, memoryview]


class Handle:
    """An object of the library. ``close``, a ``with`` statement or garbage collection destroys it.

    Calls that need exclusive use of an object wait for others on it; calls that only read run in parallel.
    """

    _destroy: ClassVar[Callable[..., None]]
    _new: ClassVar[Type[c_void_p]]
    #: What makes an independent object, for the message of one that cannot be copied.
    _instead_of_copying: ClassVar[str] = "share it, or create another one"

    def __init__(self, pointer: c_void_p, hooks: Optional[Hooks]) -> None:
        self._pointer: Optional[c_void_p] = pointer  # of the class `_new`, which ctypes checks
        self._hooks = hooks
        self._lock = Lock()  # held by the call with exclusive use
        self._exclusive = False
        self._readers: List[None] = []  # one per reading call; list operations are atomic
        self._finalizer = weakref.finalize(self, destroy, type(self)._destroy, pointer)
        self._finalizer.atexit = False  # process exit frees all memory

    def _create(self, hooks: Optional[Hooks], function: Function, *arguments: Any) -> None:
        """Take the handle that a function creates; its last argument before the error is the result."""
        result = type(self)._new()
        try:
            call(function, *arguments, byref(result))
        finally:
            if result.value:
                Handle.__init__(self, result, hooks)
            if hooks is not None:
                hooks.finish()

    @property
    def closed(self) -> bool:
        """Whether the object has been closed."""
        return self._pointer is None

    def close(self) -> None:
        """Destroy the object; closing it again does nothing. Objects made from it stay alive."""
        self._stop_others()
        try:
            self._pointer = None
            self._finalizer()
        finally:
            self._leave_exclusive()
        if self._hooks is not None:
            self._hooks.finish()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<libkvq.%s%s>" % (type(self).__name__, " (closed)" if self.closed else "")

    def __reduce_ex__(self, _: object) -> NoReturn:
        """Refuse `copy` and `pickle`: two objects would destroy one handle."""
        raise TypeError("a %s can be neither copied nor pickled: %s" % (type(self).__name__, self._instead_of_copying))

    @classmethod
    def _given(cls: Type[Self], name: str, value: Any) -> Self:
        """Check the class of an argument: the library cannot tell one handle from another."""
        if not isinstance(value, cls):
            raise TypeError("%s is %s, must be %s" % (name, type(value).__name__, cls.__name__))
        return value

    @classmethod
    def _given_or_none(cls: Type[Self], name: str, value: Any) -> Optional[Self]:
        return None if value is None else cls._given(name, value)

    @classmethod
    def _all_given(cls: Type[Self], name: str, values: Any) -> Many[Self]:
        """Check the classes of several objects."""
        if not (hasattr(values, "__len__") and hasattr(values, "__getitem__")):
            raise TypeError("%s is %s, must be a list of %s" % (name, type(values).__name__, cls.__name__))
        for i, one in enumerate(values):
            if not isinstance(one, cls):
                cls._given("%s[%d]" % (name, i), one)
        many: Many[Self] = values
        return many

    def _closed_error(self) -> ValueError:
        return ValueError("this %s is closed" % type(self).__name__)

    def _enter(self) -> c_void_p:
        """Begin to read; ``_leave`` ends it."""
        self._readers.append(None)
        while self._exclusive:
            self._readers.pop()
            self._require_no_hook()
            with self._lock:
                pass
            self._readers.append(None)
        pointer = self._pointer
        if pointer is None:
            self._readers.pop()
            raise self._closed_error()
        return pointer

    def _leave(self) -> None:
        self._readers.pop()

    def _enter_exclusive(self) -> c_void_p:
        """Begin exclusive use; ``_leave_exclusive`` ends it."""
        self._stop_others()
        pointer = self._pointer
        if pointer is None:
            self._leave_exclusive()
            raise self._closed_error()
        return pointer

    def _leave_exclusive(self) -> None:
        self._exclusive = False
        self._lock.release()

    def _stop_others(self) -> None:
        """Wait until no other call uses the object, which may be closed then."""
        if not self._lock.acquire(False):
            self._require_no_hook()
            self._lock.acquire()
        self._exclusive = True
        while self._readers:
            try:
                self._require_no_hook()
                time.sleep(2e-5)
            except BaseException:
                self._leave_exclusive()
                raise

    def _require_no_hook(self) -> None:
        """Refuse to wait inside a hook, which might wait for itself."""
        if inside_hook.depth:
            raise RuntimeError("a hook may not use this %s, which is in use" % type(self).__name__)

    @contextmanager
    def _shared(self) -> Iterator[c_void_p]:
        """Context manager for calls that only read."""
        pointer = self._enter()
        try:
            yield pointer
        finally:
            self._leave()

    @contextmanager
    def _alone(self) -> Iterator[c_void_p]:
        """Context manager for calls that change the object."""
        pointer = self._enter_exclusive()
        try:
            yield pointer
        finally:
            self._leave_exclusive()

    def _call(self, function: Function, *arguments: Any) -> None:
        """Call a function of the library; re-raise an exception of a hook."""
        try:
            call(function, *arguments)
        finally:
            if self._hooks is not None:
                self._hooks.finish()

    def _read(self, function: Function, *arguments: Any) -> None:
        """Call a function that takes the object first and only reads it."""
        with self._shared() as pointer:
            self._call(function, pointer, *arguments)

    def _described(
        self, function: Function, struct: Type[Structure], read: Callable[[Any], Info], *arguments: Any
    ) -> Info:
        """Read the struct that a function fills while the object is in use, because it may own the strings."""
        info: Any = struct(sizeof(struct))  # struct_size
        with self._shared() as pointer:
            self._call(function, pointer, *arguments, byref(info))
            return read(info)

    def _saved(self, function: Function, *arguments: Any) -> bytes:
        """Return the bytes that a function writes, after asking for their number."""
        size = c_size_t()
        self._call(function, *arguments, None, 0, byref(size))
        buffer = create_string_buffer(size.value)
        self._call(function, *arguments, buffer, size.value, byref(size))
        return buffer.raw[: size.value]


class Trained(Handle):
    """A trained object of a model, which is kept in files."""

    _load: ClassVar[Function]
    _save: ClassVar[Function]
    _instead_of_copying = "share it, which nothing changes, or load what save() returns"

    @classmethod
    def load(cls: Type[Loaded], context: Context, data: Data) -> Loaded:
        """Read the bytes of a file that ``save`` returned."""
        from ._context import Context  # whose module needs this one

        Context._given("context", context)
        address, size, _view = bytes_of("data", data)
        result = cls.__new__(cls)
        with context._shared() as pointer:
            result._create(context._hooks, cls._load, pointer, address, size)
        return result

    def save(self) -> bytes:
        """The bytes of a safetensors file."""
        with self._shared() as pointer:
            return self._saved(self._save, pointer)


def _entered(
    handles: Iterable[Handle], enter: Callable[[Handle], c_void_p], leave: Callable[[Handle], None]
) -> List[Handle]:
    entered: List[Handle] = []
    try:
        for one in handles:
            enter(one)
            entered.append(one)
    except BaseException:
        for one in entered:
            leave(one)
        raise
    return entered


def enter_alone(handles: Collection[Handle]) -> List[Handle]:
    """Begin exclusive use of several objects, each once, in the same order on all threads."""
    ordered = handles if len(handles) == 1 else sorted(set(handles), key=id)
    return _entered(ordered, Handle._enter_exclusive, Handle._leave_exclusive)


def leave_alone(handles: Iterable[Handle]) -> None:
    for one in handles:
        one._leave_exclusive()


def enter_shared(handles: Iterable[Handle]) -> List[Handle]:
    """Begin to read several objects."""
    return _entered(handles, Handle._enter, Handle._leave)


def leave_shared(handles: Iterable[Handle]) -> None:
    for one in handles:
        one._leave()


@contextmanager
def reading(*handles: Optional[Handle]) -> Iterator[List[Any]]:
    """The pointers of several objects for a call that only reads them; None stays None."""
    entered = enter_shared(one for one in handles if one is not None)
    try:
        yield [None if one is None else one._pointer for one in handles]
    finally:
        leave_shared(entered)
