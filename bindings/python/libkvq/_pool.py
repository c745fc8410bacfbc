"""Pools: tokens in memory of an engine, found by its block tables."""

from __future__ import annotations

from ctypes import addressof, byref, c_void_p, sizeof
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Tuple
from typing import Sequence as Many

from . import _native
from ._arrays import HOST, View, bytes_of, check_place, dense_of, shown, view_of
from ._batches import Prepared
from ._errors import KvqArgumentError, call, failure, initialised, require_fit
from ._handle import Data, Handle
from ._library import Function
from ._objects import PoolMethods

if TYPE_CHECKING:
    from ._cache import Cache

#: Names of element types of one byte.
_BYTES = ("uint8", "int8", "bool", "|u1", "|i1", "|b1", "B", "b", "c")


class BlockLayout(NamedTuple):
    """Sizes of a layer's memory in a pool."""

    block_bytes: int
    """One block: the pages of all KV heads; 0 for a layer without tokens of its own."""
    tail_bytes: int
    """One tail; 0: the layer needs none."""
    alignment: int
    """Of the memory of blocks and tails, and of their strides."""


def block_layout(cache: Cache, layer: int, block_tokens: int) -> BlockLayout:
    """Sizes of a layer's blocks and tails."""
    layout = _native.kvq_block_layout(sizeof(_native.kvq_block_layout))
    with cache._shared() as pointer:
        call(_native.kvq_pool_layout, pointer, layer, block_tokens, byref(layout))
    return BlockLayout(layout.block_bytes, layout.tail_bytes, layout.alignment)


def _rows_of_bytes(name: str, x: Any, bytes_of_row: int, device: int) -> View:
    """Check an array `[n, bytes]` whose rows have room for so many."""
    view = view_of(name, x)
    if view.dtype not in _BYTES:
        raise KvqArgumentError("%s has elements of %s, must be bytes (uint8)" % (name, view.dtype))
    if len(view.shape) != 2 or view.shape[1] < bytes_of_row:
        raise KvqArgumentError(
            "%s has the shape %s, must be [n, %d] or wider" % (name, shown(view.shape), bytes_of_row)
        )
    if view.strides[1] != 1:
        raise KvqArgumentError(
            "%s has bytes %d apart, must be contiguous along its last axis" % (name, view.strides[1])
        )
    check_place(name, view, device, True)
    return view


class Pool(PoolMethods):
    """Blocks of `block_tokens` tokens in memory of the caller, for the layers and formats of a cache without sequences.

    A full page of 32 tokens is encoded in its block by the call that brings its last token; the newest two pages are in
    FP16 in a tail, of which each growing sequence has one. Full blocks may be shared by any number of sequences.

    :param block_tokens: a multiple of 32.
    :param blocks: for each layer an array of bytes ``[n_blocks, block_bytes]``, where the context computes, or a list
        of several, through which blocks are numbered; None for a layer without tokens of its own. Rows may be wider,
        and strided; ``Cache.block_layout`` has the sizes.
    :param tails: for each layer an array of bytes ``[n_tails, tail_bytes]``, or None if the layer needs none.
    """

    _new = _native.kvq_pool
    _destroy = _native.kvq_pool_destroy

    def __init__(self, cache: Cache, block_tokens: int, blocks: Many[Any], tails: Optional[Many[Any]] = None) -> None:
        from ._cache import Cache  # whose module needs this one

        Cache._given("cache", cache)
        n_layers = cache._info.n_layers
        for name, given in (("blocks", blocks), ("tails", tails)):
            if given is not None and len(given) != n_layers:
                raise KvqArgumentError(
                    "%s has %d entries, must have one for each of %d layers" % (name, len(given), n_layers)
                )
        layouts = [block_layout(cache, layer, block_tokens) for layer in range(n_layers)]
        options = initialised(_native.kvq_pool_options, block_tokens=block_tokens, n_layers=n_layers)
        self._owners: List[Any] = []
        ranges = [self._ranges(cache, layer, blocks[layer], layouts[layer]) for layer in range(n_layers)]
        options.n_ranges = max(len(each) for each in ranges)
        empty = initialised(_native.kvq_block_range)
        flat = [one for each in ranges for one in (each or [empty] * options.n_ranges)]
        if len(flat) != n_layers * options.n_ranges:
            raise KvqArgumentError("blocks has layers with different numbers of arrays")
        kind: Any = _native.kvq_block_range * len(flat)
        of_ranges = kind(*flat)
        options.ranges = of_ranges
        pointers: Any = (c_void_p * n_layers)()
        for layer, layout in enumerate(layouts):
            if layout.tail_bytes == 0 or tails is None:
                continue
            view = _rows_of_bytes("tails[%d]" % layer, tails[layer], layout.tail_bytes, cache._device)
            self._owners.append(view)
            pointers[layer] = view.address
            stride = view.strides[0] if view.shape[0] > 1 else 0
            if options.n_tails not in (0, view.shape[0]) or options.tail_stride not in (0, stride) and stride != 0:
                raise KvqArgumentError("tails[%d] has another number or stride than those before" % layer)
            options.n_tails, options.tail_stride = view.shape[0], stride or options.tail_stride
        options.tails = addressof(pointers)
        with cache._shared() as pointer:
            self._create(cache._hooks, _native.kvq_pool_create, pointer, byref(options))
        self.cache = cache
        self.block_tokens = block_tokens

    def _ranges(self, cache: Cache, layer: int, given: Any, layout: BlockLayout) -> List[Any]:
        if given is None or layout.block_bytes == 0:
            return []
        found = []
        for i, each in enumerate(given if isinstance(given, (list, tuple)) else [given]):
            view = _rows_of_bytes("blocks[%d][%d]" % (layer, i), each, layout.block_bytes, cache._device)
            self._owners.append(view)
            stride = view.strides[0] if view.shape[0] > 1 else layout.block_bytes
            found.append(initialised(_native.kvq_block_range, n_blocks=view.shape[0], data=view.address, stride=stride))
        return found

    def write_block(self, layer: int, block: int, data: Data) -> None:
        """Write a block from bytes of ``read_block``; numbers that no encoder writes raise KvqFormatError."""
        address, size, _view = bytes_of("data", data)
        with self._alone() as pointer:
            self._call(_native.kvq_pool_write_block, pointer, layer, block, address, size)

    def plan(self, max_sequences: int, max_tokens: int, max_blocks: int, max_queries: int = 0) -> PoolPlan:
        """Memory for the calls of one thread at a time.

        :param max_tokens: new tokens of all sequences of a batch.
        :param max_blocks: blocks of one sequence.
        :param max_queries: new tokens of one sequence; 0: as many as `max_tokens`.
        """
        return PoolPlan(self, max_sequences, max_tokens, max_blocks, max_queries)


class PoolPlan(Handle):
    """Memory for calls on a pool, and the batch that they work on, from ``Pool.plan``."""

    _new = _native.kvq_pool_plan
    _destroy = _native.kvq_pool_plan_destroy

    def __init__(self, pool: Pool, max_sequences: int, max_tokens: int, max_blocks: int, max_queries: int = 0) -> None:
        Pool._given("pool", pool)
        limits = initialised(
            _native.kvq_pool_limits,
            max_sequences=max_sequences,
            max_tokens=max_tokens,
            max_blocks=max_blocks,
            max_queries=max_queries,
        )
        with pool._shared() as pointer:
            self._create(pool._hooks, _native.kvq_pool_plan_create, pointer, byref(limits))
        self.pool = pool
        self._n_tokens = 0
        self._arrays: Tuple[View, ...] = ()
        self._prepared = _PoolPrepared(_native.kvq_pool_call)

    @property
    def bytes(self) -> int:
        """What the plan has allocated."""
        with self._shared() as pointer:
            return int(_native.kvq_pool_plan_bytes(pointer))

    def batch(
        self,
        query_starts: Any,
        lengths: Any,
        block_table: Any,
        tails: Any = None,
        n_tokens: Optional[int] = None,
        max_queries: int = 0,
        max_length: int = 0,
    ) -> None:
        """Find the pages of sequences, once for the calls on all layers.

        All arrays are contiguous int32, but for the rows of the table, where the context computes. On a GPU they are
        read in stream order, and may change in place between replays of a CUDA graph.

        :param query_starts: ``[sequences + 1]``: the first row of each sequence in the tensors of calls, and the end.
        :param lengths: ``[sequences]``: tokens, new ones included.
        :param block_table: ``[sequences, n]``: numbers of each sequence's blocks.
        :param tails: ``[sequences]``: the tail of each sequence; None if no layer has tails.
        :param n_tokens: rows of the tensors; None: the last of `query_starts`, which has to be in host memory.
        :param max_queries: most new tokens of a sequence; 0: the plan's limit.
        :param max_length: tokens of the longest sequence; 0: the plan's limit.
        """
        device = self.pool.cache._device
        starts = dense_of("query_starts", query_starts, [None], "i32", device)
        n = starts.shape[0] - 1
        if n < 1:
            raise KvqArgumentError("query_starts has %d numbers, must have at least 2" % (n + 1))
        of_lengths = dense_of("lengths", lengths, [n], "i32", device)
        table = view_of("block_table", block_table)
        if len(table.shape) != 2 or table.shape[0] != n or table.dtype != "i32" or table.strides[1] != 1:
            raise KvqArgumentError(
                "block_table has the shape %s and elements of %s, must be int32 [%d, n], contiguous along its last axis"
                % (shown(table.shape), table.dtype, n)
            )
        check_place("block_table", table, device)
        of_tails = None if tails is None else dense_of("tails", tails, [n], "i32", device)
        if n_tokens is None:
            if device != HOST:
                raise KvqArgumentError("n_tokens is None, must be given: query_starts is in device memory")
            n_tokens = int(query_starts[n])
        require_fit("n_tokens", n_tokens)
        batch = initialised(
            _native.kvq_pool_batch,
            n_sequences=n,
            n_tokens=n_tokens,
            max_queries=max_queries,
            max_length=max_length,
            query_starts=starts.address,
            lengths=of_lengths.address,
            block_table=table.address,
            table_stride=table.strides[0] if n > 1 else max(table.shape[1], 1),
            tails=None if of_tails is None else of_tails.address,
        )
        with self._alone() as pointer:
            self._n_tokens = 0
            self._call(_native.kvq_pool_plan_batch, pointer, byref(batch))
            self._n_tokens = n_tokens
            self._arrays = tuple(one for one in (starts, of_lengths, table, of_tails) if one is not None)

    def append(self, layer: int, k: Any, v: Any = None, dtype: Optional[str] = None) -> None:
        """Store the new tokens of the batch in a layer: `k` and `v` as for ``Cache.append``."""
        require_fit("layer", layer)
        keys, values = self.pool.cache._checked_tokens(layer, k, v, self._n_tokens or None, dtype)
        self._prepared.set_tokens(keys, values)
        self._run(_native.kvq_pool_append, layer)

    def attend(
        self,
        layer: int,
        q: Any,
        output: Any = None,
        sliding_window: int = 0,
        logit_softcap: float = 0.0,
        lse: Any = None,
        sinks: Any = None,
        dtype: Optional[str] = None,
        mask: Any = None,
        mask_slots: int = 0,
    ) -> Any:
        """Attend with the queries of the batch's newest tokens, which the layer holds: parameters as for
        ``Cache.attend``.

        :returns: the output, or (output, lse) if `lse` was given.
        """
        return self._queries(
            _native.kvq_pool_attend,
            layer,
            q,
            output,
            sliding_window,
            logit_softcap,
            lse,
            sinks,
            dtype,
            mask,
            mask_slots,
        )

    def extend(
        self,
        layer: int,
        k: Any,
        v: Any,
        q: Any,
        output: Any = None,
        sliding_window: int = 0,
        logit_softcap: float = 0.0,
        lse: Any = None,
        sinks: Any = None,
        dtype: Optional[str] = None,
        mask: Any = None,
        mask_slots: int = 0,
    ) -> Any:
        """Store the new tokens of the batch in a layer and attend with their queries, which see them as they are given.

        :returns: the output, or (output, lse) if `lse` was given.
        """
        require_fit("layer", layer)
        keys, values = self.pool.cache._checked_tokens(layer, k, v, self._n_tokens or None, dtype)
        self._prepared.set_tokens(keys, values)
        return self._queries(
            _native.kvq_pool_extend,
            layer,
            q,
            output,
            sliding_window,
            logit_softcap,
            lse,
            sinks,
            dtype,
            mask,
            mask_slots,
        )

    def _queries(
        self,
        function: Function,
        layer: int,
        q: Any,
        output: Any,
        sliding_window: int,
        logit_softcap: float,
        lse: Any,
        sinks: Any,
        dtype: Optional[str],
        mask: Any,
        mask_slots: int,
    ) -> Any:
        require_fit("layer", layer)
        require_fit("sliding_window", sliding_window)
        require_fit("mask_slots", mask_slots)
        rows = self._n_tokens or view_of("q", q).shape[0]
        checked = self.pool.cache._checked_queries(layer, q, rows, output, lse, sinks, dtype, mask, mask_slots)
        self._prepared.set_queries(checked, sliding_window, logit_softcap, mask_slots)
        self._run(function, layer)
        return checked.result

    def _run(self, function: Function, layer: int) -> None:
        prepared = self._prepared
        prepared.batch.n_tokens = self._n_tokens
        with self._alone() as pointer:
            try:
                status = function(pointer, layer, prepared.batch_reference, prepared.error_reference)
            finally:
                if self._hooks is not None:
                    self._hooks.finish()
            if status != 0:
                raise failure(status, prepared.error)


class _PoolPrepared(Prepared):
    """A call of a plan, which has no sequences of the library."""

    def _reserve(self, capacity: int) -> None:
        pass
