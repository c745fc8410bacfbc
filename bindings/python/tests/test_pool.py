"""Pools: tokens in arrays of the caller."""

import numpy
import pytest

import libkvq


@pytest.fixture
def cache(context):
    policy = "{version: 1, keys: int4, values: gs4, sink: 0, calibrate: none}"
    return libkvq.Cache(context, n_layers=2, q_heads=4, kv_heads=2, head_dim=32, policy=policy)


def aligned(rows, width):
    """Bytes `[rows, width]` at a multiple of 64."""
    memory = numpy.zeros(rows * width + 64, "u1")
    offset = -memory.ctypes.data % 64
    return memory[offset : offset + rows * width].reshape(rows, width)


class Engine:
    def __init__(self, cache, n_blocks=16, n_tails=3, n_ranges=1):
        layout = cache.block_layout(0, 32)
        self.layout = layout
        each = n_blocks // n_ranges
        self.blocks = [[aligned(each, layout.block_bytes + 64) for _ in range(n_ranges)] for _ in range(2)]
        self.tails = [aligned(n_tails, layout.tail_bytes) for _ in range(2)]
        self.pool = libkvq.Pool(cache, 32, self.blocks, self.tails)
        self.plan = self.pool.plan(max_sequences=3, max_tokens=200, max_blocks=8)

    def batch(self, counts, lengths):
        n = len(counts)
        starts = numpy.array([0, *numpy.cumsum(counts)], "i4")
        table = numpy.arange(n * 5, dtype="i4").reshape(5, n).T.copy()
        self.plan.batch(starts, numpy.array(lengths, "i4"), table, numpy.arange(n, dtype="i4")[::-1].copy())


def tokens(random, n):
    k, v = random.standard_normal((2, n, 2, 32), dtype="f4")
    return k, v, random.standard_normal((n, 4, 32), dtype="f4")


@pytest.mark.parametrize("n_ranges", [1, 4])
def test_results_are_those_of_the_cache(cache, random, n_ranges):
    engine = Engine(cache, n_ranges=n_ranges)
    sequences = [cache.sequence() for _ in range(3)]
    lengths = [0, 0, 0]
    for counts in ([40, 3, 70], [1, 1, 1], [20, 30, 2], [1, 1, 1]):
        lengths = [a + b for a, b in zip(lengths, counts)]
        engine.batch(counts, lengths)
        for layer in range(2):
            k, v, q = tokens(random, sum(counts))
            lse = numpy.empty((sum(counts), 4), "f4")
            out, _ = engine.plan.extend(layer, k, v, q, lse=lse)
            expected = cache.extend(layer, sequences, k, v, q, token_counts=counts)
            assert numpy.array_equal(out, expected)
            assert numpy.isfinite(lse).all()
    assert engine.plan.bytes > 0


def test_a_block_goes_to_another_pool(cache, random):
    first, second = Engine(cache), Engine(cache)
    k, v, q = tokens(random, 64)
    first.batch([64], [64])
    first.plan.append(0, k, v)
    for block in (0, 1):
        second.pool.write_block(0, block, first.pool.read_block(0, block))
    outputs = []
    k, v, q = tokens(random, 1)
    for engine in (first, second):
        engine.batch([1], [65])
        engine.plan.append(0, k, v)
        outputs.append(engine.plan.attend(0, q))
    assert numpy.array_equal(*outputs)
    with pytest.raises(libkvq.KvqFormatError, match="no encoder writes"):
        first.pool.write_block(0, 0, b"\x7c" * len(first.pool.read_block(0, 0)))


def test_arrays_are_checked(cache, random):
    engine = Engine(cache)
    k, v, q = tokens(random, 5)
    with pytest.raises(libkvq.KvqStateError, match="plan has no batch"):
        engine.plan.extend(0, k, v, q)
    with pytest.raises(libkvq.KvqArgumentError, match=r"lengths has the shape \[2\], must be \[1\]"):
        engine.batch([5], [5, 5])
    with pytest.raises(libkvq.KvqArgumentError, match=r"batch->lengths\[0\] is 4"):
        engine.batch([5], [4])
    engine.batch([5], [5])
    with pytest.raises(libkvq.KvqArgumentError, match=r"q has the shape \[4, 4, 32\], must be \[5, 4, 32\]"):
        engine.plan.extend(0, k, v, q[:4])
    with pytest.raises(libkvq.KvqArgumentError, match=r"blocks\[1\]\[0\] has the shape"):
        libkvq.Pool(cache, 32, [engine.blocks[0], engine.blocks[1][0][:, :64]], engine.tails)
    with pytest.raises(libkvq.KvqArgumentError, match="blocks has 1 entries, must have one for each of 2 layers"):
        libkvq.Pool(cache, 32, engine.blocks[:1], engine.tails)
    with pytest.raises(libkvq.KvqArgumentError, match="options->n_tails is 0"):
        libkvq.Pool(cache, 32, engine.blocks)
    engine.pool.close()
    engine.plan.extend(0, k, v, q)  # the plan keeps what it needs
    engine.plan.close()
    with pytest.raises(ValueError, match="closed"):
        engine.plan.extend(0, k, v, q)
