package kvq_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"kvq"
)

// Zero queries weigh all visible tokens equally, so outputs are means that identify them.
func TestBatchesReachEveryOption(t *testing.T) {
	const heads, kvHeads, dim = 4, 2, 16
	m := newModel(t, "fp16", nil, kvq.NewCacheOptions(1, heads, kvHeads, dim))
	other := must(m.cache.NewSequence())(t)
	defer other.Close()
	value := func(sequence, position, kvHead int) float32 { return float32(100*kvHead + 30*sequence + position) }
	at := [][]int32{{0, 1, 2, 3, 4, 5}, {2, 3, 5, 7}}
	var v []float32
	for sequence, list := range at {
		for _, position := range list {
			for i := 0; i < kvHeads*dim; i++ {
				v = append(v, value(sequence, int(position), i/dim))
			}
		}
	}
	both := []*kvq.Sequence{m.sequence, other}
	require(t, m.cache.Append(0, &kvq.AppendBatch{Sequences: both, TokenCounts: []int32{6, 4},
		Positions: append(append([]int32{}, at[0]...), at[1]...), K: kvq.Of(make([]float32, len(v))), V: kvq.Of(v)}))
	sinks := []float32{0.5, -1, float32(math.Inf(-1)), 2}
	output, lse := make([]float32, 3*heads*dim), make([]float32, 3*heads)
	require(t, m.cache.Attend(0, &kvq.AttendBatch{Sequences: both, QueryCounts: []int32{2, 1}, QueryPositions: []int32{1, 5, 6},
		Q: kvq.Of(make([]float32, len(output))), Output: kvq.Of(output), SlidingWindow: 3, LSE: lse, Sinks: sinks}))
	var outputs, sums []float64
	for _, it := range []struct {
		sequence int
		sees     []int
	}{{0, []int{0, 1}}, {0, []int{3, 4, 5}}, {1, []int{5}}} {
		for head, sink := range sinks {
			sum, mean := math.Exp(float64(sink))+float64(len(it.sees)), 0.0
			for _, position := range it.sees {
				mean += float64(value(it.sequence, position, head/(heads/kvHeads))) / sum
			}
			sums = append(sums, math.Log(sum))
			for i := 0; i < dim; i++ {
				outputs = append(outputs, mean)
			}
		}
	}
	requireClose(t, "output", output, outputs, 1e-3)
	requireClose(t, "lse", lse, sums, 1e-4)
	if decoded := must(other.Decode(0, 1, 0, 4))(t); fmt.Sprint(decoded.Positions) != fmt.Sprint(at[1]) || decoded.V[0] != 132 {
		t.Fatalf("positions are %v, the first value is %g", decoded.Positions, decoded.V[0])
	}
}

// The first chunks of two sequences, 40 tokens and 3: nothing is stored yet in the coarse format.
func TestFirstChunksAreAttendedToAsGivenAndStoredAsAppended(t *testing.T) {
	const layer, n = 1, 43
	counts, r := []int32{40, 3}, random(4)
	options := kvq.NewCacheOptions(2, 4, 2, 16)
	k, v, q := kvq.Of(r.floats(n*2*16)), kvq.Of(r.floats(n*2*16)), kvq.Of(r.floats(n*4*16))
	pair := func(m model) []*kvq.Sequence {
		other := must(m.cache.NewSequence())(t)
		t.Cleanup(func() { other.Close() })
		return []*kvq.Sequence{m.sequence, other}
	}
	appended := func(policy string) (model, []*kvq.Sequence) {
		m := newModel(t, policy, nil, options)
		both := pair(m)
		require(t, m.cache.Append(layer, &kvq.AppendBatch{Sequences: both, TokenCounts: counts, K: k, V: v}))
		return m, both
	}
	exact, both := appended("fp16")
	expected, output := make([]float32, n*4*16), make([]float32, n*4*16)
	expectedLSE, lse := make([]float32, n*4), make([]float32, n*4)
	sinks := []float32{0.5, -1, 0, 2}
	require(t, exact.cache.Attend(layer, &kvq.AttendBatch{Sequences: both, QueryCounts: counts, Q: q,
		Output: kvq.Of(expected), SlidingWindow: 20, LogitSoftcap: 3, LSE: expectedLSE, Sinks: sinks}))

	m := newModel(t, "int2", nil, options)
	extended := pair(m)
	require(t, m.cache.Extend(layer, &kvq.ExtendBatch{Sequences: extended, TokenCounts: counts, K: k, V: v, Q: q,
		Output: kvq.Of(output), SlidingWindow: 20, LogitSoftcap: 3, LSE: lse, Sinks: sinks}))
	if fmt.Sprint(output, lse) != fmt.Sprint(expected, expectedLSE) {
		t.Fatal("queries of first chunks see other tokens than those of an fp16 cache")
	}
	_, both = appended("int2")
	for i := range both {
		if !bytes.Equal(must(extended[i].Save())(t), must(both[i].Save())(t)) {
			t.Fatalf("sequence %d is stored differently from what Append stores", i)
		}
	}
}

func TestLogitsAreScaledAndCapped(t *testing.T) {
	options := kvq.NewCacheOptions(1, 1, 1, 16)
	options.Rope, options.Scale = kvq.RopeNone, 0.5
	m := newModel(t, "fp16", nil, options)
	ones, lse := make([]float32, 16), make([]float32, 1)
	for i := range ones {
		ones[i] = 1
	}
	require(t, m.sequence.AppendAt(0, kvq.Of(ones), kvq.Of(ones), []int32{7}))
	require(t, m.cache.Attend(0, &kvq.AttendBatch{Sequences: []*kvq.Sequence{m.sequence}, Q: kvq.Of(ones),
		Output: kvq.Of(make([]float32, 16)), LogitSoftcap: 3, LSE: lse}))
	requireClose(t, "lse", lse, []float64{3 * math.Tanh(16*0.5/3)}, 1e-3)
}

// turned returns heads of 16 channels as M-RoPE turns them: pair j, channels j and j + 8, by the position of stream
// streams[j].
func turned(x []float32, heads int, places []int32, streams [8]int) []float32 {
	y := make([]float32, len(x))
	for i := 0; i < len(x); i += 16 {
		for j, stream := range streams {
			sin, cos := math.Sincos(float64(places[i/16/heads*3+stream]) * math.Pow(10000, -float64(j)/8))
			a, b := float64(x[i+j]), float64(x[i+j+8])
			y[i+j], y[i+j+8] = float32(a*cos-b*sin), float32(b*cos+a*sin)
		}
	}
	return y
}

func TestPairsTurnByThePositionsOfTheirSection(t *testing.T) {
	const row, queryRow = 2 * 16, 4 * 16
	plain := kvq.NewCacheOptions(1, 4, 2, 16)
	plain.Rope = kvq.RopeNone
	r := random(9)
	k, v, q, places := r.floats(20*row), r.floats(20*row), r.floats(20*queryRow), make([]int32, 20*3)
	for i := range places {
		places[i] = int32(i * 37 % 101)
	}
	for _, it := range []struct {
		interleaved bool
		sections    []int32
		streams     [8]int
	}{{false, []int32{2, 3, 3}, [8]int{0, 0, 1, 1, 1, 2, 2, 2}}, {true, []int32{4, 2, 2}, [8]int{0, 1, 2, 0, 1, 2, 0, 0}}} {
		options := kvq.NewCacheOptions(1, 4, 2, 16)
		options.MropeSection, options.MropeInterleaved = it.sections, it.interleaved
		// outputs appends 15 tokens, attends with the last 5 of them and extends by 5 more.
		outputs := func(options *kvq.CacheOptions, k, q []float32, places []int32) []float32 {
			m := newModel(t, "fp16", nil, options)
			part := func(begin, end int) []int32 {
				if places == nil {
					return nil
				}
				return places[3*begin : 3*end]
			}
			both, counts := make([]float32, 10*queryRow), []int32{5}
			sequences := []*kvq.Sequence{m.sequence}
			require(t, m.cache.Append(0, &kvq.AppendBatch{Sequences: sequences, TokenCounts: []int32{15},
				K: kvq.Of(k[:15*row]), V: kvq.Of(v[:15*row]), RopePositions: part(0, 15)}))
			require(t, m.cache.Attend(0, &kvq.AttendBatch{Sequences: sequences, QueryCounts: counts,
				Q: kvq.Of(q[10*queryRow : 15*queryRow]), Output: kvq.Of(both[:5*queryRow]), RopePositions: part(10, 15)}))
			require(t, m.cache.Extend(0, &kvq.ExtendBatch{Sequences: sequences, TokenCounts: counts, K: kvq.Of(k[15*row:]),
				V: kvq.Of(v[15*row:]), Q: kvq.Of(q[15*queryRow:]), Output: kvq.Of(both[5*queryRow:]), RopePositions: part(15, 20)}))
			return both
		}
		var expected []float64
		for _, x := range outputs(plain, turned(k, 2, places, it.streams), turned(q, 4, places, it.streams), nil) {
			expected = append(expected, float64(x))
		}
		requireClose(t, "output", outputs(options, k, q, places), expected, 2e-3)
	}
}

func TestSectionsAndTheirPositionsAreChecked(t *testing.T) {
	options := kvq.NewCacheOptions(1, 4, 2, 16)
	options.MropeSection = []int32{2, 3, 3}
	m := newModel(t, "fp16", nil, options)
	k, q, output := make([]float32, 2*2*16), make([]float32, 2*4*16), make([]float32, 2*4*16)
	require(t, m.sequence.Append(0, kvq.Of(k), kvq.Of(k)))
	sequences, counts, few := []*kvq.Sequence{m.sequence}, []int32{2}, make([]int32, 5)
	refused := "RopePositions has 5 elements, must have 6"
	requireError(t, m.cache.Append(0, &kvq.AppendBatch{Sequences: sequences, TokenCounts: counts, K: kvq.Of(k), V: kvq.Of(k),
		RopePositions: few}), kvq.ErrArgument, refused)
	requireError(t, m.cache.Attend(0, &kvq.AttendBatch{Sequences: sequences, QueryCounts: counts, Q: kvq.Of(q),
		Output: kvq.Of(output), RopePositions: few}), kvq.ErrArgument, refused)
	requireError(t, m.cache.Extend(0, &kvq.ExtendBatch{Sequences: sequences, TokenCounts: counts, K: kvq.Of(k), V: kvq.Of(k),
		Q: kvq.Of(q), Output: kvq.Of(output), RopePositions: few}), kvq.ErrArgument, refused)
	for message, sections := range map[string][]int32{"MropeSection has 2 elements, must have 3": {4, 4},
		"mrope_section adds up to 7 pairs": {2, 3, 2}} {
		options.MropeSection = sections
		requireError(t, errorOf(m.context.NewCache(options, nil)), kvq.ErrArgument, message)
	}
}

// outside transposes `[n, heads, dim]` to `[heads, n, dim]`.
func outside(x []float32, n, heads, dim int) []float32 {
	y := make([]float32, len(x))
	for i := 0; i < n*heads; i++ {
		copy(y[(i%heads*n+i/heads)*dim:][:dim], x[i*dim:])
	}
	return y
}

func TestStridesReachTensorsOfAnyLayout(t *testing.T) {
	const heads, kvHeads, dim, n = 4, 2, 16, 40
	m := newModel(t, "fp16", nil, kvq.NewCacheOptions(1, heads, kvHeads, dim))
	dense := must(m.cache.NewSequence())(t)
	defer dense.Close()
	r := random(3)
	k, v := m.append(t, dense, 0, n, &r)
	row := 2 * kvHeads * dim // keys of a token and other numbers
	wide := make([]float32, n*row)
	for i := 0; i < n; i++ {
		copy(wide[i*row:], k[i*kvHeads*dim:][:kvHeads*dim])
	}
	require(t, m.cache.Append(0, &kvq.AppendBatch{Sequences: []*kvq.Sequence{m.sequence}, TokenCounts: []int32{n},
		K: kvq.Of(wide).Strided(row, 0), V: kvq.Of(outside(v, n, kvHeads, dim)).Strided(dim, n*dim)}))
	if !bytes.Equal(must(m.sequence.Save())(t), must(dense.Save())(t)) {
		t.Fatal("what strides reached is not what was appended dense")
	}
	q := r.floats(n * heads * dim)
	expected, output := make([]float32, len(q)), make([]float32, len(q))
	require(t, dense.Attend(0, kvq.Of(q), kvq.Of(expected)))
	require(t, m.cache.Attend(0, &kvq.AttendBatch{Sequences: []*kvq.Sequence{m.sequence}, QueryCounts: []int32{n},
		Q: kvq.Of(outside(q, n, heads, dim)).Strided(dim, n*dim), Output: kvq.Of(output).Strided(dim, n*dim)}))
	if fmt.Sprint(output) != fmt.Sprint(outside(expected, n, heads, dim)) {
		t.Fatal("strided queries have other outputs")
	}
}

func TestElementTypesMayDiffer(t *testing.T) {
	m := newModel(t, "fp16", nil, kvq.NewCacheOptions(1, 1, 1, 8))
	v := []kvq.BFloat16{0x3fc0, 0xc000, 0x3f80, 0, 0, 0, 0, 0x4040}
	require(t, m.sequence.Append(0, kvq.Of(v), kvq.Of(v)))
	output := make([]kvq.Float16, 8)
	require(t, m.sequence.Attend(0, kvq.Of(make([]float32, 8)), kvq.Of(output)))
	if got := fmt.Sprintf("%04x", output); got != "[3e00 c000 3c00 0000 0000 0000 0000 4200]" {
		t.Fatalf("1.5, -2, 1, ..., 3 come back as %s", got)
	}
}

func TestDecodingAllocatesNothing(t *testing.T) {
	m := newModel(t, "int4", nil, kvq.NewCacheOptions(1, 4, 2, 32))
	other := must(m.cache.NewSequence())(t)
	defer other.Close()
	r := random(6)
	k, v, q := r.floats(64), r.floats(64), r.floats(2*128)
	output, lse := make([]float32, 2*128), make([]float32, 8)
	sequences := []*kvq.Sequence{m.sequence, other}
	k2 := append(append([]float32{}, k...), v...)
	allocations := testing.AllocsPerRun(500, func() {
		if m.sequence.Append(0, kvq.Of(k), kvq.Of(v)) != nil || other.Append(0, kvq.Of(k), kvq.Of(v)) != nil ||
			m.sequence.Attend(0, kvq.Of(q[:128]), kvq.Of(output[:128])) != nil ||
			m.cache.Append(0, &kvq.AppendBatch{Sequences: sequences, K: kvq.Of(k2), V: kvq.Of(k2)}) != nil ||
			m.cache.Attend(0, &kvq.AttendBatch{Sequences: sequences, Q: kvq.Of(q), Output: kvq.Of(output), LSE: lse}) != nil {
			t.Fatal("a call failed")
		}
	})
	if allocations != 0 && !raceEnabled {
		t.Errorf("a token takes %g allocations", allocations)
	}
}
