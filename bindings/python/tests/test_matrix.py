"""Linear layers."""

import numpy
import pytest

import libkvq


def test_a_product_is_that_of_the_dequantized_matrix(context, random):
    w = random.standard_normal((48, 128), dtype="f4")
    bias = random.standard_normal(48, dtype="f4")
    x = random.standard_normal((5, 128), dtype="f4")
    matrix = libkvq.Matrix.quantize(context, w, scheme="fp16", bias=bias)
    info = matrix.describe()
    assert (info.rows, info.columns, info.has_bias, info.scheme) == (48, 128, True, "fp16")
    assert isinstance(info.has_bias, bool)
    dequantized = matrix.dequantize()
    numpy.testing.assert_allclose(matrix.linear(x), x @ dequantized.T + bias, atol=1e-3)
    numpy.testing.assert_array_equal(matrix.dequantize(7, 3), dequantized[7:10])


def test_matrices_on_the_same_inputs_give_the_same_numbers_together(context, random):
    matrices = [
        libkvq.Matrix.quantize(context, random.standard_normal((rows, 64), dtype="f4"), scheme=scheme)
        for rows, scheme in ((16, "nuq-4"), (24, "tcx-2"))
    ]
    x = random.standard_normal((3, 64), dtype="f4")
    outputs = libkvq.linear_shared(matrices, x)
    for matrix, output in zip(matrices, outputs):
        numpy.testing.assert_array_equal(output, matrix.linear(x))
    given = [numpy.zeros((3, 16), "f4"), numpy.zeros((3, 24), "f4")]
    assert libkvq.linear_shared(matrices, x, given)[1] is given[1]
    numpy.testing.assert_array_equal(given[1], outputs[1])
    other = libkvq.Matrix.quantize(context, random.standard_normal((16, 64), dtype="f4"), seed=2)
    with pytest.raises(libkvq.KvqMismatchError):
        libkvq.linear_shared([matrices[0], other], x)
    with pytest.raises(libkvq.KvqArgumentError, match="outputs has 1"):
        libkvq.linear_shared(matrices, x, given[:1])
    with pytest.raises(libkvq.KvqArgumentError, match="matrices is empty"):
        libkvq.linear_shared([], x)


def test_a_hessian_reaches_the_library(context, random):
    """With an identity Hessian the weighted error equals the error, by definition."""
    w = random.standard_normal((16, 64), dtype="f4")
    options = {"scheme": "nuq-2", "hessian": numpy.eye(64, dtype="f4"), "rounding": "nearest"}
    info = libkvq.Matrix.quantize(context, w, **options).describe()
    assert info.error > 0 and info.proxy_error == pytest.approx(info.error, rel=1e-4)


def test_matrices_survive_a_file(context, random):
    matrices = {
        name: libkvq.Matrix.quantize(context, random.standard_normal((16, 64), dtype="f4"), scheme="vq-3")
        for name in ("up", "down")
    }
    data = libkvq.save_matrices(matrices)
    for name, matrix in matrices.items():
        again = libkvq.Matrix.load(context, data, name)
        assert libkvq.save_matrices({name: again}) == libkvq.save_matrices({name: matrix})
        numpy.testing.assert_array_equal(again.dequantize(), matrix.dequantize())
    with pytest.raises(libkvq.KvqArgumentError, match="side"):
        libkvq.Matrix.load(context, data, "side")
    with pytest.raises(libkvq.KvqFormatError):
        libkvq.Matrix.load(context, data[:-8], "up")
    with pytest.raises(libkvq.KvqArgumentError):
        libkvq.save_matrices({})


def test_element_types_and_outputs(context, random):
    matrix = libkvq.Matrix.quantize(context, random.standard_normal((16, 64)).astype("f2"))
    x = random.standard_normal((2, 64)).astype("f2")
    full = matrix.linear(x.astype("f4"))
    half = matrix.linear(x)
    assert half.dtype == numpy.float16
    numpy.testing.assert_allclose(half, full, rtol=2**-10, atol=1e-3)
    output = numpy.empty((2, 16), "f4")
    assert matrix.linear(x.astype("f4"), output) is output
    numpy.testing.assert_array_equal(output, full)
    for function, message in (
        (lambda: matrix.linear(x[:, :32]), r"x has the shape \[2, 32\], must be \[n, 64\]"),
        (lambda: matrix.linear(x, output), "output has elements of f32, must be f16"),
        (lambda: matrix.linear(numpy.asfortranarray(x)), "x has the strides"),
        (lambda: libkvq.Matrix.quantize(context, x[0]), r"w has the shape \[64\]"),
        (lambda: libkvq.Matrix.quantize(context, x, hessian=numpy.eye(64)), "hessian has elements of <f8"),
        (lambda: libkvq.Matrix.quantize(context, x, bias=numpy.zeros(3, "f4")), r"bias has the shape \[3\]"),
        (lambda: libkvq.Matrix.quantize(context, x, scheme="nuq-9"), "nuq-9"),
        (lambda: matrix.dequantize(10, 7), "rows"),
    ):
        with pytest.raises(libkvq.KvqArgumentError, match=message):
            function()


def test_schemes_tell_their_bits():
    schemes = {one.name: one.bits for one in libkvq.schemes()}
    assert schemes["nuq-4"] == 4 and schemes["tcq-2.75"] == 2.75 and schemes["fp16"] == 16
    assert libkvq.raw.qp_scheme_bits(b"nothing") == 0


def test_sizes_are_predicted(context, random):
    size = libkvq.predict_bytes("nuq-4", 17, 64, has_bias=True)
    before = context.describe().bytes
    matrix = libkvq.Matrix.quantize(
        context, random.standard_normal((17, 64), dtype="f4"), "nuq-4", bias=numpy.zeros(17, "f4")
    )
    assert matrix.describe().bytes == size.bytes
    assert context.describe().bytes - before == size.allocated
    with pytest.raises(libkvq.KvqArgumentError, match="nuq-7"):
        libkvq.predict_bytes("nuq-7", 17, 64)
