"""What caches are made with: policies, codebooks and routers."""

from __future__ import annotations

from ctypes import byref, sizeof
from typing import Union

from . import _native
from ._arrays import bytes_of
from ._context import Context
from ._handle import Handle
from ._infos import CodebookInfo, CodebookLayerInfo, PolicyInfo, RouterGroupInfo, RouterInfo
from ._text import encoded

Data = Union[bytes, bytearray, memoryview]


class Policy(Handle):
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

    def describe(self) -> PolicyInfo:
        """What a host has to know of the policy."""
        info = _native.kvq_policy_info(struct_size=sizeof(_native.kvq_policy_info))
        self._read(_native.kvq_policy_describe, byref(info))
        return PolicyInfo._of(info)


class Codebook(Handle):
    """CommVQ codebooks for the layers of one model, of ``Codebook.load`` or a trainer."""

    _new = _native.kvq_codebook
    _destroy = _native.kvq_codebook_destroy

    @classmethod
    def load(cls, context: Context, data: Data) -> Codebook:
        """Read codebooks from a file's bytes."""
        address, size, _view = bytes_of("data", data)
        result = cls.__new__(cls)
        with context._shared() as pointer:
            result._create(context._hooks, _native.kvq_codebook_load, pointer, address, size)
        return result

    def save(self) -> bytes:
        """The codebooks as a file, in the safetensors format."""
        with self._shared() as pointer:
            return self._saved(_native.kvq_codebook_save, pointer)

    def describe(self) -> CodebookInfo:
        """What the codebooks are made for and how well they do."""
        info = _native.kvq_codebook_info(struct_size=sizeof(_native.kvq_codebook_info))
        with self._shared() as pointer:
            self._call(_native.kvq_codebook_describe, pointer, byref(info))
            return CodebookInfo._of(info)

    def describe_layer(self, layer: int) -> CodebookLayerInfo:
        """One layer of the codebooks."""
        info = _native.kvq_codebook_layer_info(struct_size=sizeof(_native.kvq_codebook_layer_info))
        self._read(_native.kvq_codebook_describe_layer, layer, byref(info))
        return CodebookLayerInfo._of(info)


class Router(Handle):
    """Routers for the layers of one model, of ``Router.load`` or a trainer."""

    _new = _native.kvq_router
    _destroy = _native.kvq_router_destroy

    @classmethod
    def load(cls, context: Context, data: Data) -> Router:
        """Read routers from a file's bytes."""
        address, size, _view = bytes_of("data", data)
        result = cls.__new__(cls)
        with context._shared() as pointer:
            result._create(context._hooks, _native.kvq_router_load, pointer, address, size)
        return result

    def save(self) -> bytes:
        """The routers as a file, in the safetensors format."""
        with self._shared() as pointer:
            return self._saved(_native.kvq_router_save, pointer)

    def describe(self) -> RouterInfo:
        """What the routers are made for, and what they do on the pages that they were trained on."""
        info = _native.kvq_router_info(struct_size=sizeof(_native.kvq_router_info))
        with self._shared() as pointer:
            self._call(_native.kvq_router_describe, pointer, byref(info))
            return RouterInfo._of(info)

    def describe_group(self, group: int) -> RouterGroupInfo:
        """One group of layers."""
        info = _native.kvq_router_group_info(struct_size=sizeof(_native.kvq_router_group_info))
        self._read(_native.kvq_router_describe_group, group, byref(info))
        return RouterGroupInfo._of(info)
