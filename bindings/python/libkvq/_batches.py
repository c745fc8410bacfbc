"""Batch structs that are reused from call to call."""

from __future__ import annotations

from ctypes import addressof, byref, c_void_p
from typing import Any, List, NamedTuple, Optional, Type
from typing import Sequence as Many

from ._arrays import Rows, View
from ._errors import initialised, new_error
from ._handle import Handle
from ._library import Function


class Queries(NamedTuple):
    """Checked queries of a batch, and where their results go."""

    q: Rows
    output: Rows
    lse: Optional[View]
    sinks: Optional[View]
    mask: Optional[View]
    result: Any  # what the call returns


class Prepared:
    """A batch and an error for one call at a time."""

    def __init__(self, kind: Type[Any]) -> None:
        self.batch = initialised(kind)
        self.batch_reference = byref(self.batch)
        self.error = new_error()
        self.error_reference = byref(self.error)
        self._reserve(1)

    def _reserve(self, capacity: int) -> None:
        kind: Type[Any] = c_void_p * capacity
        self._pointers = kind()
        self._capacity = capacity
        self.batch.sequences = addressof(self._pointers)

    def set_sequences(self, sequences: Many[Handle]) -> None:
        """Set the handles of the batch, which are in use."""
        n = len(sequences)
        if n > self._capacity:
            self._reserve(2 * n)
        pointers = self._pointers
        for i in range(n):
            pointers[i] = sequences[i]._pointer
        self.batch.n_sequences = n

    def set_streams(self, positions: Optional[View]) -> None:
        self.batch.rope_positions = None if positions is None else positions.address

    def set_tokens(self, keys: Rows, values: Optional[Rows]) -> None:
        batch = self.batch
        batch.k, batch.k_token_stride, batch.k_head_stride, batch.dtype, _, _ = keys
        if values is None:
            batch.v = None  # not those of the call before
        else:
            batch.v, batch.v_token_stride, batch.v_head_stride, _, _, _ = values

    def set_queries(self, queries: Queries, sliding_window: int, logit_softcap: float, mask_slots: int) -> None:
        q, output, lse, sinks, mask, _ = queries
        batch = self.batch
        batch.q, batch.q_token_stride, batch.q_head_stride, batch.q_dtype, _, _ = q
        batch.output, batch.output_token_stride, batch.output_head_stride, batch.output_dtype, _, _ = output
        batch.sliding_window = sliding_window
        batch.logit_softcap = logit_softcap
        batch.lse = None if lse is None else lse.address
        batch.sinks = None if sinks is None else sinks.address
        batch.mask = None if mask is None else mask.address
        batch.mask_slots = mask_slots


class Calls:
    """Prepared calls of one function, one per thread inside a call."""

    def __init__(self, kind: Type[Any], function: Function) -> None:
        self.function = function
        self._kind = kind
        self._idle: List[Prepared] = []  # pop and append of a list are atomic

    def take(self) -> Prepared:
        try:
            return self._idle.pop()
        except IndexError:
            return Prepared(self._kind)

    def give_back(self, prepared: Prepared) -> None:
        self._idle.append(prepared)
