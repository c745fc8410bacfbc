"""Conversion of text and names to and from C."""

from __future__ import annotations

import os
from enum import IntEnum
from functools import lru_cache
from typing import Dict, Optional, Type, Union


def text(value: Optional[bytes]) -> str:
    """Decode text from the library; invalid UTF-8 is replaced."""
    return "" if value is None else value.decode("utf-8", "replace")


def encoded(argument: str, value: Union[str, bytes]) -> bytes:
    """Encode a string for C."""
    if not isinstance(value, (str, bytes)):
        raise TypeError("%s is %s, must be str" % (argument, type(value).__name__))
    result = value.encode("utf-8") if isinstance(value, str) else value
    if b"\0" in result:
        raise ValueError("%s contains a NUL character" % argument)
    return result


@lru_cache(maxsize=None)
def names(enumeration: Type[IntEnum]) -> Dict[str, int]:
    """Names of values without their prefix: "half" for KVQ_ROPE_HALF."""
    prefix = os.path.commonprefix([one.name for one in enumeration]).rpartition("_")[0] + "_"
    return {one.name[len(prefix) :].lower(): int(one) for one in enumeration}


def value_of(enumeration: Type[IntEnum], argument: str, name: Union[str, int]) -> int:
    """The value of a name such as "half"."""
    known = names(enumeration)
    if isinstance(name, int):
        return int(name)
    if name not in known:
        raise ValueError("%s is %r, must be one of %s" % (argument, name, ", ".join(map(repr, known))))
    return known[name]


def name_of(enumeration: Type[IntEnum], value: int) -> str:
    """The name of a value, or its digits if this package does not know it."""
    return next((name for name, number in names(enumeration).items() if number == value), str(value))
