"""Tuning: which of a GPU's kernels are the fastest for linear layers."""

from __future__ import annotations

from typing import Sequence

from . import _native
from ._context import Context
from ._matrix import Matrix, handles_of
from ._text import encoded


def tune(matrices: Sequence[Matrix], batch: int) -> None:
    """Measure which of a GPU's kernels are the fastest for ``linear_shared`` of matrices like these, instead of going
    by an estimate. Takes tenths of a second; what is known already is not measured again.

    Another kernel adds numbers up in another order, so that the last bits may change, now and from one measurement to
    the next: keep what was measured (``save_tuning``) where results are to stay the same.

    :param matrices: as for ``linear_shared``; it holds for all of the context of the same schemes and shapes.
    :param batch: rows, exactly so many.
    """
    with handles_of(matrices) as handles:
        matrices[0]._call(_native.qp_tune, handles, len(handles), batch)


def save_tuning(context: Context) -> str:
    """What ``tune`` measured and ``load_tuning`` read: a line for each device, scheme and shape."""
    with Context._given("context", context)._shared() as pointer:
        return context._saved(_native.qp_tuning_save, pointer).decode("utf-8")


def load_tuning(context: Context, text: str) -> None:
    """Go by what was measured before. What another device or version measured is kept for ``save_tuning``, unused."""
    data = encoded("text", text)
    Context._given("context", context)._read(_native.qp_tuning_load, data, len(data))
