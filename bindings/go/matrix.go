package kvq

import (
	"context"
	"math"
	"unsafe"

	"kvq/raw"
)

// Matrix is a linear layer y = x·Wᵀ + b with weights of 1 to 8 bits. It is immutable.
type Matrix struct {
	handle[raw.Matrix]
	context *Context
	info    MatrixInfo
}

// QuantizeOptions are the options of [Context.Quantize]; [NewQuantizeOptions] fills in defaults.
type QuantizeOptions struct {
	Scheme   string    // one of Schemes
	Seed     uint64    // seed of the random signs
	Hessian  []float32 // `[columns, columns]`, the mean of x·xᵀ over inputs; nil: weights are rounded without one
	Rounding Rounding  // use of the Hessian
	Damping  float64   // share of the Hessian's mean diagonal that is added to its diagonal
	Bias     []float32 // `[rows]`; nil: none
	Progress Progress  // nil: not called
}

// NewQuantizeOptions returns the library's defaults.
func NewQuantizeOptions() *QuantizeOptions {
	var it raw.QuantizeOptions
	raw.QuantizeOptionsInit(&it)
	return &QuantizeOptions{Scheme: text(it.Scheme), Seed: it.Seed, Rounding: it.Rounding, Damping: it.Damping}
}

// Quantize quantizes weights `[rows, columns]`; nil options mean the defaults. It ends early with the error of ctx when
// ctx is done.
func (x *Context) Quantize(ctx context.Context, weights Tensor, rows, columns int, options *QuantizeOptions) (*Matrix, error) {
	if options == nil {
		options = NewQuantizeOptions()
	}
	scheme, err := terminated("Scheme", options.Scheme)
	if err != nil {
		return nil, err
	}
	if rows < 1 || columns < 1 || rows > math.MaxInt32 || columns > math.MaxInt32 {
		return nil, argument("a matrix has %d rows and %d columns, must have at least 1 of each", rows, columns)
	}
	if weights.isStrided() {
		return nil, argument("weights has strides, must be dense")
	}
	if err := firstOf(weights.holds("weights", rows, 1, columns), optionalSlice("Hessian", options.Hessian, columns*columns),
		optionalSlice("Bias", options.Bias, rows)); err != nil {
		return nil, err
	}
	var to raw.QuantizeOptions
	raw.QuantizeOptionsInit(&to)
	to.Dtype, to.Scheme, to.Seed, to.Rounding, to.Damping = weights.dtype, scheme, options.Seed, options.Rounding, options.Damping
	to.Hessian, to.Bias = first(options.Hessian), first(options.Bias)
	it := &Matrix{context: x}
	err = watched(ctx, x.fail, options.Progress, func(hook raw.ProgressHook, user uintptr) error {
		to.Progress, to.ProgressUser = hook, user
		_, err := create(x, it, &it.handle, raw.MatrixDestroy, func(made **raw.Matrix, err *raw.Error) raw.Status {
			return raw.Quantize(x.raw, &to, weights.data, int64(rows), int64(columns), made, err)
		})
		return err
	})
	return it.described(err)
}

// PredictMatrixBytes predicts the size of a matrix: MatrixInfo.Bytes, and the bytes that a CPU context allocates for
// it.
func PredictMatrixBytes(scheme string, rows, columns int, hasBias bool) (bytes, allocated uint64, err error) {
	name, err := terminated("scheme", scheme)
	if err := firstOf(err, checkVersion()); err != nil {
		return 0, 0, err
	}
	bias := int32(0)
	if hasBias {
		bias = 1
	}
	c := acquire(nil)
	status := raw.MatrixPredictBytes(name, int64(rows), int64(columns), bias, &bytes, &allocated, &c.err)
	return bytes, allocated, c.end(status)
}

// LoadMatrix reads one matrix from a safetensors file in memory.
func (x *Context) LoadMatrix(file []byte, name string) (*Matrix, error) {
	called, err := terminated("name", name)
	if err != nil {
		return nil, err
	}
	it := &Matrix{context: x}
	_, err = load(x, it, &it.handle, raw.MatrixDestroy, "file", file,
		func(context *raw.Context, file unsafe.Pointer, size uintptr, made **raw.Matrix, err *raw.Error) raw.Status {
			return raw.MatrixLoad(context, file, size, called, made, err)
		})
	return it.described(err)
}

// described fills in the description that every call on a new matrix needs, unless creating it failed.
func (m *Matrix) described(err error) (*Matrix, error) {
	if err == nil {
		m.info, err = described(&m.handle, raw.MatrixDescribe, matrixInfoFrom)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Describe describes the matrix.
func (m *Matrix) Describe() (MatrixInfo, error) {
	if err := m.lock(shared); err != nil {
		return MatrixInfo{}, err
	}
	defer m.unlock(shared)
	return m.info, nil
}

// Dequantize decodes rows of the matrix that Linear multiplies by, `[rows, columns]`.
func (m *Matrix) Dequantize(firstRow, rows int) ([]float32, error) {
	if err := m.lock(shared); err != nil {
		return nil, err
	}
	defer m.unlock(shared)
	if rows < 1 || firstRow < 0 || int64(firstRow) > m.info.Rows-int64(rows) {
		return nil, argument("%d rows from row %d on are asked for, of %d", rows, firstRow, m.info.Rows)
	}
	w := make([]float32, rows*int(m.info.Columns))
	c := acquire(m.fail)
	return w, c.end(raw.MatrixDequantize(m.raw, int64(firstRow), int64(rows), &w[0], &c.err))
}

// Linear computes y = x·Wᵀ + b for x `[batch, columns]` and y `[batch, rows]`, dense and of the same type. It allocates
// nothing in Go.
func (m *Matrix) Linear(x, y Tensor) error {
	if err := m.requireMemory(false, "Linear"); err != nil {
		return err
	}
	batch, err := inputs(x, y, m.info.Columns, int(m.info.Rows))
	if err != nil {
		return err
	}
	return m.linear(x.data, batch, y.data, x.dtype)
}

// LinearDevice is like Linear, in device memory.
func (m *Matrix) LinearDevice(x DevicePointer, batch int, y DevicePointer, dtype Dtype) error {
	if err := m.requireMemory(true, "Linear"); err != nil {
		return err
	}
	return m.linear(foreign(uintptr(x)), batch, foreign(uintptr(y)), dtype)
}

func (m *Matrix) requireMemory(onDevice bool, method string) error {
	if m.context == nil {
		return ErrClosed
	}
	return m.context.requireMemory(onDevice, method)
}

func (m *Matrix) linear(x unsafe.Pointer, batch int, y unsafe.Pointer, dtype Dtype) error {
	var n int32
	if err := narrow("batch", batch, &n); err != nil {
		return err
	}
	if err := m.lock(shared); err != nil {
		return err
	}
	defer m.unlock(shared)
	c := acquire(m.fail)
	return c.end(raw.Linear(m.raw, x, n, y, dtype, &c.err))
}

// inputs checks x and y, `[batch, rows]`, and returns the batch.
func inputs(x, y Tensor, columns int64, rows int) (int, error) {
	batch, err := x.rows("x", 1, int(columns), "columns")
	if err == nil && y.isStrided() {
		err = argument("y has strides, must be dense")
	}
	return batch, firstOf(err, y.like("y", x, "x"), y.holds("y", batch, 1, rows))
}

// LinearShared multiplies the same inputs by several matrices that share signs and columns, which is faster than
// separate calls. y receives `[batch, rows]` of the first matrix, then of the second, and so on, because cgo passes one
// slice but no list of slices.
func LinearShared(matrices []*Matrix, x, y Tensor) error {
	rows, err := requireMatrices(matrices)
	if err != nil {
		return err
	}
	if err := matrices[0].context.requireMemory(false, "LinearShared"); err != nil {
		return err
	}
	batch, err := inputs(x, y, matrices[0].info.Columns, rows)
	if err != nil {
		return err
	}
	element := int64(2)
	if y.dtype == F32 {
		element = 4
	}
	offsets, at := make([]int64, len(matrices)), int64(0)
	for i, m := range matrices {
		offsets[i] = at
		at += int64(batch) * m.info.Rows * element
	}
	return linearShared(matrices, x.data, batch, y.data, offsets, x.dtype)
}

// LinearSharedDevice is like LinearShared in device memory, with an output for each matrix.
func LinearSharedDevice(matrices []*Matrix, x DevicePointer, batch int, y []DevicePointer, dtype Dtype) error {
	if _, err := requireMatrices(matrices); err != nil {
		return err
	}
	if err := firstOf(matrices[0].context.requireMemory(true, "LinearShared"), slice("y", len(y), len(matrices))); err != nil {
		return err
	}
	offsets := make([]int64, len(y))
	for i, pointer := range y {
		offsets[i] = int64(pointer)
	}
	return linearShared(matrices, foreign(uintptr(x)), batch, nil, offsets, dtype)
}

// requireMatrices checks a list and returns the sum of all rows.
func requireMatrices(matrices []*Matrix) (rows int, err error) {
	if len(matrices) == 0 || len(matrices) > math.MaxInt32 {
		return 0, argument("matrices has %d elements, must have at least 1", len(matrices))
	}
	for i, m := range matrices {
		if m == nil || m.context == nil {
			return 0, argument("matrices[%d] is nil", i)
		}
		rows += int(m.info.Rows)
	}
	return rows, nil
}

func linearShared(matrices []*Matrix, x unsafe.Pointer, batch int, y unsafe.Pointer, offsets []int64, dtype Dtype) error {
	var n int32
	if err := narrow("batch", batch, &n); err != nil {
		return err
	}
	return withMatrices(matrices, func(list **raw.Matrix, err *raw.Error) raw.Status {
		return raw.LinearShared(list, int32(len(matrices)), x, n, y, &offsets[0], dtype, err)
	})
}

func withMatrices(matrices []*Matrix, run func(list **raw.Matrix, err *raw.Error) raw.Status) error {
	c := acquire(matrices[0].fail)
	for _, m := range matrices {
		c.matrices.given = append(c.matrices.given, &m.handle)
	}
	if err := c.matrices.lock("matrices", shared); err != nil {
		c.release()
		return err
	}
	return c.end(func() raw.Status {
		defer c.matrices.unlock(shared) // even if a hook ends the goroutine
		return run(&c.matrices.raw[0], &c.err)
	}())
}

// SaveMatrices writes matrices under different names as a safetensors file. The same matrices give the same bytes.
func SaveMatrices(matrices []*Matrix, names []string) ([]byte, error) {
	_, err := requireMatrices(matrices)
	if err := firstOf(slice("names", len(names), len(matrices)), err); err != nil {
		return nil, err
	}
	var called []byte
	offsets := make([]int64, len(names))
	for i, name := range names {
		if _, err := terminated("names", name); err != nil {
			return nil, err
		}
		offsets[i] = int64(len(called))
		called = append(append(called, name...), 0)
	}
	return saved(func(buffer unsafe.Pointer, capacity uintptr, size *uintptr) error {
		return withMatrices(matrices, func(list **raw.Matrix, err *raw.Error) raw.Status {
			return raw.MatrixSave(list, bytesOf(called), &offsets[0], int32(len(matrices)), buffer, capacity, size, err)
		})
	})
}
