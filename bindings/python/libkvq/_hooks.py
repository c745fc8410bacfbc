"""Python functions as hooks of a context."""

from __future__ import annotations

from threading import get_ident, local
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
            options.allocate = self._guarded(_native.kvq_allocate_hook, None, allocator.allocate)
            options.free = self._guarded(_native.kvq_free_hook, None, allocator.free)
        if device_allocator is not None:
            options.device_allocate = self._guarded(_native.kvq_device_allocate_hook, None, device_allocator.allocate)
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


def _loop(parallel_for: ParallelForHook) -> Callable[..., int]:
    """A hook that passes `parallel_for` a body; calls of it after `parallel_for` returns fail."""

    def hook(n: int, body: Callable[[Any, int], None], argument: Any) -> int:
        left = set(range(n))

        def run(index: int) -> None:
            try:
                left.remove(index)
            except KeyError:
                raise ValueError("index is %r, must be one of the %d that have not run" % (index, n)) from None
            body(argument, index)

        try:
            parallel_for(n, run)
        finally:
            left.clear()
        return 0

    return hook


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
