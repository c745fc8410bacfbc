"""Objects, as far as they follow from kvq.h by rules.

Made by bindings/generate/generate.py from include/kvq.h; edit that instead.
"""

from __future__ import annotations

from ctypes import byref, c_int32

from . import _native
from ._handle import Handle, Trained
from ._infos import (
    CentresInfo,
    CentresLayerInfo,
    CodebookInfo,
    CodebookLayerInfo,
    ContextInfo,
    LayerInfo,
    PolicyInfo,
    RouterGroupInfo,
    RouterInfo,
)


class ContextMethods(Handle):
    """What every context does by rules."""

    def describe(self) -> ContextInfo:
        """Describe a context."""
        function, struct = _native.kvq_context_describe, _native.kvq_context_info
        return self._described(function, struct, ContextInfo._of)


class PolicyMethods(Handle):
    """What every policy does by rules."""

    def save(self) -> str:
        """Write a policy in the long form, which ``kvq_policy_load`` reads: the same is then said of every layer.
        Reading and writing again gives the same bytes.
        """
        with self._shared() as it:
            return self._saved(_native.kvq_policy_save, it).decode("utf-8")

    def describe(self) -> PolicyInfo:
        """Describe a policy."""
        function, struct = _native.kvq_policy_describe, _native.kvq_policy_info
        return self._described(function, struct, PolicyInfo._of)


class Codebook(Trained):
    """CommVQ codebooks for the layers of one model. Immutable; caches that use it share it. Files are in the
    safetensors format and hold about half of ``kvq_codebook_info.bytes``.
    """

    _new = _native.kvq_codebook
    _destroy = _native.kvq_codebook_destroy
    _load = _native.kvq_codebook_load
    _save = _native.kvq_codebook_save

    def describe(self) -> CodebookInfo:
        """Describe codebooks."""
        function, struct = _native.kvq_codebook_describe, _native.kvq_codebook_info
        return self._described(function, struct, CodebookInfo._of)

    def describe_layer(self, layer: int) -> CodebookLayerInfo:
        """Describe one layer of codebooks."""
        function, struct = _native.kvq_codebook_describe_layer, _native.kvq_codebook_layer_info
        return self._described(function, struct, CodebookLayerInfo._of, layer)


class Centres(Trained):
    """Centres of the keys and values of one model, for the formats gs and gt: a vector is stored relative to the
    nearest centre of its head. Immutable; caches that use them share them. Files are in the safetensors format and
    hold half of ``kvq_centres_info.bytes``.
    """

    _new = _native.kvq_centres
    _destroy = _native.kvq_centres_destroy
    _load = _native.kvq_centres_load
    _save = _native.kvq_centres_save

    def describe(self) -> CentresInfo:
        """Describe centres."""
        function, struct = _native.kvq_centres_describe, _native.kvq_centres_info
        return self._described(function, struct, CentresInfo._of)

    def describe_layer(self, layer: int) -> CentresLayerInfo:
        """Describe one layer of centres."""
        function, struct = _native.kvq_centres_describe_layer, _native.kvq_centres_layer_info
        return self._described(function, struct, CentresLayerInfo._of, layer)


class Router(Trained):
    """Routers for the layers of one model (MoQAE): small networks that choose the format of every page by the keys in
    it, before RoPE. Immutable; caches that use it share it. Files are in the safetensors format.
    """

    _new = _native.kvq_router
    _destroy = _native.kvq_router_destroy
    _load = _native.kvq_router_load
    _save = _native.kvq_router_save

    def describe(self) -> RouterInfo:
        """Describe routers."""
        function, struct = _native.kvq_router_describe, _native.kvq_router_info
        return self._described(function, struct, RouterInfo._of)

    def describe_group(self, group: int) -> RouterGroupInfo:
        """Describe one group of layers.

        :param group: 0 … groups − 1.
        """
        function, struct = _native.kvq_router_describe_group, _native.kvq_router_group_info
        return self._described(function, struct, RouterGroupInfo._of, group)


class CacheMethods(Handle):
    """What every cache does by rules."""

    def describe_layer(self, layer: int) -> LayerInfo:
        """Describe a layer of a cache."""
        function, struct = _native.kvq_cache_describe_layer, _native.kvq_layer_info
        return self._described(function, struct, LayerInfo._of, layer)


class SequenceMethods(Handle):
    """What every sequence does by rules."""

    cache: Handle

    def truncate(self, length: int) -> None:
        """Drop tokens from the end of every layer, so that each layer keeps the first ``length`` tokens.

        Exact while the cut lies in an FP16 page or on a page border (a multiple of ``KVQ_PAGE_SLOTS``). A cut inside
        a sealed page is refused: keep ``recent: 2`` or more pages in FP16 to be able to roll back at least 32
        tokens. On a border, a page that had been sealed stays sealed.

        :param length: 0 … the shortest layer's length.
        """
        with self.cache._shared() as cache, self._alone() as it:
            self._call(_native.kvq_sequence_truncate, cache, it, length)

    def reserve(self, tokens: int) -> None:
        """Make pages ahead, so that every layer has room for ``tokens`` more tokens.

        Appends then take these pages: while there is room, no append of up to ``KVQ_PAGE_SLOTS`` tokens allocates
        page memory, and on a CPU the pages of a head lie next to each other from the start. On a GPU this is what a
        CUDA graph needs:

            kvq_context_set_stream(context, stream);
            kvq_attend(…)                                  // once with the graph's batch: it allocates its work space
            kvq_sequence_reserve(cache, sequence, 4096, …);
            cudaStreamBeginCapture(stream, …);
            kvq_append(…, 1, k, v, …); kvq_attend(…);      // of every layer
            cudaStreamEndCapture(stream, &graph);

        Every launch of the graph appends one token more and attends to all: lengths, positions and page tables live
        on the device. While a stream is captured, kvq_append takes at most ``KVQ_PAGE_SLOTS`` tokens and no
        positions, kvq_attend takes no query positions, and other functions of the sequence may not be called.
        Afterwards they may: each first waits for the context's stream to learn how far the graph has come, so launch
        graphs on it, or let it wait for them. A launch without room appends nothing, and a later call on the context
        returns KVQ_E_LIMIT. A graph stays valid until kvq_sequence_reserve is called again, or something it refers
        to is destroyed. Forks of a sequence with pages made ahead copy its open pages. Layers with a codebook's
        codes cannot be captured, nor can attention where a policy evicts by what queries look at: these calls return
        KVQ_E_UNSUPPORTED.

        :param tokens: ≥ 0, per layer; 0 gives back the pages that are left.
        """
        with self.cache._shared() as cache, self._alone() as it:
            self._call(_native.kvq_sequence_reserve, cache, it, tokens)

    def room(self, layer: int) -> int:
        """Number of tokens that ``layer`` has pages for, made by ``kvq_sequence_reserve``. Truncating makes room again,
        except for pages that a fork still holds.
        """
        number = c_int32()
        self._read(_native.kvq_sequence_room, layer, byref(number))
        return number.value

    def length(self, layer: int) -> int:
        """Number of tokens appended to ``layer``, evicted ones included."""
        number = c_int32()
        self._read(_native.kvq_sequence_length, layer, byref(number))
        return number.value

    def slots(self, layer: int, kv_head: int) -> int:
        """Number of tokens that a KV head of ``layer`` holds: what eviction has left. ``kvq_sequence_decode`` tells
        their positions.

        :param kv_head: 0 … kv_heads − 1.
        """
        number = c_int32()
        self._read(_native.kvq_sequence_slots, layer, kv_head, byref(number))
        return number.value

    def save(self) -> bytes:
        """Write a snapshot of a sequence."""
        with self.cache._shared() as cache, self._shared() as it:
            return self._saved(_native.kvq_sequence_save, cache, it)
