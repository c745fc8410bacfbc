"""Attention options reach the library, and results return to the right place."""

import numpy
import pytest

import libkvq


def test_positions_window_sinks_and_lse_reach_the_library(context):
    """Zero queries weigh all visible tokens equally, so outputs are means that identify them."""
    cache = libkvq.Cache(context, n_layers=1, q_heads=4, kv_heads=2, head_dim=16)
    sequences = [cache.sequence(), cache.sequence()]
    held = [[0, 1, 2, 3, 4, 5], [2, 3, 5, 7]]
    values = [30 * i + numpy.array(one, "f4") for i, one in enumerate(held)]  # the second KV head adds 100
    v = numpy.concatenate(values)[:, None, None] + numpy.array([[0], [100]], "f4") + numpy.zeros(16, "f4")
    cache.append(0, sequences, numpy.zeros_like(v), v, token_counts=[6, 4], positions=sum(held, []))
    sinks = numpy.array([0.5, -1, -numpy.inf, 2], "f4")
    options = {"query_counts": [2, 1], "query_positions": [1, 5, 6], "sliding_window": 3, "sinks": sinks}
    output, lse = cache.attend(0, sequences, numpy.zeros((3, 4, 16), "f4"), lse=True, **options)
    assert output.dtype == numpy.float32 and output.shape == (3, 4, 16) and lse.shape == (3, 4)
    for i, seen in enumerate(([0, 1], [3, 4, 5], [35])):
        total = len(seen) + numpy.exp(sinks.astype("f8"))
        mean = numpy.add.outer([0, 0, 100, 100], seen).sum(axis=1) / total
        numpy.testing.assert_allclose(output[i], numpy.repeat(mean[:, None], 16, axis=1), rtol=1e-3)
        numpy.testing.assert_allclose(lse[i], numpy.log(total), atol=1e-4)
    numpy.testing.assert_array_equal(sequences[1].decode(0, 1).positions, held[1])
    output, lse = cache.attend(0, sequences[1], numpy.ones((1, 4, 16), "f4"), query_positions=[1], lse=True)
    assert not output.any() and (lse == -numpy.inf).all()  # it sees nothing


def test_first_chunks_are_attended_to_as_given_and_stored_as_appended(context, random):
    """Chunks of 40 tokens and 3: nothing is stored yet in the coarse format."""
    counts = [40, 3]
    k, v = random.standard_normal((2, 43, 2, 16), dtype="f4")
    q = random.standard_normal((43, 4, 16), dtype="f4")
    options = {"sliding_window": 20, "logit_softcap": 3.0, "lse": True, "sinks": numpy.array([0.5, -1, 0, 2], "f4")}
    exact, coarse = (libkvq.Cache(context, 2, 4, 2, 16, rope="none", policy=policy) for policy in ("fp16", "int2"))
    appended = [exact.sequence(), exact.sequence()]
    exact.append(1, appended, k, v, token_counts=counts)
    expected = exact.attend(1, appended, q, query_counts=counts, **options)

    extended = [coarse.sequence(), coarse.sequence()]
    found = coarse.extend(1, extended, k, v, q, token_counts=counts, **options)
    numpy.testing.assert_array_equal(found[0], expected[0])
    numpy.testing.assert_array_equal(found[1], expected[1])
    appended = [coarse.sequence(), coarse.sequence()]
    coarse.append(1, appended, k, v, token_counts=counts)
    assert [one.save() for one in extended] == [one.save() for one in appended]

    output = numpy.empty((2, 4, 16), "f2")
    assert coarse.extend(1, extended, k[:2], v[:2], q[:2], positions=[50, 9], output=output) is output
    assert [int(one.decode(1, 0).positions[-1]) for one in extended] == [50, 9]


def test_logits_are_scaled_and_capped(context):
    cache = libkvq.Cache(context, n_layers=1, q_heads=1, kv_heads=1, head_dim=16, rope="none", scale=0.5)
    sequence = cache.sequence()
    ones = numpy.ones((1, 1, 16), "f4")
    sequence.append(0, ones, ones, positions=[7])
    _, lse = cache.attend(0, sequence, ones, logit_softcap=3.0, lse=True)
    numpy.testing.assert_allclose(lse, 3 * numpy.tanh(16 * 0.5 / 3), atol=1e-3)


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


SHAPES = [
    libkvq.LayerShape(1, q_heads=6, kv_heads=3, key_dim=192, value_dim=128, rope_base=1e6),
    libkvq.LayerShape(2, key_dim=256, value_dim=256, rope="none", scale=0.5, logit_softcap=20.0),
]


def test_layers_may_differ(context, random):
    cache = libkvq.Cache(context, 3, 4, 2, 64, shapes=SHAPES)
    sequence = cache.sequence()
    heads = [(4, 2, 64, 64), (6, 3, 192, 128), (4, 2, 256, 256)]
    for layer, (q_heads, kv_heads, key_dim, value_dim) in enumerate(heads):
        info = cache.describe_layer(layer)
        assert (info.q_heads, info.kv_heads, info.key_dim, info.value_dim) == heads[layer]
        k = random.standard_normal((1, kv_heads, key_dim), dtype="f4")
        v = random.integers(-9, 9, (1, kv_heads, value_dim)).astype("f4")
        q = random.standard_normal((1, q_heads, key_dim), dtype="f4")
        sequence.append(layer, k, v)
        output = cache.attend(layer, sequence, q)
        numpy.testing.assert_allclose(output, numpy.repeat(v, q_heads // kv_heads, axis=1), rtol=1e-6)
        stored = sequence.decode(layer, kv_heads - 1)
        assert stored.k.shape == (1, key_dim) and stored.v.shape == (1, value_dim)
        output, lse = cache.extend(layer, sequence, k, v, q, lse=True)
        assert output.shape == (1, q_heads, value_dim) and lse.shape == (1, q_heads)
        with pytest.raises(libkvq.KvqArgumentError, match=str(key_dim)):
            cache.attend(layer, sequence, q[..., :-8])
        with pytest.raises(libkvq.KvqArgumentError, match=str(value_dim)):
            sequence.append(layer, k, v[..., :-8])
    assert cache.load(sequence.save())[0].save() == sequence.save()
    with pytest.raises(libkvq.KvqMismatchError, match="layers of different shapes"):
        libkvq.Cache(context, 3, 4, 2, 64).load(sequence.save())
    with pytest.raises(libkvq.KvqArgumentError, match=r"options->shapes\[0\].key_dim is 12"):
        libkvq.Cache(context, 3, 4, 2, 64, shapes=[libkvq.LayerShape(1, key_dim=12)])
    with pytest.raises(libkvq.KvqArgumentError, match=r"shapes\[0\] is a int"):
        libkvq.Cache(context, 3, 4, 2, 64, shapes=[7])


def test_layers_with_a_window_free_what_no_query_sees(context, random):
    local = libkvq.LayerShape(2, attention_chunk=128)
    cache = libkvq.Cache(
        context, 3, 4, 2, 64, policy="int4", sliding_window=64, shapes=[libkvq.LayerShape(1, sliding_window=-1), local]
    )
    assert [cache.describe_layer(layer).sliding_window for layer in range(3)] == [64, 0, 0]
    assert cache.describe_layer(2).attention_chunk == 128
    sequence = cache.sequence()
    for _ in range(10):
        rows = random.standard_normal((50, 2, 64), dtype="f4")
        for layer in range(3):
            sequence.append(layer, rows, rows)
    assert [sequence.length(layer) for layer in range(3)] == [500] * 3
    assert [sequence.slots(layer, 1) for layer in range(3)] == [500 - 384, 500, 500 - 384]
    with pytest.raises(libkvq.KvqArgumentError, match="keeps a window of 64"):
        cache.attend(0, sequence, random.standard_normal((1, 4, 64), dtype="f4"), sliding_window=65)
    with pytest.raises(libkvq.KvqStateError, match="has freed tokens up to position 383"):
        sequence.truncate(416)


def test_layers_may_read_the_pages_of_another_one(context, random):
    shared = libkvq.LayerShape(2, n_layers=2, q_heads=6, scale=0.5, pages_of_layer=1)
    cache = libkvq.Cache(context, 4, 4, 2, 64, shapes=[SHAPES[0], shared])
    assert [cache.describe_layer(layer).pages_of_layer for layer in range(4)] == [0, 1, 1, 1]
    sequence = cache.sequence()
    k = random.standard_normal((40, 3, 192), dtype="f4")
    v = random.standard_normal((40, 3, 128), dtype="f4")
    q = random.standard_normal((2, 6, 192), dtype="f4")
    sequence.append(1, k, v)
    assert [sequence.length(layer) for layer in range(4)] == [0, 40, 40, 40]
    output = cache.attend(3, sequence, q, query_counts=[2])
    scaled = cache.attend(1, sequence, q * numpy.float32(0.5 * 192**0.5), query_counts=[2])
    numpy.testing.assert_allclose(output, scaled, atol=1e-5)
    with pytest.raises(libkvq.KvqArgumentError, match="layer is 3, which reads the pages of layer 1"):
        sequence.append(3, k, v)
    with pytest.raises(libkvq.KvqArgumentError, match=r"pages_of_layer is 2, must be a layer before first_layer, 2"):
        libkvq.Cache(context, 3, 4, 2, 64, shapes=[libkvq.LayerShape(2, pages_of_layer=2)])


def test_frequencies_of_a_layer_are_checked_and_used(context, random):
    k, v, q = (random.standard_normal((1, 2, 64), dtype="f4") for _ in range(3))
    plain = libkvq.Cache(context, 1, 2, 2, 64, rope="none")
    still = libkvq.Cache(context, 1, 2, 2, 64, shapes=[libkvq.LayerShape(0, inv_freq=numpy.zeros(32, "f4"))])
    stored = []
    for cache in (plain, still):
        sequence = cache.sequence()
        sequence.append(0, k, v, positions=[9])
        stored.append(sequence.decode(0, 0).k)
    numpy.testing.assert_array_equal(*stored)
    with pytest.raises(libkvq.KvqArgumentError, match="inv_freq"):
        libkvq.Cache(context, 1, 2, 2, 64, shapes=[libkvq.LayerShape(0, inv_freq=numpy.zeros(16, "f4"))])


LATENT = libkvq.LayerShape(1, kv_heads=1, key_dim=96, value_dim=64, values_are_key_prefix=True, scale=0.1)


def turned(x, places, frequencies, streams):
    """Heads as M-RoPE turns them: pair j, channels j and j + pairs, by the position of stream `streams[j]`."""
    angles = (places[:, streams] * frequencies)[:, None]
    a, b = numpy.split(x.astype("f8"), 2, axis=-1)
    pairs = a * numpy.cos(angles) - b * numpy.sin(angles), b * numpy.cos(angles) + a * numpy.sin(angles)
    return numpy.concatenate(pairs, axis=-1).astype("f4")


SECTIONS = [
    (False, [4, 6, 6], [0] * 4 + [1] * 6 + [2] * 6),
    (True, [6, 5, 5], [0, 1, 2] * 5 + [0]),
    (True, [10, 4, 2], [0, 1, 2, 0, 1, 2, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0]),
]


@pytest.mark.parametrize("interleaved, sections, streams", SECTIONS)
def test_pairs_turn_by_the_positions_of_their_section(context, random, interleaved, sections, streams):
    sectioned = libkvq.Cache(context, 1, 4, 2, 32, mrope_section=sections, mrope_interleaved=interleaved)
    plain = libkvq.Cache(context, 1, 4, 2, 32, rope="none")
    places = random.integers(0, 200, (40, 3)).astype("i4")
    k, v = random.standard_normal((2, 40, 2, 32), dtype="f4")
    q = random.standard_normal((40, 4, 32), dtype="f4")
    frequencies = 10000.0 ** (-numpy.arange(16) / 16)
    keys, queries = (turned(x, places, frequencies, streams) for x in (k, q))
    one, expected = sectioned.sequence(), plain.sequence()
    sectioned.append(0, one, k[:30], v[:30], [30], rope_positions=places[:30])
    plain.append(0, expected, keys[:30], v[:30], [30])
    numpy.testing.assert_allclose(one.decode(0, 1).k, expected.decode(0, 1).k, atol=2e-3)
    output = sectioned.attend(0, one, q[27:30], [3], rope_positions=places[27:30])
    numpy.testing.assert_allclose(output, plain.attend(0, expected, queries[27:30], [3]), atol=2e-3)
    output = sectioned.extend(0, one, k[30:], v[30:], q[30:], [10], rope_positions=places[30:])
    alone = plain.extend(0, expected, keys[30:], v[30:], queries[30:], [10])
    numpy.testing.assert_allclose(output, alone, atol=2e-3)
    # Without, all streams have the position of the token, and nothing stays from the calls before.
    same = numpy.repeat(numpy.arange(40, 41, dtype="i4"), 3)[None]
    other = one.fork()
    output = sectioned.extend(0, one, k[:1], v[:1], q[:1], rope_positions=same)
    numpy.testing.assert_array_equal(sectioned.extend(0, other, k[:1], v[:1], q[:1]), output)
    numpy.testing.assert_allclose(sectioned.attend(0, one, q[:1]), output, atol=2e-3)


def test_sections_and_their_positions_are_checked(context):
    cache = libkvq.Cache(context, 1, 4, 2, 32, mrope_section=(4, 6, 6))
    sequence = cache.sequence()
    k, q = numpy.zeros((2, 2, 32), "f4"), numpy.zeros((2, 4, 32), "f4")
    sequence.append(0, k, k)
    for places, message in [
        (numpy.zeros((2, 2), "i4"), r"rope_positions has the shape \[2, 2\], must be \[2, 3\]"),
        (numpy.zeros((3, 3), "i4"), r"rope_positions has the shape \[3, 3\], must be \[2, 3\]"),
        (numpy.zeros((2, 3), "f4"), "rope_positions has elements of f32, must be i32"),
        (numpy.zeros((3, 2), "i4").T, "rope_positions has the strides .* must be contiguous"),
    ]:
        with pytest.raises(libkvq.KvqArgumentError, match=message):
            cache.append(0, sequence, k, k, [2], rope_positions=places)
        with pytest.raises(libkvq.KvqArgumentError, match=message):
            cache.attend(0, sequence, q, [2], rope_positions=places)
        with pytest.raises(libkvq.KvqArgumentError, match=message):
            cache.extend(0, sequence, k, k, q, [2], rope_positions=places)
    assert sequence.length(0) == 2
    unsectioned = libkvq.Cache(context, 1, 4, 2, 32)
    with pytest.raises(libkvq.KvqArgumentError, match="without options->mrope_section"):
        unsectioned.append(0, unsectioned.sequence(), k, k, [2], rope_positions=numpy.zeros((2, 3), "i4"))
    with pytest.raises(libkvq.KvqArgumentError, match="mrope_section has 2 numbers, must have 3"):
        libkvq.Cache(context, 1, 4, 2, 32, mrope_section=[8, 8])
    with pytest.raises(libkvq.KvqArgumentError, match="mrope_section adds up to 15 pairs"):
        libkvq.Cache(context, 1, 4, 2, 32, mrope_section=[4, 6, 5])
    with pytest.raises(libkvq.KvqArgumentError, match="options->mrope_interleaved is 1"):
        libkvq.Cache(context, 1, 4, 2, 32, mrope_interleaved=True)


def latent_attention(k, q):
    """The second half of 32 channels behind the values rotates with the first; queries are those of the last tokens."""
    angles = numpy.multiply.outer(numpy.arange(len(k)), 10000.0 ** (-numpy.arange(16) / 16))[:, None]

    def rotated(x, angles):
        a, b = x[..., 64:80], x[..., 80:]
        turned = a * numpy.cos(angles) - b * numpy.sin(angles), b * numpy.cos(angles) + a * numpy.sin(angles)
        return numpy.concatenate([x[..., :64], *turned], axis=-1)

    keys, queries = rotated(k.astype("f8"), angles)[:, 0], rotated(q.astype("f8"), angles[-len(q) :])
    logits = 0.1 * queries @ keys.T
    hidden = numpy.arange(len(k)) > numpy.arange(len(k) - len(q), len(k))[:, None, None]
    weights = numpy.exp(numpy.where(hidden, -numpy.inf, logits))
    return keys, weights @ keys[:, :64] / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_values_may_be_a_prefix_of_keys(context, random, dtype):
    cache = libkvq.Cache(context, 2, 4, 2, 64, shapes=[LATENT])
    assert [cache.describe_layer(layer).values_are_key_prefix for layer in range(2)] == [False, True]
    assert cache.describe_layer(1).rotary_begin == 64
    k = random.standard_normal((50, 1, 96), dtype="f4").astype(dtype)
    q = random.standard_normal((3, 4, 96), dtype="f4").astype(dtype)
    keys, expected = latent_attention(k, q)
    appended, batched, extended = (cache.sequence() for _ in range(3))
    appended.append(1, k[:40])
    appended.append(1, k[40:], positions=range(40, 50))
    plain = numpy.zeros((1, 2, 64), dtype)
    appended.append(0, plain, plain)
    cache.append(1, [batched, extended], numpy.concatenate([k[:47], k[:47]]), token_counts=[47, 47])
    cache.append(1, batched, k[47:], None, [3])
    for sequence in appended, batched:
        output = cache.attend(1, sequence, q, query_counts=[3])
        assert output.shape == (3, 4, 64) and output.dtype == dtype
        numpy.testing.assert_allclose(output, expected, atol=2e-3)
    output = cache.extend(1, extended, k[47:], None, q, token_counts=[3])
    numpy.testing.assert_allclose(output, expected, atol=2e-3)
    stored = extended.decode(1, 0)
    numpy.testing.assert_allclose(stored.k, keys, rtol=2**-10, atol=1e-3)
    numpy.testing.assert_array_equal(stored.v, stored.k[:, :64])
    assert cache.load(batched.save())[0].save() == extended.save()


def test_values_are_given_exactly_where_keys_do_not_contain_them(context):
    cache = libkvq.Cache(context, 2, 4, 2, 64, shapes=[LATENT])
    sequence = cache.sequence()
    k, v, q = (numpy.zeros((1, heads, dim), "f4") for heads, dim in ((1, 96), (1, 64), (4, 96)))
    plain, plain_q = numpy.zeros((1, 2, 64), "f4"), numpy.zeros((1, 4, 64), "f4")
    given = "v is given, must be None: values of layer 1 are a prefix of its keys"
    missing = "v is None, must be given: values of layer 0 are no prefix of its keys"
    for message, call in [
        (given, lambda: sequence.append(1, k, v)),
        (given, lambda: cache.append(1, sequence, k, v)),
        (given, lambda: cache.extend(1, sequence, k, v, q)),
        (missing, lambda: sequence.append(0, plain)),
        (missing, lambda: cache.append(0, sequence, plain)),
        (missing, lambda: cache.extend(0, sequence, plain, None, plain_q)),
        (r"k has the shape \[1, 1, 64\], must be \[n, 1, 96\]", lambda: sequence.append(1, v)),
    ]:
        with pytest.raises(libkvq.KvqArgumentError, match=message):
            call()
    assert sequence.length(0) == sequence.length(1) == 0
    other = libkvq.LayerShape(1, kv_heads=1, key_dim=96, value_dim=64)  # values of its own
    with pytest.raises(libkvq.KvqMismatchError):
        libkvq.Cache(context, 2, 4, 2, 64, shapes=[other]).load(sequence.save())
    for begin, rotated in ((0, 32), (80, 16)):
        shape = libkvq.LayerShape(1, key_dim=96, values_are_key_prefix=True, rotary_begin=begin)
        shape.inv_freq = numpy.zeros(rotated // 2, "f4")
        assert libkvq.Cache(context, 2, 4, 2, 64, shapes=[shape]).describe_layer(1).rotary_dim == rotated
        shape.inv_freq = numpy.zeros(rotated // 2 + 1, "f4")
        with pytest.raises(libkvq.KvqArgumentError, match=r"shapes\[0\].inv_freq"):
            libkvq.Cache(context, 2, 4, 2, 64, shapes=[shape])
    with pytest.raises(libkvq.KvqArgumentError, match=r"options->shapes\[0\].values_are_key_prefix is 1"):
        libkvq.Cache(context, 2, 4, 2, 64, shapes=[libkvq.LayerShape(1, values_are_key_prefix=True)])
