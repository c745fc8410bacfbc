"""Policies."""

from __future__ import annotations

from typing import Any, Optional, Union

from . import _native
from ._context import Context
from ._handle import reading
from ._library import Function
from ._objects import PolicyMethods
from ._text import encoded


class Policy(PolicyMethods):
    """Formats that each layer's pages are sealed in, how many pages stay FP16, and which tokens are evicted.

    :param yaml: YAML, or the short form such as "int4+hadamard"; ``kvq_policy_load`` describes both.
    """

    _new = _native.kvq_policy
    _destroy = _native.kvq_policy_destroy
    _instead_of_copying = "share it, which nothing changes, or read what save() returns"

    def __init__(self, context: Context, yaml: Union[str, bytes]) -> None:
        text = encoded("yaml", yaml)
        with Context._given("context", context)._shared() as pointer:
            self._create(context._hooks, _native.kvq_policy_load, pointer, text, len(text))
        self._context = context

    def with_eviction(self, method: str, budget: int) -> Policy:
        """Copy the policy and set its eviction.

        :param method: "streaming", "h2o", "snapkv", "pyramid", "adasnap" or "adapyramid".
        :param budget: tokens that a KV head keeps on average.
        """
        return self._copied(_native.kvq_policy_with_eviction, encoded("method", method), budget)

    def with_layer(
        self, first_layer: int, last_layer: int, keys: Optional[str] = None, values: Optional[str] = None
    ) -> Policy:
        """Copy the policy and set the formats of layers first to last.

        :param keys: name of a format; None: unchanged.
        :param values: as `keys`.
        """
        names = [None if name is None else encoded(side, name) for side, name in (("keys", keys), ("values", values))]
        return self._copied(_native.kvq_policy_with_layer, first_layer, last_layer, *names)

    def _copied(self, function: Function, *changes: Any) -> Policy:
        result = Policy.__new__(Policy)
        result._context = self._context
        with reading(self._context, self) as pointers:
            result._create(self._hooks, function, *pointers, *changes)
        return result


PolicyOrText = Union[str, bytes, Policy, None]


def policy_of(context: Context, policy: PolicyOrText) -> Optional[Policy]:
    """The policy of an argument that may be its text; None stays None."""
    return Policy(context, policy) if isinstance(policy, (str, bytes)) else Policy._given_or_none("policy", policy)
