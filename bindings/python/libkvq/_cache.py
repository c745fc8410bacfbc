"""Caches: the attention layers of one model."""

from __future__ import annotations

from array import array
from ctypes import byref
from threading import Lock
from typing import Any, List, Optional, Union
from typing import Sequence as Many
from weakref import WeakSet

from . import _native
from ._arrays import HOST, address_of, bytes_of, dense_of, empty_like, integers, refuse_gradient, rows_of
from ._batches import Prepared
from ._context import Context
from ._errors import KvqArgumentError, failure, initialised, require_fit
from ._handle import Data, enter_alone, enter_shared, leave_alone, leave_shared, reading
from ._infos import CacheInfo, Usage
from ._objects import CacheMethods, Centres, Codebook, Router
from ._policy import Policy
from ._sequence import Sequence
from ._text import value_of

Sequences = Union[Sequence, Many[Sequence]]


def cache_options(rope: Union[str, int], inv_freq: Any, **numbers: Any) -> _native.kvq_cache_options:
    """Options without handles; they keep `inv_freq` alive."""
    options = initialised(_native.kvq_cache_options, **numbers, rope=value_of(_native.kvq_rope, "rope", rope))
    if inv_freq is not None:
        view = dense_of("inv_freq", inv_freq, [(options.rotary_dim or options.head_dim) // 2], "f32", HOST)
        options.inv_freq = view.address
        options.owner = view
    return options


class Cache(CacheMethods):
    """The attention layers of one model; owns the page formats and the workspace of ``attend``.

    :param q_heads: query heads, a multiple of `kv_heads`.
    :param head_dim: a multiple of 8, 8 … 256.
    :param rope: rotary embedding that the library applies to queries and keys: "half", "interleaved" or "none".
    :param rotary_dim: leading channels that are rotated; 0: all.
    :param inv_freq: radians per position, float32 in host memory; None: ``rope_base ** (-2 * j / rotary_dim)``.
    :param scale: factor on q·k; 0: ``1 / sqrt(head_dim)``.
    :param max_bytes: limit on the memory that this cache allocates; 0: only the context's limit.
    :param model_id: any number that identifies the model's weights.
    :param codebook: codebook for the format "commvq".
    :param router: router for a policy with `router`.
    :param policy: a ``Policy``, or its text; None: fp16.
    :param centres: centres for formats with trained centres.
    """

    _new = _native.kvq_cache
    _destroy = _native.kvq_cache_destroy

    def __init__(
        self,
        context: Context,
        n_layers: int,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        rope: Union[str, int] = "half",
        rotary_dim: int = 0,
        rope_base: float = 10000.0,
        inv_freq: Any = None,
        scale: float = 0.0,
        max_bytes: int = 0,
        model_id: int = 0,
        codebook: Optional[Codebook] = None,
        router: Optional[Router] = None,
        policy: Union[str, bytes, Policy, None] = None,
        centres: Optional[Centres] = None,
    ) -> None:
        shape = {"n_layers": n_layers, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": scale}
        rotary = {"rotary_dim": rotary_dim, "rope_base": rope_base, "max_bytes": max_bytes, "model_id": model_id}
        options = cache_options(rope, inv_freq, **shape, **rotary)
        Context._given("context", context)
        used = Policy(context, policy) if isinstance(policy, (str, bytes)) else Policy._given_or_none("policy", policy)
        given = (
            Codebook._given_or_none("codebook", codebook),
            Centres._given_or_none("centres", centres),
            Router._given_or_none("router", router),
        )
        with reading(context, *given, used) as (pointer, *trained, formats):
            options.codebook, options.centres, options.router = trained
            self._create(context._hooks, _native.kvq_cache_create, pointer, byref(options), formats)
        self.context = context
        self._device = context._device
        self._sequences: WeakSet[Sequence] = WeakSet()
        self._sequences_lock = Lock()
        info = self._info = self.describe()
        self._q_heads, self._kv_heads, self._head_dim = info.q_heads, info.kv_heads, info.head_dim
        self._evicts = info.eviction_budget > 0
        # Prepared calls, one per thread inside a call: pop and append of a list are atomic.
        self._appending: List[Prepared] = []
        self._attending: List[Prepared] = []

    def describe(self) -> CacheInfo:
        """Options that the cache was created with, defaults filled in."""
        return self._described(_native.kvq_cache_describe, _native.kvq_cache_info, CacheInfo._of)

    def sequence(self) -> Sequence:
        """Create an empty sequence."""
        with self._shared() as pointer:
            return Sequence._made(self, _native.kvq_sequence_create, pointer)

    def load(self, data: Data) -> Sequence:
        """Create a sequence from a snapshot that ``Sequence.save`` returned."""
        address, size, _view = bytes_of("data", data)
        with self._shared() as pointer:
            return Sequence._made(self, _native.kvq_sequence_load, pointer, address, size)

    def predict_usage(self, sequences: int, tokens: int, queries: int = 0) -> Usage:
        """Predict, to the byte, the ``usage`` of a cache that holds only new sequences; nothing is allocated.

        :param sequences: at least 1.
        :param tokens: tokens per sequence, for which pages were reserved.
        :param queries: queries per sequence that attended in one batch; 0: none.
        """
        function = _native.kvq_cache_predict_usage
        return self._described(function, _native.kvq_usage, Usage._of, sequences, tokens, queries)

    def usage(self) -> Usage:
        """Bytes used by the whole cache, with shared pages counted once."""
        with self._sequences_lock:
            living = sorted(self._sequences, key=id)
        stopped: List[Sequence] = []
        try:
            for one in living:
                one._stop_others()
                stopped.append(one)
            return self._described(_native.kvq_cache_usage, _native.kvq_usage, Usage._of, None)
        finally:
            leave_alone(stopped)

    def append(
        self,
        layer: int,
        sequences: Sequences,
        k: Any,
        v: Any,
        token_counts: Any = None,
        positions: Any = None,
        dtype: Optional[str] = None,
    ) -> None:
        """Append tokens to one layer of several sequences: to all of them, or to none.

        :param k: keys ``[tokens, kv_heads, head_dim]``, ordered by sequence, before RoPE unless the cache was created
            with rope "none". Tokens and heads may be strided, as in a view of fused queries, keys and values; the
            channels of a head must be contiguous. A CUDA context takes device memory and reads it in stream order.
        :param v: values, same shape and element type.
        :param token_counts: tokens per sequence; None: one each.
        :param positions: original positions, increasing; None: consecutive.
        :param dtype: "bf16" if arrays of uint16 hold bfloat16.
        """
        many = [sequences] if isinstance(sequences, Sequence) else Sequence._all_given("sequences", sequences)
        if not many:
            raise KvqArgumentError("sequences is empty")
        counts = integers("token_counts", token_counts, len(many))
        self._append(layer, many, counts, len(many) if counts is None else sum(counts), k, v, positions, dtype)

    def _append(
        self,
        layer: int,
        sequences: Many[Sequence],
        counts: Optional["array[int]"],
        tokens: Optional[int],
        k: Any,
        v: Any,
        positions: Any,
        dtype: Optional[str],
    ) -> None:
        """Like ``append``; with None as the number of tokens, one sequence gets all of them."""
        require_fit("layer", layer)
        keys = rows_of("k", k, dtype, self._device, tokens, self._kv_heads, self._head_dim)
        values = rows_of("v", v, dtype, self._device, keys.tokens, self._kv_heads, self._head_dim)
        if keys.dtype != values.dtype:
            raise KvqArgumentError("k and v have different element types")
        if tokens is None:
            counts = array("i", (keys.tokens,))
        places = integers("positions", positions, keys.tokens)
        try:
            prepared = self._appending.pop()
        except IndexError:
            prepared = Prepared(_native.kvq_append_batch)
        batch = prepared.batch
        entered = enter_alone(sequences)
        try:
            prepared.set_sequences(sequences)
            batch.token_counts = address_of(counts)
            batch.positions = address_of(places)
            batch.k, batch.k_token_stride, batch.k_head_stride, batch.dtype, _, _ = keys
            batch.v, batch.v_token_stride, batch.v_head_stride, _, _, _ = values
            pointer = self._enter()
            try:
                status = _native.kvq_append_sequences(
                    pointer, layer, prepared.batch_reference, prepared.error_reference
                )
            finally:
                self._leave()
            if status != 0:
                raise failure(status, prepared.error)
        finally:
            leave_alone(entered)
            self._appending.append(prepared)
            if self._hooks is not None:
                self._hooks.finish()

    def attend(
        self,
        layer: int,
        sequences: Sequences,
        q: Any,
        query_counts: Any = None,
        query_positions: Any = None,
        output: Any = None,
        sliding_window: int = 0,
        logit_softcap: float = 0.0,
        lse: Any = None,
        sinks: Any = None,
        dtype: Optional[str] = None,
    ) -> Any:
        """Compute attention of a batch of queries over one layer.

        :param q: queries ``[queries, q_heads, head_dim]``, ordered by sequence, strided like `k` of ``append``.
        :param query_counts: queries per sequence; None: one each.
        :param query_positions: None: the last tokens of each sequence, so append before attending.
        :param output: array ``[queries, q_heads, head_dim]`` to write to; its element type may differ from that of `q`.
            None: a new array like `q`.
        :param sliding_window: a query at position p sees positions > p − window; 0: all.
        :param logit_softcap: cap·tanh(logit / cap); 0: none.
        :param lse: True, or a contiguous float32 array ``[queries, q_heads]``: also return the log-sum-exp of the
            logits, with which results over parts of a context can be merged.
        :param sinks: contiguous float32 array ``[q_heads]`` of learned logits.
        :param dtype: "bf16" if arrays of uint16 hold bfloat16.
        :returns: the output, or (output, lse) if `lse` was given.
        """
        many = [sequences] if isinstance(sequences, Sequence) else Sequence._all_given("sequences", sequences)
        if not many:
            raise KvqArgumentError("sequences is empty")
        counts = integers("query_counts", query_counts, len(many))
        queries = len(many) if counts is None else sum(counts)
        places = integers("query_positions", query_positions, queries)
        require_fit("layer", layer)
        require_fit("sliding_window", sliding_window)
        heads, device = self._q_heads, self._device
        rows = rows_of("q", q, dtype, device, queries, heads, self._head_dim)
        if output is None:
            output = empty_like(q, (queries, heads, self._head_dim))
        out = rows_of("output", output, dtype, device, queries, heads, self._head_dim, True)
        lse_view = sinks_view = None
        if lse is not None and lse is not False:
            if lse is True:
                lse = empty_like(q, (queries, heads), "f32")
            lse_view = dense_of("lse", lse, (queries, heads), "f32", device, True)
        if sinks is not None:
            sinks_view = dense_of("sinks", sinks, (heads,), "f32", device)
            refuse_gradient("sinks", sinks_view)
        try:
            prepared = self._attending.pop()
        except IndexError:
            prepared = Prepared(_native.kvq_attend_batch)
        batch = prepared.batch
        entered = enter_alone(many) if self._evicts else enter_shared(many)
        try:
            prepared.set_sequences(many)
            batch.query_counts = address_of(counts)
            batch.query_positions = address_of(places)
            batch.q, batch.q_token_stride, batch.q_head_stride, batch.q_dtype, _, _ = rows
            batch.output, batch.output_token_stride, batch.output_head_stride, batch.output_dtype, _, _ = out
            batch.sliding_window = sliding_window
            batch.logit_softcap = logit_softcap
            batch.lse = None if lse_view is None else lse_view.address
            batch.sinks = None if sinks_view is None else sinks_view.address
            pointer = self._enter()
            try:
                status = _native.kvq_attend(pointer, layer, prepared.batch_reference, prepared.error_reference)
            finally:
                self._leave()
            if status != 0:
                raise failure(status, prepared.error)
        finally:
            leave_alone(entered) if self._evicts else leave_shared(entered)
            self._attending.append(prepared)
            if self._hooks is not None:
                self._hooks.finish()
        return output if lse_view is None else (output, lse)
