"""Policies, codebooks, centres and routers."""

from __future__ import annotations

from typing import ClassVar, Optional, Type, TypeVar, Union

from . import _native
from ._arrays import bytes_of
from ._context import Context
from ._handle import Handle
from ._infos import (
    CentresInfo,
    CentresLayerInfo,
    CodebookInfo,
    CodebookLayerInfo,
    PolicyInfo,
    RouterGroupInfo,
    RouterInfo,
)
from ._library import Function
from ._text import encoded

Data = Union[bytes, bytearray, memoryview]
Self = TypeVar("Self", bound="Trained")


class Policy(Handle):
    """Formats that each layer's pages are sealed in, how many pages stay FP16, and which tokens are evicted.

    :param yaml: YAML, or the short form such as "int4+hadamard"; ``kvq_policy_load`` describes both.
    """

    _new = _native.kvq_policy
    _destroy = _native.kvq_policy_destroy

    def __init__(self, context: Context, yaml: Union[str, bytes]) -> None:
        text = encoded("yaml", yaml)
        with context._shared() as pointer:
            self._create(context._hooks, _native.kvq_policy_load, pointer, text, len(text))
        self._context = context

    def with_eviction(self, method: str, budget: int) -> Policy:
        """Copy the policy and set its eviction.

        :param method: "streaming", "h2o", "snapkv", "pyramid", "adasnap" or "adapyramid".
        :param budget: tokens that a KV head keeps on average.
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
        """Copy the policy and set the formats of layers first to last.

        :param keys: name of a format; None: unchanged.
        :param values: as `keys`.
        """
        result = Policy.__new__(Policy)
        result._context = self._context
        names = [None if name is None else encoded(side, name) for side, name in (("keys", keys), ("values", values))]
        function = _native.kvq_policy_with_layer
        with self._context._shared() as context, self._shared() as policy:
            result._create(self._hooks, function, context, policy, first_layer, last_layer, *names)
        return result

    def save(self) -> str:
        """The policy as YAML."""
        with self._shared() as pointer:
            return self._saved(_native.kvq_policy_save, pointer).decode("utf-8")

    def describe(self) -> PolicyInfo:
        """Eviction settings of the policy."""
        return self._described(_native.kvq_policy_describe, _native.kvq_policy_info, PolicyInfo._of)


class Trained(Handle):
    """A trained object of a model, which is kept in files."""

    _load: ClassVar[Function]
    _save: ClassVar[Function]

    @classmethod
    def load(cls: Type[Self], context: Context, data: Data) -> Self:
        """Read the bytes of a file that ``save`` returned."""
        address, size, _view = bytes_of("data", data)
        result = cls.__new__(cls)
        with context._shared() as pointer:
            result._create(context._hooks, cls._load, pointer, address, size)
        return result

    def save(self) -> bytes:
        """The bytes of a safetensors file."""
        with self._shared() as pointer:
            return self._saved(self._save, pointer)


class Codebook(Trained):
    """CommVQ codebooks for the layers of one model, from ``Codebook.load`` or a trainer."""

    _new = _native.kvq_codebook
    _destroy = _native.kvq_codebook_destroy
    _load = _native.kvq_codebook_load
    _save = _native.kvq_codebook_save

    def describe(self) -> CodebookInfo:
        """Shape and quality of the codebooks."""
        return self._described(_native.kvq_codebook_describe, _native.kvq_codebook_info, CodebookInfo._of)

    def describe_layer(self, layer: int) -> CodebookLayerInfo:
        """Describe one layer of the codebooks."""
        return self._described(
            _native.kvq_codebook_describe_layer, _native.kvq_codebook_layer_info, CodebookLayerInfo._of, layer
        )


class Centres(Trained):
    """Trained centres of the keys and values of one model, from ``Centres.load`` or a trainer."""

    _new = _native.kvq_centres
    _destroy = _native.kvq_centres_destroy
    _load = _native.kvq_centres_load
    _save = _native.kvq_centres_save

    def describe(self) -> CentresInfo:
        """Shape and quality of the centres."""
        return self._described(_native.kvq_centres_describe, _native.kvq_centres_info, CentresInfo._of)

    def describe_layer(self, layer: int) -> CentresLayerInfo:
        """Describe one layer of the centres."""
        return self._described(
            _native.kvq_centres_describe_layer, _native.kvq_centres_layer_info, CentresLayerInfo._of, layer
        )


class Router(Trained):
    """Routers for the layers of one model, from ``Router.load`` or a trainer."""

    _new = _native.kvq_router
    _destroy = _native.kvq_router_destroy
    _load = _native.kvq_router_load
    _save = _native.kvq_router_save

    def describe(self) -> RouterInfo:
        """Shape of the routers, and their results on the pages they were trained on."""
        return self._described(_native.kvq_router_describe, _native.kvq_router_info, RouterInfo._of)

    def describe_group(self, group: int) -> RouterGroupInfo:
        """Describe one group of layers."""
        return self._described(
            _native.kvq_router_describe_group, _native.kvq_router_group_info, RouterGroupInfo._of, group
        )
