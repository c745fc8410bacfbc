"""Batch structs that are reused from call to call."""

from __future__ import annotations

from ctypes import addressof, byref, c_void_p, sizeof
from typing import Any, Callable, Type
from typing import Sequence as Many

from . import _native
from ._errors import new_error
from ._handle import Handle


class Prepared:
    """A batch and an error for one call at a time."""

    def __init__(self, batch: Any, initialize: Callable[..., None]) -> None:
        initialize(byref(batch), sizeof(batch))
        self.batch = batch
        self.batch_reference = byref(batch)
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


class Appending(Prepared):
    """A batch for kvq_append_sequences."""

    def __init__(self) -> None:
        super().__init__(_native.kvq_append_batch(), _native.kvq_append_batch_init)


class Attending(Prepared):
    """A batch for kvq_attend."""

    def __init__(self) -> None:
        super().__init__(_native.kvq_attend_batch(), _native.kvq_attend_batch_init)
