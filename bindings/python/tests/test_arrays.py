"""Arrays of all kinds, in place."""

import array
import ctypes
import re

import numpy
import pytest

import libkvq


class OnlyDLPack:
    """An array that gives nothing but DLPack."""

    def __init__(self, x):
        self._x = x

    def __dlpack__(self, **options):
        return self._x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._x.__dlpack_device__()


def as_memoryview(x):
    """A read-only buffer."""
    return memoryview(x.tobytes()).cast("f", x.shape)


def as_torch(x):
    return pytest.importorskip("torch").from_numpy(numpy.asarray(x))


KINDS = [as_torch, OnlyDLPack, as_memoryview, numpy.asfortranarray]


@pytest.fixture
def tokens(random):
    return random.standard_normal((2, 9, 2, 32), dtype="f4")


@pytest.mark.parametrize("kind", KINDS[:3])
def test_any_kind_of_array_is_stored_like_numpys(cache, tokens, kind):
    expected, sequence = cache.sequence(), cache.sequence()
    expected.append(0, *tokens)
    sequence.append(0, kind(tokens[0]), kind(tokens[1]))
    assert sequence.save() == expected.save()


def test_outputs_are_of_the_inputs_kind(cache, filled, random):
    torch = pytest.importorskip("torch")
    q = random.standard_normal((1, 4, 32), dtype="f4")
    expected = cache.attend(0, filled, q)
    output, lse = cache.attend(0, filled, torch.from_numpy(q), lse=True)
    assert isinstance(output, torch.Tensor) and isinstance(lse, torch.Tensor)
    numpy.testing.assert_array_equal(output.numpy(), expected)
    output = cache.attend(0, filled, as_memoryview(q))
    assert isinstance(output, memoryview) and output.shape == (1, 4, 32)
    numpy.testing.assert_array_equal(numpy.array(output), expected)
    with pytest.raises(TypeError, match="pass output="):
        cache.attend(0, filled, OnlyDLPack(q))
    given = numpy.zeros((1, 4, 32), "f4")
    assert cache.attend(0, filled, OnlyDLPack(q), output=given) is given
    numpy.testing.assert_array_equal(given, expected)


def test_views_of_fused_projections_need_no_copy(cache, random):
    fused = random.standard_normal((7, 8, 32), dtype="f4")  # 4 query heads, 2 of keys, 2 of values
    q, k, v = fused[:, :4], fused[:, 4:6], fused[:, 6:]
    dense, strided = cache.sequence(), cache.sequence()
    dense.append(0, k.copy("C"), v.copy("C"))
    strided.append(0, k, v)
    assert dense.save() == strided.save()
    expected = cache.attend(0, dense, q.copy(), query_counts=[7])
    numpy.testing.assert_array_equal(cache.attend(0, strided, q, query_counts=[7]), expected)
    heads_first = numpy.zeros((4, 7, 32), "f4")
    cache.attend(0, strided, q, query_counts=[7], output=heads_first.transpose(1, 0, 2))
    numpy.testing.assert_array_equal(heads_first.transpose(1, 0, 2), expected)


@pytest.mark.parametrize("kind", [numpy.asarray, as_torch, OnlyDLPack])
def test_heads_may_lie_any_distance_apart(cache, random, kind):
    """As in tensors `[heads, tokens, channels]`, transposed."""
    q, k, v = (random.standard_normal((heads, 7, 32), dtype="f4").transpose(1, 0, 2) for heads in (4, 2, 2))
    dense, strided = cache.sequence(), cache.sequence()
    dense.append(0, k.copy("C"), v.copy("C"))
    strided.append(0, kind(k), kind(v))
    assert dense.save() == strided.save()
    output = numpy.empty((7, 4, 32), "f4")
    cache.attend(0, strided, kind(q), query_counts=[7], output=output)
    numpy.testing.assert_array_equal(output, cache.attend(0, dense, q.copy("C"), query_counts=[7]))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_is_read_and_written(cache, random, name):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, name)
    k = torch.from_numpy(random.standard_normal((9, 2, 32), dtype="f4")).to(kind)
    q = torch.from_numpy(random.standard_normal((1, 4, 32), dtype="f4")).to(kind)
    half, full = cache.sequence(), cache.sequence()
    half.append(0, k, k)
    full.append(0, k.float(), k.float())
    assert half.save() == full.save()
    output = cache.attend(0, half, q)
    assert output.dtype == kind
    assert torch.equal(output, cache.attend(0, full, q.float()).to(kind))


def test_numpys_halves_and_integers_that_hold_bfloat16(cache, random):
    k = random.standard_normal((9, 2, 32), dtype="f4")
    bits = (k.view("u4") >> 16).astype("u2")
    rounded = (bits.astype("u4") << 16).view("f4")
    expected, sequence = cache.sequence(), cache.sequence()
    expected.append(0, rounded, rounded)
    sequence.append(0, bits, bits, dtype="bf16")
    assert sequence.save() == expected.save()
    q = random.standard_normal((1, 4, 32), dtype="f4")
    output = cache.attend(0, sequence, (q.view("u4") >> 16).astype("u2"), dtype="bf16")
    assert output.dtype == numpy.uint16
    full = cache.attend(0, sequence, ((q.view("u4") >> 16) << 16).view("f4"))
    numpy.testing.assert_allclose((output.astype("u4") << 16).view("f4"), full, rtol=2**-8)
    with pytest.raises(libkvq.KvqArgumentError, match="u16"):
        sequence.append(0, bits, bits)
    sequence.append(0, k.astype("f2"), k.astype("f2"))
    assert sequence.length(0) == 18


def test_wrong_arrays_are_refused_by_name(cache, filled, random):
    k = random.standard_normal((4, 2, 32), dtype="f4")
    q = random.standard_normal((1, 4, 32), dtype="f4")
    refused = [
        (lambda: filled.append(0, k[:, :1], k), r"k has the shape \[4, 1, 32\], must be \[n, 2, 32\]"),
        (lambda: filled.append(0, k, k[:3]), r"v has the shape \[3, 2, 32\], must be \[4, 2, 32\]"),
        (lambda: filled.append(0, k[0], k), r"k has the shape \[2, 32\]"),
        (lambda: filled.append(0, k, k.astype("f2")), "k and v have different element types"),
        (lambda: filled.append(0, k.astype("f8"), k), "k has elements of <f8"),
        (lambda: filled.append(0, k.astype(">f4"), k), "k has elements of >f4"),
        (lambda: filled.append(0, numpy.repeat(k, 2, axis=2)[..., ::2], k), "k has channels 2 elements apart"),
        (lambda: filled.append(0, k[::-1], k), "k has tokens -64 elements apart"),
        (lambda: filled.append(0, k, numpy.broadcast_to(k[:1], k.shape)), "v has tokens 0 elements apart"),
        (lambda: filled.append(0, k, k, positions=[1, 2]), "positions has 2 numbers, must have 4"),
        (lambda: cache.append(0, [filled], k, k, token_counts=[2, 2]), "token_counts has 2 numbers, must have 1"),
        (lambda: cache.attend(0, filled, q[:, :3]), r"q has the shape \[1, 3, 32\], must be \[1, 4, 32\]"),
        (lambda: cache.attend(0, filled, q, output=k), r"output has the shape \[4, 2, 32\], must be \[1, 4, 32\]"),
        (lambda: cache.attend(0, filled, q, output=as_memoryview(q)), "output is read-only"),
        (lambda: cache.attend(0, filled, q, lse=numpy.zeros((1, 3), "f4")), r"lse has the shape \[1, 3\]"),
        (lambda: cache.attend(0, filled, q, lse=numpy.zeros((1, 8), "f4")[:, ::2]), "lse has the strides"),
        (lambda: cache.attend(0, filled, q, sinks=numpy.zeros(4)), "sinks has elements of <f8, must be f32"),
        (lambda: cache.attend(0, filled, q, query_positions=[1, 2]), "query_positions has 2 numbers, must have 1"),
    ]
    before = filled.save()
    for function, message in refused:
        with pytest.raises(libkvq.KvqArgumentError, match=message):
            function()
    with pytest.raises(TypeError, match="k is list, which is no array"):
        filled.append(0, k.tolist(), k)
    assert filled.save() == before


def test_memory_of_the_wrong_device_is_refused_by_name(cache, filled):
    k = libkvq.DevicePointer(4096, (1, 2, 32), "f16", device_index=3)
    with pytest.raises(
        libkvq.KvqArgumentError, match="k is in cuda:3, must be in host memory, where the context computes"
    ):
        filled.append(0, k, k)


def test_cuda_array_interface_is_understood(cache, filled):
    class Pretended:
        __cuda_array_interface__ = {"shape": (1, 2, 32), "typestr": "<f4", "data": (4096, False), "version": 3}

    with pytest.raises(libkvq.KvqArgumentError, match="k is in cuda:0"):
        filled.append(0, Pretended(), Pretended())


def negated(torch, x):
    """-x as a tensor with the negative bit: its memory holds x."""
    made = torch._neg_view(x)
    assert made.is_neg() and torch.equal(made, -x)
    return made


def test_tensors_that_are_negated_or_conjugated_lazily_are_refused_by_name(cache, filled, random):
    torch = pytest.importorskip("torch")
    k, q = torch.ones((4, 2, 32)), torch.ones((1, 4, 32))
    odd_k, odd_q = negated(torch, k), negated(torch, q)
    w, x = torch.ones((64, 64)), torch.ones((1, 64))
    matrix = libkvq.Matrix.quantize(cache.context, w)
    refused = {
        "k": lambda: filled.append(0, odd_k, k),
        "v": lambda: filled.append(0, k, odd_k),
        "q": lambda: cache.attend(0, filled, odd_q),
        "output": lambda: cache.attend(0, filled, q, output=odd_q),
        "lse": lambda: cache.attend(0, filled, q, lse=negated(torch, torch.ones((1, 4)))),
        "sinks": lambda: cache.attend(0, filled, q, sinks=negated(torch, torch.ones(4))),
        "w": lambda: libkvq.Matrix.quantize(cache.context, negated(torch, w)),
        "bias": lambda: libkvq.Matrix.quantize(cache.context, w, bias=negated(torch, torch.ones(64))),
        "x": lambda: matrix.linear(negated(torch, x)),
        "outputs[0]": lambda: libkvq.linear_shared([matrix], x, [negated(torch, torch.ones((1, 64)))]),
    }
    before = filled.save()
    for name, function in refused.items():
        with pytest.raises(libkvq.KvqArgumentError, match=re.escape("pass %s.resolve_neg()" % name)):
            function()
    with pytest.raises(libkvq.KvqArgumentError, match="k has elements of complex64"):
        filled.append(0, torch.complex(k, k).conj(), k)
    assert filled.save() == before
    plain, resolved = cache.sequence(), cache.sequence()
    plain.append(0, -k, -k)
    resolved.append(0, odd_k.resolve_neg(), odd_k.resolve_neg())
    assert plain.save() == resolved.save()


def test_tensors_that_require_gradients_are_refused_by_name(cache, filled):
    torch = pytest.importorskip("torch")

    def tracked(*shape):
        return torch.ones(shape, requires_grad=True)

    k, q, x = torch.ones((4, 2, 32)), torch.ones((1, 4, 32)), torch.ones((1, 64))
    w = tracked(64, 64)
    matrix = libkvq.Matrix.quantize(cache.context, w)  # gives a file, not a result with a gradient
    calls = {
        "k": lambda: filled.append(0, tracked(4, 2, 32), k),
        "v": lambda: filled.append(0, k, 2 * tracked(4, 2, 32)),
        "q": lambda: cache.attend(0, filled, tracked(1, 4, 32)),
        "output": lambda: cache.attend(0, filled, q, output=tracked(1, 4, 32)),
        "lse": lambda: cache.attend(0, filled, q, lse=tracked(1, 4)),
        "sinks": lambda: cache.attend(0, filled, q, sinks=tracked(4)),
        "x": lambda: matrix.linear(tracked(1, 64)),
        "outputs[0]": lambda: libkvq.linear_shared([matrix], x, [tracked(1, 64)]),
    }
    before = filled.save()
    for name, function in calls.items():
        message = "%s requires a gradient.*%s.detach.*torch.no_grad" % (re.escape(name), re.escape(name))
        with pytest.raises(libkvq.KvqArgumentError, match=message):
            function()
    with pytest.raises(libkvq.KvqArgumentError, match="x requires a gradient"):
        libkvq.linear_shared([matrix], tracked(1, 64))
    assert filled.save() == before
    with torch.no_grad():
        for function in calls.values():
            function()
    cache.attend(0, filled, tracked(1, 4, 32).detach())


@pytest.mark.parametrize("axis, apart", [(0, "tokens 0 elements apart"), (1, "heads 0 elements apart")])
def test_expanded_tensors_are_refused_with_advice(cache, filled, axis, apart):
    torch = pytest.importorskip("torch")
    sizes = [4, 2, 32]
    sizes[axis] = 1
    k = torch.ones(sizes).expand(4, 2, 32)
    with pytest.raises(libkvq.KvqArgumentError, match=r"k has %s, must be at least 1: .*\.contiguous\(\)" % apart):
        filled.append(0, k, k)
    filled.append(0, k.contiguous(), k.contiguous())
    matrix = libkvq.Matrix.quantize(cache.context, numpy.ones((64, 64), "f4"))
    with pytest.raises(libkvq.KvqArgumentError, match=r"x has the strides \[0, 1\].*\.contiguous\(\)"):
        matrix.linear(torch.ones((1, 64)).expand(3, 64))


def test_strides_that_are_no_multiples_of_elements_are_refused(filled):
    packed = numpy.zeros(4 * 2 * 33 * 4, "u1")
    odd = numpy.ndarray((4, 2, 32), "f4", packed, strides=(259, 128, 4))
    with pytest.raises(libkvq.KvqArgumentError, match="no multiples"):
        filled.append(0, odd, odd)


def test_lists_of_numbers_may_be_any_sequence(cache, random):
    k = random.standard_normal((3, 2, 32), dtype="f4")
    for positions in ([3, 5, 9], (3, 5, 9), array.array("i", [3, 5, 9]), numpy.array([3, 5, 9]), as_torch([3, 5, 9])):
        sequence = cache.sequence()
        sequence.append(0, k, k, positions=positions)
        assert sequence.decode(0, 0).positions.tolist() == [3, 5, 9]
    with pytest.raises(OverflowError):
        cache.sequence().append(0, k, k, positions=[0, 1, 1 << 40])
    with pytest.raises(TypeError):
        cache.sequence().append(0, k, k, positions=[0.5, 1, 2])


def test_an_array_of_ctypes_is_a_buffer(context):
    cache = libkvq.Cache(context, 1, 1, 1, 8)
    sequence = cache.sequence()
    k = (ctypes.c_float * 8 * 1 * 2)()
    k[1][0][3] = 2.5
    sequence.append(0, k, k)
    assert sequence.decode(0, 0).v[1, 3] == 2.5


def test_everything_works_without_numpy(tmp_path):
    """In a process that cannot import NumPy."""
    import subprocess
    import sys

    program = """
import sys, array
sys.modules["numpy"] = None
import libkvq
with libkvq.Context() as context:
    cache = libkvq.Cache(context, 1, 1, 1, 8, rope="none")
    sequence = cache.sequence()
    k = memoryview(array.array("f", range(16))).cast("B").cast("f", (2, 1, 8))
    sequence.append(0, k, k)
    decoded = sequence.decode(0, 0)
    assert decoded.v[1, 7] == 15 and decoded.positions.tolist() == [0, 1]
    out, lse = cache.attend(0, sequence, k, query_counts=[2], lse=True)
    assert out.shape == (2, 1, 8) and out[0, 0, 3] == 3 and lse.shape == (2, 1)
    assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
