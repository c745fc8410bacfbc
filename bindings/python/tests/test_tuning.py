"""Tuning on a CPU, which has nothing to tune; on a GPU it is in test_cuda.py."""

import pytest

import libkvq
from libkvq import experimental


def matrix_of(context, random):
    return libkvq.Matrix.quantize(context, random.standard_normal((16, 64), dtype="f4"), "nuq-2")


def test_a_cpu_has_nothing_to_tune(context, random):
    matrix = matrix_of(context, random)
    for call in (
        lambda: experimental.tune([matrix], 1),
        lambda: experimental.save_tuning(context),
        lambda: experimental.load_tuning(context, ""),
    ):
        with pytest.raises(libkvq.KvqUnsupportedError, match="CPU"):
            call()


def test_wrong_arguments_are_named(context, random):
    matrix = matrix_of(context, random)
    with pytest.raises(libkvq.KvqArgumentError, match="matrices is empty"):
        experimental.tune([], 1)
    with pytest.raises(libkvq.KvqArgumentError, match="batch is 0"):
        experimental.tune([matrix], 0)
    with pytest.raises(libkvq.KvqArgumentError, match="batch is 4294967297"):
        experimental.tune([matrix], 2**32 + 1)
    with libkvq.Context() as other, pytest.raises(libkvq.KvqMismatchError, match="two contexts"):
        experimental.tune([matrix, matrix_of(other, random)], 1)
    with pytest.raises(TypeError, match="text is int"):
        experimental.load_tuning(context, 1)
    matrix.close()
    with pytest.raises(ValueError, match="this Matrix is closed"):
        experimental.tune([matrix], 1)
    context.close()
    with pytest.raises(ValueError, match="this Context is closed"):
        experimental.save_tuning(context)
    with pytest.raises(ValueError, match="this Context is closed"):
        experimental.load_tuning(context, "")
