"""Steps of an engine with block tables: a batch's plan, then each layer's attention. Nothing here imports vLLM."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Protocol

import numpy
import torch
from numpy.typing import NDArray

from ._model import Model, Run, bytes_of_blocks
from ._tails import TailTable

logger = logging.getLogger("vllm.kvq")

_NO_TAIL = -1
_NULL_BLOCK = 0
"""The block that vLLM gives to no sequence, but to rows that fill a batch up and to batches without requests."""


class Batch(Protocol):
    """What is read of vLLM's CommonAttentionMetadata. Rows after the sequences have none of the tokens and length 0."""

    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table_tensor: torch.Tensor
    req_idx: Optional[Any]


@dataclass
class Step:
    """A batch that has been planned, for calls of all layers, which a CUDA graph may capture.

    The plan of a later batch replaces it: a graph reads that of the batch that was planned last, which has to have as
    many rows and tokens as the graph's, and no more new tokens of a sequence.
    """

    run: Run
    n_tokens: int

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output: torch.Tensor,
        sliding_window: int = 0,
        logit_softcap: float = 0.0,
        sinks: Optional[torch.Tensor] = None,
    ) -> None:
        """Store new keys and values and attend with their queries: ``[tokens, heads, head_dim]``."""
        n = self.n_tokens
        self.run.follow_stream()
        self.run.plan.extend(
            layer,
            key[:n],
            value[:n],
            query[:n],
            output=output[:n],
            sliding_window=sliding_window,
            logit_softcap=logit_softcap,
            sinks=sinks,
        )


class Steps:
    """Plans the batches of a model over the blocks that its layers have.

    On a GPU nothing waits for it, unless tails have to be found by blocks, which needs numbers of the block table.
    """

    def __init__(self, model: Model, caches: Callable[[], Sequence[torch.Tensor]], device: torch.device) -> None:
        """:param caches: the tensors of the layers' blocks, ``[blocks, ...]``, which the engine may replace."""
        self._model = model
        self._caches = caches
        self._device = device
        self._table = TailTable(model.n_tails, model.block_tokens)
        self._run: Optional[Run] = None
        self._first: Optional[torch.Tensor] = None

    def plan(self, batch: Batch) -> Step:
        """Plan a batch, once for all layers, outside of a graph of the layers."""
        run = self._current_run()
        run.follow_stream()
        n = batch.num_reqs
        table = batch.block_table_tensor[:n]
        run.plan.batch(
            batch.query_start_loc[: n + 1],
            batch.seq_lens[:n],
            table,
            self._tails(batch, n) if run.has_tails else None,
            n_tokens=batch.num_actual_tokens,
            max_queries=min(batch.max_query_len, batch.num_actual_tokens),
            max_length=min(batch.max_seq_len, self._model.limits.length, table.shape[1] * self._model.block_tokens),
        )
        return Step(run, batch.num_actual_tokens)

    def _tails(self, batch: Batch, n: int) -> torch.Tensor:
        tails = numpy.full(n, _NO_TAIL, "int32")
        if batch.req_idx is None:
            self._find_tails(batch, tails)
        else:  # The newer runner numbers requests, from when they start until they stop.
            requests = batch.req_idx[:n]
            tails[: len(requests)] = requests
        if self._device.type != "cuda":
            return torch.from_numpy(tails)
        found = torch.from_numpy(tails).pin_memory().to(self._device, non_blocking=True)
        # Batches without requests have numbers of them, too.
        return found.masked_fill_(batch.block_table_tensor[:n, 0] == _NULL_BLOCK, _NO_TAIL)

    def _find_tails(self, batch: Batch, tails: NDArray[numpy.int32]) -> None:
        """Those of the blocks that hold open pages. Waits for a GPU."""
        n, size = len(tails), self._model.block_tokens
        table, lengths, ends = batch.block_table_tensor[:n], batch.seq_lens[:n], batch.query_start_loc[: n + 1]
        starts = lengths - (ends[1:] - ends[:-1])
        places = torch.stack([torch.zeros_like(starts), starts // size, lengths // size], 1)
        blocks = table.gather(1, places.clamp_(max=table.shape[1] - 1).long())
        rows = torch.cat([starts[:, None], lengths[:, None], blocks], 1).cpu().numpy()
        kept = numpy.flatnonzero((rows[:, 2] != _NULL_BLOCK) | (self._device.type != "cuda"))
        rows = rows[kept]

        def block_of(row: int, place: int) -> int:
            return int(rows[row, 3 if place == rows[row, 0] // size else 4])

        tails[kept] = self._table.assign(rows[:, 0].tolist(), rows[:, 1].tolist(), block_of)

    def _current_run(self) -> Run:
        """The pool over the blocks that the layers have now."""
        caches = self._caches()
        if self._run is None or caches[0] is not self._first:
            blocks = [bytes_of_blocks(cache) for cache in caches]
            self._run = self._model.run_over(blocks, self._device)
            self._first = caches[0]
            self._report(len(blocks[0]))
        return self._run

    def _report(self, n_blocks: int) -> None:
        model = self._model
        tails = model.n_tails * model.tail_bytes
        logger.info(
            "kvq: %s, %d blocks of %d tokens, %d bytes a layer; besides them %d tails of %.1f MiB in all",
            model.settings.name,
            n_blocks,
            model.block_tokens,
            model.block_bytes,
            model.n_tails if tails else 0,
            tails / 2**20,
        )
        unused = sum(model.block_bytes - layout.block_bytes for layout in model.layouts)
        if unused > 0:
            share = 100 * unused / (model.block_bytes * model.n_layers)
            logger.warning("kvq: %.0f %% of the blocks is empty, since vLLM gives all layers the same", share)
