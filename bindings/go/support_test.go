package kvq_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"kvq"
)

// random is the state of the sample's generator of numbers in [-1, 1).
type random uint32

func (r *random) floats(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		*r = *r*1664525 + 1013904223
		x[i] = float32(*r>>8)/8388608 - 1
	}
	return x
}

func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func errorOf[T any](_ T, err error) error { return err }

func require(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// requireError checks an error's status and that its message names what is wrong.
func requireError(t *testing.T, err error, target error, parts ...string) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("got the error %v, expected %v", err, target)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Fatalf("the error %q does not say %q", err, part)
		}
	}
}

// requirePanic runs what has to raise a hook's panic.
func requirePanic(t *testing.T, hook string, value any, run func()) {
	t.Helper()
	defer func() {
		t.Helper()
		p, ok := recover().(*kvq.HookPanic)
		if !ok || p.Hook != hook || p.Value != value || len(p.Stack) == 0 {
			t.Fatalf("got the panic %v, expected %v of %s", p, value, hook)
		}
	}()
	run()
}

var background = context.Background()

type model struct {
	context  *kvq.Context
	cache    *kvq.Cache
	sequence *kvq.Sequence
	info     kvq.CacheInfo
}

// newModel makes everything up to an empty sequence.
func newModel(t *testing.T, policy string, contextOptions *kvq.ContextOptions, options *kvq.CacheOptions) model {
	t.Helper()
	var m model
	m.context = must(kvq.NewContext(contextOptions))(t)
	p := must(m.context.LoadPolicy(policy))(t)
	m.cache = must(m.context.NewCache(options, p))(t)
	m.sequence = must(m.cache.NewSequence())(t)
	m.info = must(m.cache.Describe())(t)
	t.Cleanup(func() {
		for _, it := range []interface{ Close() error }{m.sequence, m.cache, p, m.context} {
			if err := it.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return m
}

func (m *model) append(t *testing.T, s *kvq.Sequence, layer, n int, r *random) (k, v []float32) {
	t.Helper()
	row := m.info.KVHeads * m.info.HeadDim
	k, v = r.floats(n*row), r.floats(n*row)
	require(t, s.Append(layer, kvq.Of(k), kvq.Of(v)))
	return k, v
}

func requireClose(t *testing.T, what string, got []float32, expected []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(expected) {
		t.Fatalf("%s has %d numbers, expected %d", what, len(got), len(expected))
	}
	for i := range got {
		if !(math.Abs(float64(got[i])-expected[i]) <= tolerance*math.Max(1, math.Abs(expected[i]))) {
			t.Fatalf("%s[%d] is %g, expected %g", what, i, got[i], expected[i])
		}
	}
}
