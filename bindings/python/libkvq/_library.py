"""Finds and loads libkvq, and refuses a library older than this package."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import subprocess
import sys
from typing import Any, Callable, Dict, Iterator, List, Protocol, Tuple

# What the library of this major version is called
_NAME = {"win32": "kvq.dll", "darwin": "libkvq.1.dylib"}.get(sys.platform, "libkvq.so.1")


def candidates() -> Iterator[str]:
    """Paths to try: LIBKVQ_LIBRARY, else the library inside the wheel, else the system's libraries."""
    named = os.environ.get("LIBKVQ_LIBRARY")
    if named:
        yield named
        return
    inside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", _NAME)
    if os.path.exists(inside):
        yield inside
        return
    yield _NAME
    found = ctypes.util.find_library("kvq")
    if found:
        yield found
    try:
        folder = subprocess.check_output(["pkg-config", "--variable=libdir", "kvq"], stderr=subprocess.DEVNULL)
        yield os.path.join(os.fsdecode(folder).strip(), _NAME)
    except (OSError, subprocess.CalledProcessError):
        pass


class Function(Protocol):
    """A function of the library."""

    limits: List[Tuple[int, str, int]]
    """Signed parameters: number, name, and the first magnitude that ctypes would truncate."""

    def __call__(self, *arguments: Any) -> Any: ...


class Library:
    """The loaded library."""

    def __init__(self, api_version: int) -> None:
        """Load the first library found; it must implement this API version."""
        failures = []
        for path in candidates():
            try:
                self._library = ctypes.CDLL(path)
            except OSError as error:
                failures.append(str(error))
                continue
            self.path = path
            self._require_version(api_version)
            return
        raise ImportError("no %s, set LIBKVQ_LIBRARY to its path (%s)" % (_NAME, "; ".join(failures)))

    def _require_version(self, needed: int) -> None:
        try:
            version, text = self._library.kvq_api_version, self._library.kvq_version_string
        except AttributeError:
            raise ImportError("%s is not libkvq 1.0 or later: it has no kvq_api_version" % self.path) from None
        text.restype = ctypes.c_char_p
        if version() < needed:
            raise ImportError(
                "%s is libkvq %s with API version %d, this package needs API version %d or later"
                % (self.path, (text() or b"?").decode("utf-8", "replace"), version(), needed)
            )

    def function(
        self, name: str, result: Any, parameters: Dict[str, Any], documentation: str, experimental: bool = False
    ) -> Function:
        """A function of the library. A missing experimental function fails when it is called."""
        try:
            pointer: Any = getattr(self._library, name)
        except AttributeError:
            if not experimental:
                raise ImportError("%s has no %s" % (self.path, name)) from None
            pointer = _missing(name)
        pointer.restype = result
        pointer.argtypes = list(parameters.values())
        pointer.limits = [
            (i, parameter, 1 << 8 * ctypes.sizeof(kind) - 1)
            for i, (parameter, kind) in enumerate(parameters.items())
            if kind in (ctypes.c_int32, ctypes.c_int64)
        ]
        pointer.__doc__ = documentation
        function: Function = pointer
        return function


def _missing(name: str) -> Callable[..., Any]:
    def missing(*_: Any) -> Any:
        raise NotImplementedError("this libkvq has no %s, which is experimental" % name)

    return missing
