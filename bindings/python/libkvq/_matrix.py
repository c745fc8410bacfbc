"""Matrices: weights of linear layers in few bits."""

from __future__ import annotations

from contextlib import contextmanager
from ctypes import byref, c_char_p, c_uint64, c_void_p
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Union
from typing import Sequence as Many

from . import _native
from ._arrays import HOST, bytes_of, dense_of, dtype_code, empty_host, empty_like, refuse_gradient, view_of
from ._context import Context
from ._errors import KvqArgumentError, call, initialised
from ._handle import Data, Handle, reading
from ._hooks import Progress, ProgressHook
from ._infos import MatrixInfo
from ._text import encoded, text, value_of


class Scheme(NamedTuple):
    """A scheme for weights in few bits."""

    name: str
    bits: float
    """Bits per weight, without scales and signs."""


class MatrixSize(NamedTuple):
    """Predicted size of a matrix."""

    bytes: int
    """As in ``MatrixInfo``."""
    allocated: int
    """Bytes that a CPU context allocates, including the object."""


def predict_bytes(scheme: str, rows: int, columns: int, has_bias: bool = False) -> MatrixSize:
    """Predict the size of a matrix before it is quantized."""
    found, allocated = c_uint64(), c_uint64()
    name = encoded("scheme", scheme)
    call(_native.qp_matrix_predict_bytes, name, rows, columns, int(has_bias), byref(found), byref(allocated))
    return MatrixSize(found.value, allocated.value)


def schemes() -> List[Scheme]:
    """The schemes that ``Matrix.quantize`` accepts."""
    names = [_native.qp_scheme_name(i) for i in range(_native.qp_scheme_count())]
    return [Scheme(text(name), _native.qp_scheme_bits(name)) for name in names]


class Matrix(Handle):
    """A linear layer y = x·Wᵀ + b with weights of 1 to 8 bits, from ``Matrix.quantize`` or ``Matrix.load``."""

    _new = _native.qp_matrix
    _destroy = _native.qp_matrix_destroy
    _instead_of_copying = "share it, which nothing changes, or load what save_matrices() returns"

    rows: int
    """Outputs of the layer."""
    columns: int
    """Inputs of the layer."""

    @classmethod
    def quantize(
        cls,
        context: Context,
        w: Any,
        scheme: str = "nuq-4",
        seed: int = 1,
        hessian: Any = None,
        rounding: Union[str, int] = "ldlq",
        damping: float = 0.01,
        bias: Any = None,
        progress: Optional[ProgressHook] = None,
        dtype: Optional[str] = None,
    ) -> Matrix:
        """Quantize a matrix. The result depends only on the arguments.

        :param w: weights ``[rows, columns]`` in host memory, contiguous; columns are a multiple of 64.
        :param scheme: one of ``schemes()``.
        :param seed: seed of the random signs; matrices with the same seed and columns share the rotation.
        :param hessian: ``[columns, columns]`` float32, the mean of x·xᵀ over inputs x.
        :param rounding: use of the Hessian: "ldlq" or "nearest".
        :param damping: share of the Hessian's mean diagonal that is added to its diagonal.
        :param bias: ``[rows]`` float32.
        :param progress: called as ``progress(done)`` with 0 … 1; returning False ends the call with KvqCancelledError.
        :param dtype: "bf16" if an array of uint16 holds bfloat16.
        """
        Context._given("context", context)
        weights = dense_of("w", w, (None, None), None, HOST)
        rows, columns = weights.shape
        options = initialised(_native.qp_quantize_options, seed=seed, damping=damping, scheme=encoded("scheme", scheme))
        options.dtype = dtype_code("w", weights, dtype)
        options.rounding = value_of(_native.qp_rounding, "rounding", rounding)
        kept = []
        if hessian is not None:
            kept.append(dense_of("hessian", hessian, (columns, columns), "f32", HOST))
            options.hessian = kept[-1].address
        if bias is not None:
            kept.append(dense_of("bias", bias, (rows,), "f32", HOST))
            options.bias = kept[-1].address
        result = cls.__new__(cls)
        with Progress(progress) as hook, context._shared() as pointer:
            options.progress = hook
            result._create(context._hooks, _native.qp_quantize, pointer, byref(options), weights.address, rows, columns)
        return result._of(context)

    @classmethod
    def load(cls, context: Context, data: Data, name: str) -> Matrix:
        """Read one matrix from the bytes of a safetensors file that ``save_matrices`` returned."""
        Context._given("context", context)
        address, size, _view = bytes_of("data", data)
        result = cls.__new__(cls)
        with context._shared() as pointer:
            result._create(context._hooks, _native.qp_matrix_load, pointer, address, size, encoded("name", name))
        return result._of(context)

    def _of(self, context: Context) -> Matrix:
        self._context = context
        self._device = context._device
        info = self.describe()
        self.rows, self.columns = info.rows, info.columns
        return self

    def describe(self) -> MatrixInfo:
        """Describe the matrix."""
        return self._described(_native.qp_matrix_describe, _native.qp_matrix_info, MatrixInfo._of)

    def dequantize(self, first_row: int = 0, rows: Optional[int] = None) -> Any:
        """Decode rows of the matrix that ``linear`` multiplies by, ``[rows, columns]`` float32 in host memory."""
        count = self.rows - first_row if rows is None else rows
        w = empty_host((max(count, 0), self.columns), "f32")
        self._read(_native.qp_matrix_dequantize, first_row, count, view_of("w", w).address)
        return w

    def linear(self, x: Any, output: Any = None, dtype: Optional[str] = None) -> Any:
        """Compute y = x·Wᵀ + b.

        :param x: ``[batch, columns]``, contiguous, in the context's memory.
        :param output: ``[batch, rows]`` of the same element type; None: a new array.
        """
        inputs = dense_of("x", x, (None, self.columns), None, self._device)
        refuse_gradient("x", inputs)
        code = dtype_code("x", inputs, dtype)
        batch = inputs.shape[0]
        if output is None:
            output = empty_like(x, (batch, self.rows))
        outputs = dense_of("output", output, (batch, self.rows), inputs.dtype, self._device, True)
        self._read(_native.qp_linear, inputs.address, batch, outputs.address, code)
        return output


@contextmanager
def handles_of(matrices: Many[Matrix]) -> Iterator[Any]:
    """The handles of matrices as an array, for calls that only read them."""
    if not Matrix._all_given("matrices", matrices):
        raise KvqArgumentError("matrices is empty, must have at least one")
    with reading(*matrices) as pointers:
        yield (_native.qp_matrix * len(pointers))(*pointers)


def linear_shared(
    matrices: Many[Matrix], x: Any, outputs: Optional[Many[Any]] = None, dtype: Optional[str] = None
) -> List[Any]:
    """Multiply several matrices by the same inputs in one call. Results are those of separate calls.

    :param matrices: matrices of one context with the same number of columns; all that rotate have the same seed.
    :param x: as for ``Matrix.linear``.
    :param outputs: an array for each matrix; None: new ones.
    """
    with handles_of(matrices) as handles:
        inputs = dense_of("x", x, (None, matrices[0].columns), None, matrices[0]._device)
        refuse_gradient("x", inputs)
        code = dtype_code("x", inputs, dtype)
        batch = inputs.shape[0]
        y = [empty_like(x, (batch, one.rows)) for one in matrices] if outputs is None else list(outputs)
        if len(y) != len(matrices):
            raise KvqArgumentError("outputs has %d arrays, must have %d" % (len(y), len(matrices)))
        views = [
            dense_of("outputs[%d]" % i, one, (batch, matrices[i].rows), inputs.dtype, matrices[0]._device, True)
            for i, one in enumerate(y)
        ]
        addresses = (c_void_p * len(y))(*[one.address for one in views])
        matrices[0]._call(_native.qp_linear_shared, handles, len(y), inputs.address, batch, addresses, code)
    return y


def save_matrices(matrices: Mapping[str, Matrix]) -> bytes:
    """Return named matrices as the bytes of a safetensors file."""
    many = list(matrices.values())
    names = (c_char_p * len(many))(*[encoded("a name", name) for name in matrices])
    with handles_of(many) as handles:
        return many[0]._saved(_native.qp_matrix_save, handles, names, len(many))
