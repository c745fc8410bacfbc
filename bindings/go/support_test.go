package kvq_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"kvq"
)

// state of the sample's generator: numbers in [-1, 1).
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

// floatISA is an instruction set whose products are of FP32.
func floatISA() string {
	for _, isa := range kvq.CPUISAs() {
		if isa != "amx" && isa != "avx512vnni" {
			return isa
		}
	}
	return ""
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

// question is what attention is asked beside the queries.
type question struct {
	positions []int // of the queries
	window    int
	softcap   float64
	sinks     []float32
	from, to  int // positions that are attended to; to = 0: all
}

// rotated is a head of a query as RopeHalf turns it, in float64.
func rotated(q []float32, position int, info *kvq.CacheInfo) []float64 {
	x := make([]float64, len(q))
	for i, value := range q {
		x[i] = float64(value)
	}
	if info.Rope == kvq.RopeHalf {
		half := info.RotaryDim / 2
		for j := 0; j < half; j++ {
			angle := float64(position) * math.Pow(10000, -2*float64(j)/float64(info.RotaryDim))
			sin, cos := math.Sincos(angle)
			x[j], x[j+half] = float64(q[j])*cos-float64(q[j+half])*sin, float64(q[j+half])*cos+float64(q[j])*sin
		}
	}
	return x
}

// attention by brute force over decoded pages, in float64: outputs `[n, QHeads, HeadDim]` and log-sum-exps.
func attention(t *testing.T, m *model, s *kvq.Sequence, layer int, q []float32, ask question) (output, lse []float64) {
	t.Helper()
	info, dim := &m.info, m.info.HeadDim
	pages := make([]kvq.Decoded, info.KVHeads)
	for head := range pages {
		pages[head] = must(s.Decode(layer, head, 0, must(s.Slots(layer, head))(t)))(t)
	}
	for i, position := range ask.positions {
		for head := 0; head < info.QHeads; head++ {
			row := rotated(q[(i*info.QHeads+head)*dim:][:dim], position, info)
			page := &pages[head/(info.QHeads/info.KVHeads)]
			sum, values := 0.0, make([]float64, dim)
			if ask.sinks != nil {
				sum = math.Exp(float64(ask.sinks[head]))
			}
			for slot, at := range page.Positions {
				p := int(at)
				if p > position || ask.window > 0 && p <= position-ask.window || p < ask.from || ask.to > 0 && p >= ask.to {
					continue
				}
				logit := 0.0
				for j := range row {
					logit += row[j] * float64(page.K[slot*dim+j])
				}
				logit *= float64(info.Scale)
				if ask.softcap > 0 {
					logit = ask.softcap * math.Tanh(logit/ask.softcap)
				}
				weight := math.Exp(logit)
				sum += weight
				for j := range values {
					values[j] += weight * float64(page.V[slot*dim+j])
				}
			}
			for j := range values {
				if sum > 0 {
					values[j] /= sum
				}
			}
			output, lse = append(output, values...), append(lse, math.Log(sum))
		}
	}
	return output, lse
}

func requireClose(t *testing.T, what string, got []float32, expected []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(expected) {
		t.Fatalf("%s has %d numbers, expected %d", what, len(got), len(expected))
	}
	for i := range got {
		if !(math.Abs(float64(got[i])-expected[i]) <= tolerance) {
			t.Fatalf("%s[%d] is %g, expected %g", what, i, got[i], expected[i])
		}
	}
}

func positions(begin, n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = begin + i
	}
	return list
}

func toBFloat16(x []float32) []kvq.BFloat16 {
	y := make([]kvq.BFloat16, len(x))
	for i, value := range x {
		y[i] = kvq.BFloat16(math.Float32bits(value) >> 16)
	}
	return y
}

func fromBFloat16(x []kvq.BFloat16) []float32 {
	y := make([]float32, len(x))
	for i, value := range x {
		y[i] = math.Float32frombits(uint32(value) << 16)
	}
	return y
}

// fromFloat16 holds for normal numbers and 0.
func fromFloat16(x []kvq.Float16) []float64 {
	y := make([]float64, len(x))
	for i, bits := range x {
		y[i] = math.Ldexp(1+float64(bits&1023)/1024, int(bits>>10&31)-15)
		if bits&0x7fff == 0 {
			y[i] = 0
		}
		if bits>>15 == 1 {
			y[i] = -y[i]
		}
	}
	return y
}
