"""Caches: the attention layers of one model."""

from __future__ import annotations

from array import array
from contextlib import contextmanager
from ctypes import byref, sizeof
from threading import Lock
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union
from typing import Sequence as Many
from weakref import WeakSet

from . import _native
from ._arrays import HOST, Rows, View, address_of, bytes_of, dense_of, empty_like, integers, refuse_gradient, rows_of
from ._batches import Calls, Prepared, Queries
from ._centres import Centres
from ._context import Context
from ._errors import KvqArgumentError, failure, initialised, require_fit
from ._handle import Data, enter_alone, enter_shared, leave_alone, leave_shared, reading
from ._infos import CacheInfo, LayerInfo, SnapshotInfo, Usage
from ._objects import CacheMethods, Codebook, Router
from ._policy import PolicyOrText, policy_of
from ._pool import BlockLayout, block_layout
from ._sequence import Sequence
from ._shapes import LayerShape, set_shapes
from ._step import Step
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
    :param head_dim: channels of keys and of values, a multiple of 8, 8 … 512.
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
    :param shapes: layers that differ from the others: Gemma's global ones, layers without RoPE.
    :param sliding_window: positions that a query sees, up to its own; pages that no later query sees are freed. 0: all.
    :param attention_chunk: queries see positions of their chunk of so many, in the same way. 0: all.
    :param mrope_section: for M-RoPE, as in Qwen2-VL: how many pairs of channels turn by the temporal position, by the
        height and by the width, which calls take as `rope_positions`. They add up to all rotated pairs, and the cache
        takes no codebook, no router and no trained centres. None: all pairs turn by the position of the token.
    :param mrope_interleaved: pairs of the three alternate, as in Qwen3-VL; False: they follow one another.
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
        policy: PolicyOrText = None,
        centres: Optional[Centres] = None,
        shapes: Many[LayerShape] = (),
        sliding_window: int = 0,
        attention_chunk: int = 0,
        mrope_section: Optional[Many[int]] = None,
        mrope_interleaved: bool = False,
    ) -> None:
        shape = {"n_layers": n_layers, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": scale}
        rotary = {"rotary_dim": rotary_dim, "rope_base": rope_base, "max_bytes": max_bytes, "model_id": model_id}
        windows = {"sliding_window": sliding_window, "attention_chunk": attention_chunk}
        options = cache_options(rope, inv_freq, **shape, **rotary, **windows)
        of_shapes = set_shapes(options, shapes)
        sections = integers("mrope_section", mrope_section, 3)
        options.mrope_section = address_of(sections)
        options.mrope_interleaved = 1 if mrope_interleaved else 0
        Context._given("context", context)
        used = policy_of(context, policy)
        given = (
            Codebook._given_or_none("codebook", codebook),
            Centres._given_or_none("centres", centres),
            Router._given_or_none("router", router),
        )
        with reading(context, *given, used) as (pointer, *trained, formats):
            options.codebook, options.centres, options.router = trained
            self._create(context._hooks, _native.kvq_cache_create, pointer, byref(options), formats)
        del of_shapes, sections  # until here the options point to them
        self.context = context
        self._device = context._device
        self._sequences: WeakSet[Sequence] = WeakSet()
        self._sequences_lock = Lock()
        info = self._info = self.describe()
        self._layers: Dict[int, LayerInfo] = {}
        self._evicts = info.eviction_budget > 0
        self._appending = Calls(_native.kvq_append_batch, _native.kvq_append_sequences)
        self._attending = Calls(_native.kvq_attend_batch, _native.kvq_attend)
        self._extending = Calls(_native.kvq_extend_batch, _native.kvq_extend)

    def describe(self) -> CacheInfo:
        """Options that the cache was created with, defaults filled in."""
        return self._described(_native.kvq_cache_describe, _native.kvq_cache_info, CacheInfo._of)

    def block_layout(self, layer: int, block_tokens: int = 32) -> BlockLayout:
        """Sizes of a layer's blocks and tails in a ``Pool``."""
        return block_layout(self, layer, block_tokens)

    def sequence(self) -> Sequence:
        """Create an empty sequence."""
        with self._shared() as pointer:
            return Sequence._made(self, _native.kvq_sequence_create, pointer)

    def save(self, sequences: Sequences) -> bytes:
        """Write a snapshot of several sequences, all different, for ``load``.

        Pages that they share, as forks do, are written once, and shared again where they are loaded. The snapshot of
        one sequence is that of ``Sequence.save``.
        """
        many = self._given_sequences(sequences)
        kind: Any = _native.kvq_sequence * len(many)
        with self._shared() as pointer, reading(*many) as handles:
            return self._saved(_native.kvq_cache_save, pointer, kind(*handles), len(many))

    def load(self, data: Data, policy: PolicyOrText = None, recode: bool = False) -> List[Sequence]:
        """Create all sequences of a snapshot, in their order, or none.

            parent, fork = other.load(cache.save([parent, fork]))

        :param data: what ``save`` or ``Sequence.save`` returned.
        :param policy: the sequences' policy, as for ``Sequence.recode``: a ``Policy``, or its text; None: the cache's.
        :param recode: pages in other formats than the policy's are written anew; False: they raise KvqMismatchError.
        """
        address, size, _view = bytes_of("data", data)
        with self._loading(policy, recode) as options:
            n = self._contents(address, size, options).n_sequences
            return Sequence._all_loaded(self, n, address, size, options)

    def load_sequence(self, data: Data) -> Sequence:
        """Create the sequence of a snapshot that ``Sequence.save`` returned."""
        address, size, _view = bytes_of("data", data)
        with self._shared() as pointer:
            return Sequence._made(self, _native.kvq_sequence_load, pointer, address, size)

    def describe_snapshot(self, data: Data, policy: PolicyOrText = None, recode: bool = False) -> SnapshotInfo:
        """What a snapshot holds, and what ``load`` takes with the same arguments."""
        address, size, _view = bytes_of("data", data)
        with self._loading(policy, recode) as options:
            return self._contents(address, size, options)

    @contextmanager
    def _loading(self, policy: PolicyOrText, recode: bool) -> Iterator[_native.kvq_load_options]:
        """Options for loading while the cache and the policy are in use."""
        used = policy_of(self.context, policy)
        options = initialised(_native.kvq_load_options, recode=1 if recode else 0)
        with reading(self, used) as (_, formats):
            options.policy = formats
            yield options

    def _contents(self, address: int, size: int, options: _native.kvq_load_options) -> SnapshotInfo:
        info = _native.kvq_snapshot_info(sizeof(_native.kvq_snapshot_info))
        self._call(_native.kvq_snapshot_describe, self._pointer, address, size, byref(options), byref(info))
        return SnapshotInfo._of(info)

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
        v: Any = None,
        token_counts: Any = None,
        positions: Any = None,
        dtype: Optional[str] = None,
        rope_positions: Any = None,
    ) -> None:
        """Append tokens to one layer of several sequences: to all of them, or to none.

        ``extend`` also attends, and loses less for chunks of a prompt.

        :param k: keys ``[tokens, kv_heads, key_dim]``, ordered by sequence, before RoPE unless the cache was created
            with rope "none". Tokens and heads may be strided, as in a view of fused queries, keys and values; the
            channels of a head must be contiguous. A CUDA context takes device memory and reads it in stream order.
        :param v: values ``[tokens, kv_heads, value_dim]`` of the same element type; None exactly if the layer's values
            are a prefix of its keys.
        :param token_counts: tokens per sequence; None: one each.
        :param positions: original positions, increasing; None: consecutive.
        :param dtype: "bf16" if arrays of uint16 hold bfloat16.
        :param rope_positions: contiguous array of int32 ``[tokens, 3]`` where the context computes, for a cache with
            `mrope_section`: the temporal position, height and width by which a key turns. `positions` still say which
            tokens a query sees. None: all three are the token's position.
        """
        many = self._given_sequences(sequences)
        counts = integers("token_counts", token_counts, len(many))
        tokens = len(many) if counts is None else sum(counts)
        self._append(layer, many, counts, tokens, k, v, positions, dtype, rope_positions)

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
        rope_positions: Any = None,
    ) -> None:
        """Like ``append``; with None as the number of tokens, one sequence gets all of them."""
        require_fit("layer", layer)
        keys, values = self._checked_tokens(layer, k, v, tokens, dtype)
        if tokens is None:
            counts = array("i", (keys.tokens,))
        places = integers("positions", positions, keys.tokens)
        streams = self._checked_streams(rope_positions, keys.tokens)
        prepared = self._appending.take()
        prepared.batch.token_counts = address_of(counts)
        prepared.batch.positions = address_of(places)
        prepared.set_streams(streams)
        prepared.set_tokens(keys, values)
        self._run(self._appending, prepared, layer, sequences, True)

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
        mask: Any = None,
        mask_slots: int = 0,
        rope_positions: Any = None,
    ) -> Any:
        """Compute attention of a batch of queries over one layer.

        :param q: queries ``[queries, q_heads, key_dim]``, ordered by sequence, strided like `k` of ``append``.
        :param query_counts: queries per sequence; None: one each.
        :param query_positions: None: the last tokens of each sequence, so append before attending.
        :param output: array ``[queries, q_heads, value_dim]`` to write to; its element type may differ from `q`'s.
            None: a new array like `q`.
        :param sliding_window: a query at position p sees positions > p − window; 0: all.
        :param logit_softcap: cap·tanh(logit / cap); 0: none.
        :param lse: True, or a contiguous float32 array ``[queries, q_heads]``: also return the log-sum-exp of the
            logits, with which results over parts of a context can be merged.
        :param sinks: contiguous float32 array ``[q_heads]`` of learned logits.
        :param dtype: "bf16" if arrays of uint16 hold bfloat16.
        :param mask: contiguous array of uint32 or int32 ``[queries, (mask_slots + 31) // 32]``: bit j % 32 of word
            j // 32 says whether the query sees slot length − mask_slots + j, in the order of appending; older ones are
            seen by position.
        :param mask_slots: newest slots of each sequence that `mask` covers, at most 1024.
        :param rope_positions: contiguous array of int32 ``[queries, 3]`` by which queries turn, as for ``append``.
            None: all three are the query's position.
        :returns: the output, or (output, lse) if `lse` was given.
        """
        many = self._given_sequences(sequences)
        counts = integers("query_counts", query_counts, len(many))
        queries = len(many) if counts is None else sum(counts)
        places = integers("query_positions", query_positions, queries)
        require_fit("layer", layer)
        require_fit("sliding_window", sliding_window)
        require_fit("mask_slots", mask_slots)
        checked = self._checked_queries(layer, q, queries, output, lse, sinks, dtype, mask, mask_slots)
        streams = self._checked_streams(rope_positions, queries)
        prepared = self._attending.take()
        prepared.batch.query_counts = address_of(counts)
        prepared.batch.query_positions = address_of(places)
        prepared.set_streams(streams)
        prepared.set_queries(checked, sliding_window, logit_softcap, mask_slots)
        self._run(self._attending, prepared, layer, many, self._evicts)
        return checked.result

    def extend(
        self,
        layer: int,
        sequences: Sequences,
        k: Any,
        v: Any,
        q: Any,
        token_counts: Any = None,
        positions: Any = None,
        output: Any = None,
        sliding_window: int = 0,
        logit_softcap: float = 0.0,
        lse: Any = None,
        sinks: Any = None,
        dtype: Optional[str] = None,
        mask: Any = None,
        mask_slots: int = 0,
        rope_positions: Any = None,
    ) -> Any:
        """Append tokens to one layer of several sequences and attend with their queries: all of it, or nothing.

        Queries see the new tokens up to their own as they are given, rounded to FP16, and older ones as they are
        stored. So a prompt loses no more in long chunks than token by token.

        :param k: keys, as for ``append``, like `v`, `token_counts`, `positions` and `rope_positions`, by which queries
            turn, too.
        :param q: queries ``[tokens, q_heads, key_dim]``, as for ``attend``, like the other parameters.
        :returns: the output, or (output, lse) if `lse` was given.
        """
        many = self._given_sequences(sequences)
        counts = integers("token_counts", token_counts, len(many))
        tokens = len(many) if counts is None else sum(counts)
        places = integers("positions", positions, tokens)
        require_fit("layer", layer)
        require_fit("sliding_window", sliding_window)
        require_fit("mask_slots", mask_slots)
        keys, values = self._checked_tokens(layer, k, v, tokens, dtype)
        checked = self._checked_queries(layer, q, tokens, output, lse, sinks, dtype, mask, mask_slots)
        streams = self._checked_streams(rope_positions, tokens)
        prepared = self._extending.take()
        prepared.batch.token_counts = address_of(counts)
        prepared.batch.positions = address_of(places)
        prepared.set_streams(streams)
        prepared.set_tokens(keys, values)
        prepared.set_queries(checked, sliding_window, logit_softcap, mask_slots)
        self._run(self._extending, prepared, layer, many, True)
        return checked.result

    def step(self, sequences: Sequences, token_counts: Any = None) -> Step:
        """A step of some sequences: appends to all layers that are kept together, or taken back.

            with cache.step(sequences, [5, 5]) as step:     # four draft tokens, and the one before them
                for layer in range(n_layers):
                    output = cache.extend(layer, sequences, k, v, q, token_counts=[5, 5])
                step.commit([3, 1])                         # accepted tokens

        The ``with`` statement begins it, and preallocates what the tokens can need in all layers. Its end commits all
        tokens, an exception aborts. Inside, the sequences take appends, extensions, attention, and calls that only
        read; others, such as ``truncate``, ``fork``, ``save`` and ``recode``, raise KvqStateError. No other thread may
        use them.

        :param token_counts: tokens per sequence that a layer takes at most; None: one each.
        """
        return Step(self, self._given_sequences(sequences), token_counts)

    def _given_sequences(self, sequences: Sequences) -> Many[Sequence]:
        many = [sequences] if isinstance(sequences, Sequence) else Sequence._all_given("sequences", sequences)
        if not many:
            raise KvqArgumentError("sequences is empty")
        return many

    def _layer(self, layer: int) -> LayerInfo:
        """Shape of a layer with tokens, which never changes."""
        info = self._layers.get(layer)
        if info is None:
            info = self._layers[layer] = self.describe_layer(layer)
        if info.recurrent:
            raise KvqArgumentError("layer is %d, which is recurrent and holds no tokens" % layer)
        return info

    def _checked_tokens(
        self, layer: int, k: Any, v: Any, tokens: Optional[int], dtype: Optional[str]
    ) -> Tuple[Rows, Optional[Rows]]:
        """Keys and, unless they contain them, values; None accepts any number of tokens."""
        shape = self._layer(layer)
        keys = rows_of("k", k, dtype, self._device, tokens, shape.kv_heads, shape.key_dim)
        if shape.values_are_key_prefix:
            if v is not None:
                raise KvqArgumentError("v is given, must be None: values of layer %d are a prefix of its keys" % layer)
            return keys, None
        if v is None:
            raise KvqArgumentError("v is None, must be given: values of layer %d are no prefix of its keys" % layer)
        values = rows_of("v", v, dtype, self._device, keys.tokens, shape.kv_heads, shape.value_dim)
        if keys.dtype != values.dtype:
            raise KvqArgumentError("k and v have different element types")
        return keys, values

    def _checked_queries(
        self,
        layer: int,
        q: Any,
        queries: int,
        output: Any,
        lse: Any,
        sinks: Any,
        dtype: Optional[str],
        mask: Any,
        mask_slots: int,
    ) -> Queries:
        """Queries, and where their results go: new arrays where none are given."""
        shape, device = self._layer(layer), self._device
        heads = shape.q_heads
        rows = rows_of("q", q, dtype, device, queries, heads, shape.key_dim)
        if output is None:
            output = empty_like(q, (queries, heads, shape.value_dim))
        out = rows_of("output", output, dtype, device, queries, heads, shape.value_dim, True)
        lse_view = sinks_view = mask_view = None
        if lse is not None and lse is not False:
            if lse is True:
                lse = empty_like(q, (queries, heads), "f32")
            lse_view = dense_of("lse", lse, (queries, heads), "f32", device, True)
        if sinks is not None:
            sinks_view = dense_of("sinks", sinks, (heads,), "f32", device)
            refuse_gradient("sinks", sinks_view)
        if mask is not None:
            mask_view = dense_of("mask", mask, (queries, (max(mask_slots, 0) + 31) // 32), None, device)
            if mask_view.dtype not in ("u32", "i32"):
                raise KvqArgumentError("mask has elements of %s, must be uint32 or int32" % mask_view.dtype)
        return Queries(rows, out, lse_view, sinks_view, mask_view, output if lse_view is None else (output, lse))

    def _checked_streams(self, rope_positions: Any, tokens: int) -> Optional[View]:
        """Positions by which M-RoPE turns keys or queries."""
        if rope_positions is None:
            return None
        return dense_of("rope_positions", rope_positions, (tokens, 3), "i32", self._device)

    def _run(self, calls: Calls, prepared: Prepared, layer: int, sequences: Many[Sequence], alone: bool) -> None:
        """Make a call for which everything but the sequences is set; `alone` says that it changes them."""
        entered = enter_alone(sequences) if alone else enter_shared(sequences)
        try:
            prepared.set_sequences(sequences)
            pointer = self._enter()
            try:
                status = calls.function(pointer, layer, prepared.batch_reference, prepared.error_reference)
            finally:
                self._leave()
            if status != 0:
                raise failure(status, prepared.error)
        finally:
            leave_alone(entered) if alone else leave_shared(entered)
            calls.give_back(prepared)
            if self._hooks is not None:
                self._hooks.finish()
