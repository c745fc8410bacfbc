"""Python functions as hooks of a context."""

from __future__ import annotations

import sys
from threading import Condition, get_ident, local
from typing import Any, Callable, ClassVar, List, Optional, Set, Tuple

from . import _native
from ._text import name_of, text

LogHook = Callable[[str, str], Any]
ParallelForHook = Callable[[int, Callable[[int], None]], Any]
ProgressHook = Callable[[float], Any]


class _InsideHook(local):
    """Whether this thread runs a hook, which may not use the library's objects."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


inside_hook = _InsideHook()
_deferred: List[Tuple[Callable[[Any], None], Any]] = []


def destroy(function: Callable[[Any], None], pointer: Any) -> None:
    """Destroy an object; if garbage collection asks for it inside a hook, after the hook's call."""
    if inside_hook.depth:
        _deferred.append((function, pointer))
    else:
        function(pointer)


def destroy_deferred() -> None:
    while _deferred:
        try:
            function, pointer = _deferred.pop()
        except IndexError:  # another thread was faster
            return
        function(pointer)


class Hooks:
    """The hooks of one context, alive until the library has released them.

    An exception in a hook counts as its failure. The call that ran the hook raises the first one; if the hook ran on a
    thread of the library, the next call that returns does.
    """

    _alive: ClassVar[Set["Hooks"]] = set()

    def __init__(self) -> None:
        self._raised: List[Tuple[int, BaseException]] = []
        self._kept: List[Any] = []

    def _guarded(self, kind: Any, failure: Any, body: Callable[..., Any]) -> Any:
        """A C function pointer that calls `body` with all arguments except `user`."""

        def hook(_: Any, *arguments: Any) -> Any:
            try:
                with inside_hook:
                    return body(*arguments)
            except BaseException as error:
                self._raised.append((get_ident(), error))
                return failure

        pointer = kind(hook)
        self._kept.append(pointer)
        return pointer

    def install(
        self,
        options: _native.kvq_context_options,
        log: Optional[LogHook],
        allocator: Any,
        parallel_for: Optional[ParallelForHook],
        device_allocator: Any,
        released: Optional[Callable[[], Any]],
    ) -> None:
        """Set the hooks that are not None, and `released`, which frees them."""
        if log is not None:
            wanted_log = log
            options.log = self._guarded(
                _native.kvq_log_hook,
                None,
                lambda level, message: wanted_log(name_of(_native.kvq_log_level, level), text(message)),
            )
        if parallel_for is not None:
            options.parallel_for = self._guarded(_native.kvq_parallel_for_hook, -1, _loop(parallel_for))
        if allocator is not None:
            options.allocate = self._guarded(_native.kvq_allocate_hook, None, _addresses(allocator.allocate))
            options.free = self._guarded(_native.kvq_free_hook, None, allocator.free)
        if device_allocator is not None:
            allocate = _addresses(device_allocator.allocate)
            options.device_allocate = self._guarded(_native.kvq_device_allocate_hook, None, allocate)
            options.device_free = self._guarded(_native.kvq_device_free_hook, None, device_allocator.free)

        def on_released() -> None:
            try:
                if released is not None:
                    released()
            finally:
                Hooks._alive.discard(self)

        options.released = self._guarded(_native.kvq_released_hook, None, on_released)
        Hooks._alive.add(self)

    def dismiss(self) -> None:
        """Free the hooks of a context that could not be created."""
        Hooks._alive.discard(self)

    def finish(self) -> None:
        """After a call: run deferred destruction, and re-raise an exception of a hook."""
        if inside_hook.depth:
            return
        destroy_deferred()
        if self._raised:
            mine = [one for one in self._raised if one[0] == get_ident()] or self._raised[:1]
            for one in mine:
                self._raised.remove(one)
            raise mine[0][1]


def _addresses(allocate: Callable[..., Any]) -> Callable[..., Optional[int]]:
    """An allocation hook that refuses what is no address, of which ctypes would make an arbitrary one."""

    def hook(*arguments: int) -> Optional[int]:
        address = allocate(*arguments)
        if address is None or isinstance(address, int) and 0 <= address <= 2 * sys.maxsize + 1:
            return address
        raise TypeError("allocate returned %r, must return an address or None" % (address,))

    return hook


def _loop(parallel_for: ParallelForHook) -> Callable[..., int]:
    """A hook that passes `parallel_for` a body."""

    def hook(n: int, body: Callable[[Any, int], None], argument: Any) -> int:
        loop = _Loop(n, body, argument)
        try:
            parallel_for(n, loop.run)
        finally:
            loop.end()
        return 0

    return hook


class _Loop:
    """A loop of the library, which runs what its hook leaves out; the body's argument lives until the hook returns."""

    def __init__(self, n: int, body: Callable[[Any, int], None], argument: Any) -> None:
        self._n, self._body, self._argument = n, body, argument
        self._left = set(range(n))
        self._running = 0
        self._changed = Condition()

    def run(self, index: int) -> None:
        with self._changed:
            if index not in self._left:
                raise ValueError("index is %r, must be one of the %d that have not run" % (index, self._n))
            self._left.remove(index)
            self._running += 1
        try:
            self._body(self._argument, index)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Refuse further calls and wait for those that run, also if the wait is interrupted."""
        interrupt: Optional[BaseException] = None
        while True:
            try:
                with self._changed:
                    self._left.clear()
                    self._changed.wait_for(lambda: self._running == 0)
                break
            except BaseException as error:  # such as KeyboardInterrupt
                interrupt = error
        if interrupt is not None:
            raise interrupt


class Progress:
    """A progress hook for one call. Returning False or raising ends the call."""

    def __init__(self, progress: Optional[ProgressHook]) -> None:
        self._progress = progress
        self._raised: Optional[BaseException] = None
        self.pointer = _native.kvq_progress_hook(self._hook) if progress is not None else _native.kvq_progress_hook()

    def _hook(self, _: Any, done: float) -> int:
        assert self._progress is not None
        try:
            with inside_hook:
                return 1 if self._progress(done) is False else 0
        except BaseException as error:
            self._raised = error
            return 1

    def __enter__(self) -> Any:
        return self.pointer

    def __exit__(self, *_: object) -> None:
        destroy_deferred()
        if self._raised is not None:
            raise self._raised
