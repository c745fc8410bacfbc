"""Batch structs that are reused from call to call."""

from __future__ import annotations

from ctypes import addressof, byref, c_void_p
from typing import Any, Type
from typing import Sequence as Many

from ._errors import initialised, new_error
from ._handle import Handle


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
