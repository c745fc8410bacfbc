"""Policies."""

from __future__ import annotations

from typing import Optional, Union

from . import _native
from ._context import Context
from ._objects import PolicyMethods
from ._text import encoded


class Policy(PolicyMethods):
    """Which format pages are sealed in, per layer, how many stay FP16, and which tokens are evicted.

    :param yaml: YAML, or the short form of one format such as "int4+hadamard"; ``kvq_policy_load`` describes both.
    """

    _new = _native.kvq_policy
    _destroy = _native.kvq_policy_destroy

    def __init__(self, context: Context, yaml: Union[str, bytes]) -> None:
        text = encoded("yaml", yaml)
        with context._shared() as pointer:
            self._create(context._hooks, _native.kvq_policy_load, pointer, text, len(text))
        self._context = context

    def with_eviction(self, method: str, budget: int) -> Policy:
        """A policy that evicts tokens and otherwise says what this one says.

        :param method: "streaming", "h2o", "snapkv", "pyramid", "adasnap" or "adapyramid".
        :param budget: tokens of a KV head that stay, on average.
        """
        result = Policy.__new__(Policy)
        result._context = self._context
        name = encoded("method", method)
        with self._context._shared() as context, self._shared() as policy:
            result._create(self._hooks, _native.kvq_policy_with_eviction, context, policy, name, budget)
        return result

    def with_layer(
        self, first_layer: int, last_layer: int, keys: Optional[str] = None, values: Optional[str] = None
    ) -> Policy:
        """A policy whose layers from first to last are in other formats and that otherwise says what this one says.

        :param keys: name of a format; None: as before.
        :param values: the same for values.
        """
        result = Policy.__new__(Policy)
        result._context = self._context
        names = [None if name is None else encoded(side, name) for side, name in (("keys", keys), ("values", values))]
        function = _native.kvq_policy_with_layer
        with self._context._shared() as context, self._shared() as policy:
            result._create(self._hooks, function, context, policy, first_layer, last_layer, *names)
        return result
