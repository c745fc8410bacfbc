package kvq_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"kvq"
)

// quantized quantizes random weights; change, unless nil, sets options.
func quantized(t *testing.T, x *kvq.Context, rows, columns int, change func(*kvq.QuantizeOptions)) *kvq.Matrix {
	t.Helper()
	options := kvq.NewQuantizeOptions()
	if change != nil {
		change(options)
	}
	r := random(rows)
	m := must(x.Quantize(background, kvq.Of(r.floats(rows*columns)), rows, columns, options))(t)
	t.Cleanup(func() { m.Close() })
	return m
}

func TestLinearLayersAreProductsWithTheDequantizedMatrix(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	const rows, columns, batch = 16, 128, 3
	r := random(1)
	bias, input, y := r.floats(rows), r.floats(batch*columns), make([]float32, batch*rows)
	m := quantized(t, x, rows, columns, func(o *kvq.QuantizeOptions) { o.Scheme, o.Bias = "fp16", bias })
	require(t, m.Linear(kvq.Of(input), kvq.Of(y)))
	w := must(m.Dequantize(0, rows))(t)
	var expected []float64
	for i := range y {
		sum := float64(bias[i%rows])
		for j := 0; j < columns; j++ {
			sum += float64(input[i/rows*columns+j]) * float64(w[i%rows*columns+j])
		}
		expected = append(expected, sum)
	}
	requireClose(t, "y", y, expected, 1e-4)
	if info := must(m.Describe())(t); info.Rows != rows || info.Columns != columns || !info.HasBias || info.Scheme != "fp16" {
		t.Fatalf("the matrix says %+v", info)
	}
	predicted, _, err := kvq.PredictMatrixBytes("fp16", rows, columns, true)
	if require(t, err); predicted != must(m.Describe())(t).Bytes {
		t.Fatalf("%d bytes were predicted", predicted)
	}
}

func TestMatricesShareInputsAndFiles(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	const columns, batch = 64, 2
	list := []*kvq.Matrix{quantized(t, x, 16, columns, nil), quantized(t, x, 40, columns, nil), quantized(t, x, 8, columns, nil)}
	r := random(2)
	input := kvq.Of(r.floats(batch * columns))
	y := make([]float32, batch*(16+40+8))
	require(t, kvq.LinearShared(list, input, kvq.Of(y)))
	var alone []float32
	for _, m := range list {
		one := make([]float32, batch*must(m.Describe())(t).Rows)
		require(t, m.Linear(input, kvq.Of(one)))
		alone = append(alone, one...)
	}
	if fmt.Sprint(y) != fmt.Sprint(alone) {
		t.Fatal("matrices together have other outputs than alone")
	}
	file := must(kvq.SaveMatrices(list, []string{"q", "k", "v"}))(t)
	loaded := must(x.LoadMatrix(file, "k"))(t)
	defer loaded.Close()
	again := must(kvq.SaveMatrices([]*kvq.Matrix{loaded}, []string{"k"}))(t)
	if !bytes.Equal(again, must(kvq.SaveMatrices(list[1:2], []string{"k"}))(t)) {
		t.Fatal("the same matrix gives other bytes")
	}
	requireError(t, errorOf(x.LoadMatrix(file, "o")), kvq.ErrArgument, "o")
	requireError(t, errorOf(kvq.SaveMatrices(list, []string{"a", "a", "b"})), kvq.ErrArgument)
	requireError(t, errorOf(kvq.SaveMatrices(list, []string{"a"})), kvq.ErrArgument, "names has 1 elements, must have 3")
	requireError(t, errorOf(kvq.SaveMatrices(nil, nil)), kvq.ErrArgument, "matrices has 0 elements")
	requireError(t, kvq.LinearShared(nil, input, input), kvq.ErrArgument, "matrices has 0 elements")
	requireError(t, kvq.LinearShared(list, input, kvq.Of(y[1:])), kvq.ErrArgument, "y has 127 elements, must have 128")
	requireError(t, list[0].Linear(kvq.Of(y[:63]), input), kvq.ErrArgument, "x has 63 elements", "multiple of 64")
	requireError(t, list[0].Linear(input, kvq.Of(y)), kvq.ErrArgument, "y has 128 elements, must have 32")
	requireError(t, list[0].Linear(input, kvq.Of(make([]kvq.BFloat16, 32))), kvq.ErrArgument, "y is of KVQ_BF16")
	requireError(t, errorOf(list[0].Dequantize(10, 7)), kvq.ErrArgument, "7 rows from row 10 on", "16")
	other := quantized(t, x, 8, columns, func(o *kvq.QuantizeOptions) { o.Seed = 2 })
	requireError(t, kvq.LinearShared([]*kvq.Matrix{list[0], other}, input, kvq.Of(y[:48])), kvq.ErrMismatch)
}

func TestQuantizationIsCheckedByName(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	for _, it := range []struct {
		n, rows, columns int
		change           func(*kvq.QuantizeOptions)
		message          string
	}{
		{63, 1, 64, func(o *kvq.QuantizeOptions) {}, "weights has 63 elements, must have 64"},
		{60, 1, 60, func(o *kvq.QuantizeOptions) {}, "columns is 60"},
		{64, 1, 64, func(o *kvq.QuantizeOptions) { o.Scheme = "nuq-7" }, "nuq-7"},
		{64, 1, 64, func(o *kvq.QuantizeOptions) { o.Bias = make([]float32, 2) }, "Bias has 2 elements, must have 1"},
		{64, 1, 64, func(o *kvq.QuantizeOptions) { o.Hessian = make([]float32, 64) }, "Hessian has 64 elements, must have 4096"},
	} {
		options := kvq.NewQuantizeOptions()
		it.change(options)
		requireError(t, errorOf(x.Quantize(background, kvq.Of(make([]float32, it.n)), it.rows, it.columns, options)), kvq.ErrArgument, it.message)
	}
	// By its definition the error that a Hessian of ones on the diagonal weighs is the error.
	hessian := make([]float32, 64*64)
	for i := 0; i < 64; i++ {
		hessian[i*65] = 1
	}
	m := quantized(t, x, 16, 64, func(o *kvq.QuantizeOptions) { o.Hessian, o.Rounding = hessian, kvq.RoundingNearest })
	if info := must(m.Describe())(t); info.Error == 0 || math.Abs(info.ProxyError-info.Error) > 1e-4*info.Error {
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
