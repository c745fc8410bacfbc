"""Settings, which come from the environment, so that all of vLLM's processes have the same."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional

import libkvq

_POLICY = "KVQ_VLLM_POLICY"
_CENTRES = "KVQ_VLLM_CENTRES"
_TAILS = "KVQ_VLLM_TAILS"
_THREADS = "KVQ_VLLM_THREADS"


class SettingsError(ValueError):
    """A variable of the environment that cannot be used; the message names it."""


@dataclass(frozen=True)
class Settings:
    name: str
    """What was given: a format, or the path or text of a policy."""
    policy: str
    """A format, or the text of a policy."""
    centres: Optional[bytes] = None
    """What ``kvq balance --scales`` or ``kvq train centres`` wrote."""
    n_tails: int = 0
    """0: as many as the largest batch needs."""
    n_threads: int = 0
    """Of a CPU; 0: as many as PyTorch has."""

    @classmethod
    def of_environment(cls) -> Optional[Settings]:
        """The settings, or None if there is no policy."""
        name = os.environ.get(_POLICY, "").strip()
        if not name:
            return None
        policy = _content(_POLICY, name).decode("utf-8") if os.path.isfile(name) else name
        centres = os.environ.get(_CENTRES, "")
        return cls(
            name,
            policy,
            _content(_CENTRES, centres) if centres else None,
            _number(_TAILS),
            _number(_THREADS),
        )

    def check(self) -> None:
        """Raise SettingsError unless the policy and the centres can be read."""
        # Without threads: vLLM forks after this.
        with libkvq.Context() as context:
            try:
                libkvq.Policy(context, self.policy).close()
            except libkvq.KvqError as error:
                raise SettingsError("%s: %s" % (_POLICY, error)) from error
            try:
                self.load_centres(context)
            except libkvq.KvqError as error:
                raise SettingsError("%s: %s" % (_CENTRES, error)) from error

    def load_centres(self, context: libkvq.Context) -> Optional[libkvq.Centres]:
        return None if self.centres is None else libkvq.Centres.load(context, self.centres)


def _content(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise SettingsError("%s: %s" % (name, error)) from error


def _number(name: str) -> int:
    text = os.environ.get(name, "0")
    if not text.isdecimal():
        raise SettingsError("%s is %r, must be a number of 0 or more" % (name, text))
    return int(text)
