package kvq_test

import (
	"bytes"
	"math"
	"testing"

	"kvq"
)

func TestAttentionIsThatOfFloat64OverDecodedPages(t *testing.T) {
	for _, policy := range []string{"fp16", "int8", "int4+hadamard", "int2"} {
		m := newModel(t, policy, &kvq.ContextOptions{CPUISA: floatISA()}, kvq.NewCacheOptions(2, 6, 2, 32))
		r := random(1)
		m.append(t, m.sequence, 0, 5, &r)
		m.append(t, m.sequence, 1, 100, &r)
		q := r.floats(3 * 6 * 32)
		output := make([]float32, len(q))
		require(t, m.sequence.Attend(1, kvq.Of(q), kvq.Of(output)))
		expected, _ := attention(t, &m, m.sequence, 1, q, question{positions: positions(97, 3)})
		requireClose(t, policy, output, expected, 2e-5)
	}
}

func TestBatchesReachEveryOption(t *testing.T) {
	m := newModel(t, "{version: 1, keys: int8, values: int4}", &kvq.ContextOptions{CPUISA: floatISA()}, kvq.NewCacheOptions(1, 4, 2, 32))
	r := random(2)
	other := must(m.cache.NewSequence())(t)
	defer other.Close()
	m.append(t, m.sequence, 0, 70, &r)
	m.append(t, other, 0, 45, &r)
	sinks := []float32{0.5, -1, float32(math.Inf(-1)), 2}
	asks := []question{
		{positions: []int{10, 69}, window: 20, softcap: 1.5, sinks: sinks},
		{positions: []int{44}, window: 20, softcap: 1.5, sinks: sinks},
	}
	const row = 4 * 32
	q := r.floats(3 * row)
	output, lse := make([]float32, 3*row), make([]float32, 3*4)
	require(t, m.cache.Attend(0, &kvq.AttendBatch{
		Sequences: []*kvq.Sequence{m.sequence, other}, QueryCounts: []int32{2, 1}, QueryPositions: []int32{10, 69, 44},
		Q: kvq.Of(q), Output: kvq.Of(output), SlidingWindow: 20, LogitSoftcap: 1.5, LSE: lse, Sinks: sinks}))
	expected, expectedLSE := attention(t, &m, m.sequence, 0, q[:2*row], asks[0])
	rest, restLSE := attention(t, &m, other, 0, q[2*row:], asks[1])
	requireClose(t, "output", output, append(expected, rest...), 2e-5)
	requireClose(t, "lse", lse, append(expectedLSE, restLSE...), 2e-5)
}

func TestStridesReachTensorsOfAnyLayout(t *testing.T) {
	const heads, kvHeads, dim, n = 4, 2, 16, 40
	m := newModel(t, "fp16", nil, kvq.NewCacheOptions(1, heads, kvHeads, dim))
	dense := must(m.cache.NewSequence())(t)
	defer dense.Close()
	r := random(3)
	const token = (heads + 2*kvHeads) * dim // queries, keys and values of a token in one row
	qkv := r.floats(n * token)
	var k, v []float32
	for i := 0; i < n; i++ {
		k = append(k, qkv[i*token+heads*dim:][:kvHeads*dim]...)
		v = append(v, qkv[i*token+(heads+kvHeads)*dim:][:kvHeads*dim]...)
	}
	require(t, dense.Append(0, kvq.Of(k), kvq.Of(v)))
	keys, values := kvq.Of(qkv[heads*dim:]).Strided(token, 0), kvq.Of(qkv[(heads+kvHeads)*dim:]).Strided(token, dim)
	appendOne := func(s *kvq.Sequence, k, v kvq.Tensor) {
		require(t, m.cache.Append(0, &kvq.AppendBatch{Sequences: []*kvq.Sequence{s}, TokenCounts: []int32{n}, K: k, V: v}))
	}
	appendOne(m.sequence, keys, values)
	// The same with keys, then values, [kvHeads, n, dim].
	for i := 0; i < 2; i++ {
		from, outside := [][]float32{k, v}[i], make([]float32, len(k))
		for j := 0; j < n; j++ {
			for head := 0; head < kvHeads; head++ {
				copy(outside[(head*n+j)*dim:][:dim], from[(j*kvHeads+head)*dim:])
			}
		}
		s := must(m.cache.NewSequence())(t)
		defer s.Close()
		tensors := [2]kvq.Tensor{keys, values}
		tensors[i] = kvq.Of(outside).Strided(dim, n*dim)
		appendOne(s, tensors[0], tensors[1])
		if !bytes.Equal(must(s.Save())(t), must(dense.Save())(t)) {
			t.Fatal("heads outside and tokens inside differ from dense")
		}
	}
	for head := 0; head < kvHeads; head++ {
		got, expected := must(m.sequence.Decode(0, head, 0, n))(t), must(dense.Decode(0, head, 0, n))(t)
		for i := range got.K {
			if got.K[i] != expected.K[i] || got.V[i] != expected.V[i] {
				t.Fatalf("head %d differs from dense at %d", head, i)
			}
		}
	}
	// Queries and outputs [heads, n, dim]: heads outside, tokens inside.
	queries, output := make([]float32, heads*n*dim), make([]float32, heads*n*dim)
	for i := 0; i < n; i++ {
		for head := 0; head < heads; head++ {
			copy(queries[(head*n+i)*dim:][:dim], qkv[i*token+head*dim:])
		}
	}
	require(t, m.cache.Attend(0, &kvq.AttendBatch{Sequences: []*kvq.Sequence{m.sequence}, QueryCounts: []int32{n},
		Q: kvq.Of(queries).Strided(dim, n*dim), Output: kvq.Of(output).Strided(dim, n*dim)}))
	var q []float32
	for i := 0; i < n; i++ {
		q = append(q, qkv[i*token:][:heads*dim]...)
	}
	expected, _ := attention(t, &m, m.sequence, 0, q, question{positions: positions(0, n)})
	turned := make([]float64, len(expected))
	for i := 0; i < n; i++ {
		for head := 0; head < heads; head++ {
			copy(turned[(head*n+i)*dim:][:dim], expected[(i*heads+head)*dim:][:dim])
		}
	}
	requireClose(t, "output", output, turned, 2e-5)
}

func TestPartsOfAContextMergeByTheirLogSumExp(t *testing.T) {
	const heads, dim, n, cut = 2, 16, 64, 37
	m := newModel(t, "fp16", nil, kvq.NewCacheOptions(1, heads, heads, dim))
	r := random(4)
	k, v := m.append(t, m.sequence, 0, n, &r)
	row := heads * dim
	before, after := must(m.cache.NewSequence())(t), must(m.cache.NewSequence())(t)
	defer before.Close()
	defer after.Close()
	require(t, before.Append(0, kvq.Of(k[:cut*row]), kvq.Of(v[:cut*row])))
	var at []int32
	for i := cut; i < n; i++ {
		at = append(at, int32(i))
	}
	require(t, after.AppendAt(0, kvq.Of(k[cut*row:]), kvq.Of(v[cut*row:]), at))
	q := r.floats(row)
	attend := func(s *kvq.Sequence) (output, lse []float32) {
		output, lse = make([]float32, row), make([]float32, heads)
		require(t, m.cache.Attend(0, &kvq.AttendBatch{Sequences: []*kvq.Sequence{s}, QueryPositions: []int32{n - 1},
			Q: kvq.Of(q), Output: kvq.Of(output), LSE: lse}))
		return output, lse
	}
	whole, wholeLSE := attend(m.sequence)
	first, firstLSE := attend(before)
	second, secondLSE := attend(after)
	merged, mergedLSE := make([]float64, row), make([]float64, heads)
	for head := range mergedLSE {
		a, b := math.Exp(float64(firstLSE[head])), math.Exp(float64(secondLSE[head]))
		mergedLSE[head] = math.Log(a + b)
		for j := head * dim; j < (head+1)*dim; j++ {
			merged[j] = (a*float64(first[j]) + b*float64(second[j])) / (a + b)
		}
	}
	requireClose(t, "output", whole, merged, 2e-5)
	requireClose(t, "lse", wholeLSE, mergedLSE, 2e-5)
}

func TestElementTypesMayDiffer(t *testing.T) {
	m := newModel(t, "fp16", nil, kvq.NewCacheOptions(1, 2, 1, 16))
	r := random(5)
	k, v := toBFloat16(r.floats(20*16)), toBFloat16(r.floats(20*16))
	require(t, m.sequence.Append(0, kvq.Of(k), kvq.Of(v)))
	// FP16 holds 11 bits of a number that has 8: what was appended is stored exactly.
	decoded := must(m.sequence.Decode(0, 0, 0, 20))(t)
	for i, value := range fromBFloat16(v) {
		if math.Abs(float64(decoded.V[i]-value)) > 1e-6 {
			t.Fatalf("value %d is %g, was %g", i, decoded.V[i], value)
		}
	}
	q := toBFloat16(r.floats(2 * 16))
	output := make([]kvq.Float16, 2*16)
	require(t, m.sequence.Attend(0, kvq.Of(q), kvq.Of(output)))
	expected, _ := attention(t, &m, m.sequence, 0, fromBFloat16(q), question{positions: []int{19}})
	for i, got := range fromFloat16(output) {
		if math.Abs(got-expected[i]) > 1e-3*math.Abs(expected[i])+1e-4 {
			t.Fatalf("output %d is %g, expected %g", i, got, expected[i])
		}
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
