package kvq_test

import (
	"bytes"
	"context"
	"math"
	"testing"

	"kvq"
)

// product of x `[batch, columns]` with a dequantized matrix, in float64.
func product(t *testing.T, m *kvq.Matrix, x, bias []float32) []float64 {
	info := must(m.Describe())(t)
	rows, columns := int(info.Rows), int(info.Columns)
	w := must(m.Dequantize(0, rows))(t)
	var y []float64
	for ; len(x) > 0; x = x[columns:] {
		for row := 0; row < rows; row++ {
			sum := 0.0
			if bias != nil {
				sum = float64(bias[row])
			}
			for j := 0; j < columns; j++ {
				sum += float64(x[j]) * float64(w[row*columns+j])
			}
			y = append(y, sum)
		}
	}
	return y
}

func TestLinearLayersAreProductsWithTheDequantizedMatrix(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	r := random(1)
	const rows, columns, batch = 48, 128, 3
	weights, bias, input := r.floats(rows*columns), r.floats(rows), r.floats(batch*columns)
	for _, it := range []struct {
		scheme    string
		tolerance float64
	}{{"fp16", 1e-4}, {"nuq-4", 0.15}, {"tcx-3", 0.15}} { // inputs are rounded to 8 bits but for fp16
		options := kvq.NewQuantizeOptions()
		options.Scheme, options.Bias = it.scheme, bias
		m := must(x.Quantize(context.Background(), kvq.Of(weights), rows, columns, options))(t)
		defer m.Close()
		y := make([]float32, batch*rows)
		require(t, m.Linear(kvq.Of(input), kvq.Of(y)))
		requireClose(t, it.scheme, y, product(t, m, input, bias), it.tolerance)
		info := must(m.Describe())(t)
		if info.Rows != rows || info.Columns != columns || !info.HasBias || info.Scheme != it.scheme {
			t.Fatalf("the matrix says %+v", info)
		}
		// The error is that of what comes back.
		w := must(m.Dequantize(0, rows))(t)
		var lost, all float64
		for i := range w {
			lost += math.Pow(float64(w[i]-weights[i]), 2)
			all += math.Pow(float64(weights[i]), 2)
		}
		if math.Abs(lost/all-info.Error) > 1e-3*lost/all {
			t.Fatalf("the error is %g, said to be %g", lost/all, info.Error)
		}
	}
}

func TestMatricesShareInputsAndFiles(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	r := random(2)
	const columns, batch = 64, 2
	var list []*kvq.Matrix
	for _, rows := range []int{16, 40, 8} {
		m := must(x.Quantize(context.Background(), kvq.Of(r.floats(rows*columns)), rows, columns, nil))(t)
		defer m.Close()
		list = append(list, m)
	}
	input := kvq.Of(r.floats(batch * columns))
	y := make([]float32, batch*(16+40+8))
	require(t, kvq.LinearShared(list, input, kvq.Of(y)))
	at := 0
	for i, rows := range []int{16, 40, 8} {
		one := make([]float32, batch*rows)
		require(t, list[i].Linear(input, kvq.Of(one)))
		for j := range one {
			if y[at+j] != one[j] {
				t.Fatalf("output %d of matrix %d is %g, alone %g", j, i, y[at+j], one[j])
			}
		}
		at += len(one)
	}
	file := must(kvq.SaveMatrices(list, []string{"q", "k", "v"}))(t)
	loaded := must(x.LoadMatrix(file, "k"))(t)
	defer loaded.Close()
	a, b := must(loaded.Dequantize(0, 40))(t), must(list[1].Dequantize(0, 40))(t)
	for i := range a {
		if a[i] != b[i] {
			t.Fatal("a loaded matrix has other weights")
		}
	}
	alone := must(kvq.SaveMatrices([]*kvq.Matrix{loaded}, []string{"k"}))(t)
	if !bytes.Equal(alone, must(kvq.SaveMatrices(list[1:2], []string{"k"}))(t)) {
		t.Fatal("the same matrix gives other bytes")
	}
	_, err := x.LoadMatrix(file, "o")
	requireError(t, err, kvq.ErrArgument, "o")
	_, err = kvq.SaveMatrices(list, []string{"a", "a", "b"})
	requireError(t, err, kvq.ErrArgument)
	_, err = kvq.SaveMatrices(list, []string{"a"})
	requireError(t, err, kvq.ErrArgument, "names has 1 elements, must have 3")
	_, err = kvq.SaveMatrices(nil, nil)
	requireError(t, err, kvq.ErrArgument, "matrices is empty")
	requireError(t, kvq.LinearShared(nil, input, input), kvq.ErrArgument, "matrices has 0 elements")
	requireError(t, kvq.LinearShared(list, input, kvq.Of(y[1:])), kvq.ErrArgument, "y has 127 elements, must have 128")
	requireError(t, list[0].Linear(kvq.Of(y[:63]), input), kvq.ErrArgument, "x has 63 elements", "multiple of 64")
	requireError(t, list[0].Linear(input, kvq.Of(y)), kvq.ErrArgument, "y has 128 elements, must have 32")
	requireError(t, list[0].Linear(input, kvq.Of(make([]kvq.BFloat16, 32))), kvq.ErrArgument, "y is of KVQ_BF16")
	_, err = list[0].Dequantize(10, 7)
	requireError(t, err, kvq.ErrArgument, "7 rows from row 10 on", "16")
	options := kvq.NewQuantizeOptions()
	options.Seed = 2
	other := must(x.Quantize(context.Background(), kvq.Of(r.floats(8*columns)), 8, columns, options))(t)
	defer other.Close()
	requireError(t, kvq.LinearShared([]*kvq.Matrix{list[0], other}, input, kvq.Of(y[:48])), kvq.ErrMismatch)
}

func TestQuantizationIsCheckedByName(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	quantize := func(n, rows, columns int, change func(*kvq.QuantizeOptions)) error {
		options := kvq.NewQuantizeOptions()
		change(options)
		_, err := x.Quantize(context.Background(), kvq.Of(make([]float32, n)), rows, columns, options)
		return err
	}
	requireError(t, quantize(63, 1, 64, func(o *kvq.QuantizeOptions) {}), kvq.ErrArgument, "weights has 63 elements, must have 64")
	requireError(t, quantize(60, 1, 60, func(o *kvq.QuantizeOptions) {}), kvq.ErrArgument, "columns is 60")
	requireError(t, quantize(64, 1, 64, func(o *kvq.QuantizeOptions) { o.Scheme = "nuq-7" }), kvq.ErrArgument, "nuq-7")
	requireError(t, quantize(64, 1, 64, func(o *kvq.QuantizeOptions) { o.Bias = make([]float32, 2) }), kvq.ErrArgument, "Bias has 2 elements, must have 1")
	requireError(t, quantize(64, 1, 64, func(o *kvq.QuantizeOptions) { o.Hessian = make([]float32, 64) }), kvq.ErrArgument, "Hessian has 64 elements, must have 4096")
	// By its definition the error that a Hessian of ones on the diagonal weighs is the error.
	hessian := make([]float32, 64*64)
	for i := 0; i < 64; i++ {
		hessian[i*65] = 1
	}
	options := kvq.NewQuantizeOptions()
	options.Hessian, options.Rounding = hessian, kvq.RoundingNearest
	r := random(3)
	m := must(x.Quantize(context.Background(), kvq.Of(r.floats(16*64)), 16, 64, options))(t)
	defer m.Close()
	if info := must(m.Describe())(t); math.Abs(info.ProxyError-info.Error) > 1e-4*info.Error {
		t.Fatalf("the error is %g, weighed %g", info.Error, info.ProxyError)
	}
	found := false
	for _, scheme := range kvq.Schemes() {
		found = found || scheme == "tcq-2.75"
	}
	if !found || kvq.SchemeBits("tcq-2.75") != 2.75 || kvq.SchemeBits("none") != 0 || kvq.SchemeBits("a\x00") != 0 {
		t.Fatal("schemes are not those of the header")
	}
}
