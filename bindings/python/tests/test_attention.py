"""What attention computes, against float64 over the decoded pages."""

import numpy
import pytest
from reference import attention, rotated

import libkvq


def close(actual, expected):
    numpy.testing.assert_allclose(actual, expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("policy", ["fp16", "int8", "int4+hadamard", "int2"])
def test_a_query_gets_what_the_definition_says(context, random, policy):
    cache = libkvq.Cache(context, n_layers=1, q_heads=4, kv_heads=2, head_dim=32, policy=policy)
    sequence = cache.sequence()
    k, v = random.standard_normal((2, 100, 2, 32), dtype="f4")
    sequence.append(0, k, v)
    q = random.standard_normal((1, 4, 32), dtype="f4")
    expected, lse = attention(sequence, 0, rotated(q, [99]), [99])
    output, found = cache.attend(0, sequence, q, lse=True)
    close(output, expected)
    close(found, lse)
    assert output.dtype == numpy.float32 and found.shape == (1, 4)


def test_keys_are_stored_rotated_and_rounded_to_fp16(context, random):
    cache = libkvq.Cache(context, n_layers=1, q_heads=2, kv_heads=2, head_dim=32)
    sequence = cache.sequence()
    k, v = random.standard_normal((2, 20, 2, 32), dtype="f4")
    sequence.append(0, k, v)
    for head in range(2):
        decoded = sequence.decode(0, head)
        numpy.testing.assert_allclose(decoded.k, rotated(k, range(20))[:, head], rtol=2**-10, atol=1e-6)
        numpy.testing.assert_array_equal(decoded.v, v[:, head].astype("f2"))
        numpy.testing.assert_array_equal(decoded.positions, numpy.arange(20))


def test_window_softcap_sinks_and_positions_reach_the_library(cache, filled, random):
    q = random.standard_normal((3, 4, 32), dtype="f4")
    positions = [10, 50, 99]
    sinks = numpy.array([0.5, -1, -numpy.inf, 2], "f4")
    for options in ({"sliding_window": 7}, {"logit_softcap": 2.0}, {"sinks": sinks}):
        expected, lse = attention(
            filled,
            1,
            rotated(q, positions),
            positions,
            window=options.get("sliding_window", 0),
            softcap=options.get("logit_softcap", 0.0),
            sinks=options.get("sinks"),
        )
        output, found = cache.attend(1, filled, q, query_counts=[3], query_positions=positions, lse=True, **options)
        close(output, expected)
        close(found, lse)


def test_shape_options_of_a_cache_reach_the_library(context, random):
    frequencies = numpy.array([0.3, 0.1, 0.02, 0.001], "f4")
    cache = libkvq.Cache(
        context, 1, 2, 1, 16, rope="half", rotary_dim=8, inv_freq=frequencies, scale=0.7, model_id=5, max_bytes=1 << 20
    )
    info = cache.describe()
    assert (info.rope, info.rotary_dim, info.model_id, info.max_bytes) == ("half", 8, 5, 1 << 20)
    assert info.scale == pytest.approx(0.7)
    sequence = cache.sequence()
    k = random.standard_normal((5, 1, 16), dtype="f4")
    sequence.append(0, k, k)
    angles = numpy.multiply.outer(numpy.arange(5), frequencies.astype("f8"))
    first = k[:, 0, :4] * numpy.cos(angles) - k[:, 0, 4:8] * numpy.sin(angles)
    decoded = sequence.decode(0, 0)
    numpy.testing.assert_allclose(decoded.k[:, :4], first, rtol=2**-10, atol=1e-3)
    numpy.testing.assert_array_equal(decoded.k[:, 8:], k[:, 0, 8:].astype("f2"))
    assert cache.describe_layer(0).formats == "fp16"
    with libkvq.Cache(context, 1, 2, 1, 16, rope="none") as plain:
        assert plain.describe().rope == "none" and plain.describe().rotary_dim == 0


def test_batches_of_ragged_sequences_equal_single_calls(cache, random):
    sequences = [cache.sequence() for _ in range(3)]
    counts = [5, 40, 70]
    k, v = random.standard_normal((2, sum(counts), 2, 32), dtype="f4")
    cache.append(0, sequences, k, v, token_counts=counts)
    assert [one.length(0) for one in sequences] == counts
    begin = 0
    for one, count in zip(sequences, counts):
        alone = cache.sequence()
        alone.append(0, k[begin : begin + count], v[begin : begin + count])
        assert alone.save() == one.save()
        begin += count
    q = random.standard_normal((6, 4, 32), dtype="f4")
    together = cache.attend(0, sequences, q, query_counts=[1, 2, 3])
    singly = [
        cache.attend(0, one, q[begin:end], query_counts=[end - begin])
        for one, begin, end in zip(sequences, (0, 1, 3), (1, 3, 6))
    ]
    numpy.testing.assert_array_equal(together, numpy.concatenate(singly))


def test_results_over_parts_of_a_context_merge_by_lse(context, random):
    cache = libkvq.Cache(context, n_layers=1, q_heads=4, kv_heads=2, head_dim=32, policy="fp16")
    k, v = random.standard_normal((2, 64, 2, 32), dtype="f4")
    parts = [cache.sequence(), cache.sequence()]
    parts[0].append(0, k[:30], v[:30])
    parts[1].append(0, k[30:], v[30:], positions=range(30, 64))
    whole = cache.sequence()
    whole.append(0, k, v)
    q = random.standard_normal((2, 4, 32), dtype="f4")
    options = {"query_counts": [2], "query_positions": [63, 63], "lse": True}
    outputs, lses = zip(*[cache.attend(0, one, q, **options) for one in parts])
    expected, lse = cache.attend(0, whole, q, **options)
    merged = numpy.logaddexp(*lses)
    close(merged, lse)
    close(sum(numpy.exp(one - merged)[..., None] * output for one, output in zip(lses, outputs)), expected)


def test_a_query_that_sees_nothing_gives_zeros(cache, random):
    sequence = cache.sequence()
    k = random.standard_normal((3, 2, 32), dtype="f4")
    sequence.append(0, k, k, positions=[5, 6, 9])
    q = random.standard_normal((1, 4, 32), dtype="f4")
    output, lse = cache.attend(0, sequence, q, query_positions=[4], lse=True)
    assert not output.any() and (lse == -numpy.inf).all()
    numpy.testing.assert_array_equal(sequence.decode(0, 0).positions, [5, 6, 9])


def test_rope_none_leaves_keys_and_queries_alone(context, random):
    cache = libkvq.Cache(context, n_layers=1, q_heads=2, kv_heads=1, head_dim=16, rope="none", scale=0.25)
    sequence = cache.sequence()
    k, v = random.standard_normal((2, 33, 1, 16), dtype="f4")
    sequence.append(0, k, v)
    q = random.standard_normal((1, 2, 16), dtype="f4")
    close(cache.attend(0, sequence, q), attention(sequence, 0, q, [32], scale=0.25)[0])
