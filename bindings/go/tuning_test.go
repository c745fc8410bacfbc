//go:build kvq_experimental

package kvq_test

import (
	"strings"
	"testing"

	"kvq"
)

func newSmallMatrix(t *testing.T, x *kvq.Context) *kvq.Matrix {
	t.Helper()
	const rows, columns = 128, 256
	options := kvq.NewQuantizeOptions()
	options.Scheme = "nuq-2"
	r := random(1)
	return must(x.Quantize(background, kvq.Of(r.floats(rows*columns)), rows, columns, options))(t)
}

func TestACPUHasNothingToTune(t *testing.T) {
	x, other := must(kvq.NewContext(nil))(t), must(kvq.NewContext(nil))(t)
	defer x.Close()
	defer other.Close()
	m, foreign := newSmallMatrix(t, x), newSmallMatrix(t, other)
	defer foreign.Close()
	requireError(t, kvq.Tune(nil, 1), kvq.ErrArgument, "matrices has 0 elements")
	requireError(t, kvq.Tune([]*kvq.Matrix{m, nil}, 1), kvq.ErrArgument, "matrices[1] is nil")
	requireError(t, kvq.Tune([]*kvq.Matrix{m}, 0), kvq.ErrArgument, "batch is 0")
	requireError(t, kvq.Tune([]*kvq.Matrix{m}, 1<<40), kvq.ErrArgument, "batch is 1099511627776")
	requireError(t, kvq.Tune([]*kvq.Matrix{m, foreign}, 1), kvq.ErrMismatch, "two contexts")
	requireError(t, kvq.Tune([]*kvq.Matrix{m}, 1), kvq.ErrUnsupported, "CPU")
	_, err := x.SaveTuning()
	requireError(t, err, kvq.ErrUnsupported, "CPU")
	requireError(t, x.LoadTuning(""), kvq.ErrUnsupported, "CPU")
	require(t, m.Close())
	requireError(t, kvq.Tune([]*kvq.Matrix{m}, 1), kvq.ErrClosed)
	require(t, x.Close())
	_, err = x.SaveTuning()
	requireError(t, err, kvq.ErrClosed)
	requireError(t, x.LoadTuning(""), kvq.ErrClosed)
}

func TestWhatAGPUMeasuredIsATextThatAnotherContextGoesBy(t *testing.T) {
	needsGPU(t)
	options := &kvq.ContextOptions{Device: kvq.DeviceCUDA}
	x, other := must(kvq.NewContext(options))(t), must(kvq.NewContext(options))(t)
	defer x.Close()
	defer other.Close()
	m := newSmallMatrix(t, x)
	defer m.Close()
	before := must(x.SaveTuning())(t)
	require(t, kvq.Tune([]*kvq.Matrix{m}, 3))
	text := must(x.SaveTuning())(t)
	if !strings.HasPrefix(text, before) || !strings.Contains(text, "\tnuq-2\t128\t256\t3\t") {
		t.Fatalf("the tuning is %q, before it was %q", text, before)
	}
	require(t, kvq.Tune([]*kvq.Matrix{m}, 3)) // known: nothing is measured
	if again := must(x.SaveTuning())(t); again != text {
		t.Fatalf("the tuning is %q, before it was %q", again, text)
	}
	requireError(t, other.LoadTuning(text+"nothing\n"), kvq.ErrFormat, "line 4", "nothing")
	requireError(t, other.LoadTuning("kvq tuning 0\n"), kvq.ErrMismatch, "kvq tuning 0")
	if unchanged := must(other.SaveTuning())(t); unchanged != before {
		t.Fatalf("a text that was refused left %q", unchanged)
	}
	require(t, other.LoadTuning(text))
	if loaded := must(other.SaveTuning())(t); loaded != text {
		t.Fatalf("the tuning is %q, loaded was %q", loaded, text)
	}
}
