package kvq_test

import (
	"bytes"
	"fmt"
	"testing"

	"kvq"
)

// conversations makes a cache of two layers with sequences of 100 tokens and 30.
func conversations(t *testing.T) (model, []*kvq.Sequence) {
	t.Helper()
	m := newModel(t, "int4", nil, kvq.NewCacheOptions(2, 4, 2, 16))
	r := random(3)
	other := must(m.cache.NewSequence())(t)
	t.Cleanup(func() { other.Close() })
	for layer := 0; layer < 2; layer++ {
		m.append(t, m.sequence, layer, 100, &r)
		m.append(t, other, layer, 30, &r)
	}
	return m, []*kvq.Sequence{m.sequence, other}
}

// extend extends all layers by n tokens of each sequence, the same every time.
func (m *model) extend(t *testing.T, sequences []*kvq.Sequence, n int) {
	t.Helper()
	r, rows, counts := random(5), n*len(sequences), make([]int32, len(sequences))
	for i := range counts {
		counts[i] = int32(n)
	}
	output := make([]float32, rows*64)
	for layer := 0; layer < 2; layer++ {
		require(t, m.cache.Extend(layer, &kvq.ExtendBatch{Sequences: sequences, TokenCounts: counts,
			K: kvq.Of(r.floats(rows * 32)), V: kvq.Of(r.floats(rows * 32)), Q: kvq.Of(r.floats(rows * 64)), Output: kvq.Of(output)}))
	}
}

func requireLengths(t *testing.T, s *kvq.Sequence, expected int) {
	t.Helper()
	for layer := 0; layer < 2; layer++ {
		if n := must(s.Length(layer))(t); n != expected {
			t.Fatalf("layer %d has %d tokens, expected %d", layer, n, expected)
		}
	}
}

func TestAStepKeepsCommittedTokensAsIfNoOthersHadBeenAppended(t *testing.T) {
	m, both := conversations(t)
	expected := must(both[0].Fork())(t)
	defer expected.Close()
	before := must(both[1].Save())(t)
	step := must(m.cache.BeginStep(both, 40, 40))(t)
	defer step.Abort()
	m.extend(t, both, 40)
	requireLengths(t, both[0], 140)
	require(t, step.Commit(3, 0))
	r := random(5)
	for layer := 0; layer < 2; layer++ {
		k, v := r.floats(80*32), r.floats(80*32)
		r.floats(80 * 64)
		require(t, expected.Append(layer, kvq.Of(k[:3*32]), kvq.Of(v[:3*32])))
	}
	if !bytes.Equal(must(both[0].Save())(t), must(expected.Save())(t)) || !bytes.Equal(must(both[1].Save())(t), before) {
		t.Fatal("a committed step stores other pages than Append")
	}
	step = must(m.cache.BeginStep(both))(t) // one token each
	m.extend(t, both, 1)
	require(t, step.Commit())
	requireLengths(t, both[0], 104)
	requireLengths(t, both[1], 31)
}

func TestAStepKeepsAPathOfATreeWhoseTokensSeeWhatTheMaskSays(t *testing.T) {
	m, both := conversations(t)
	sequence := both[0]
	expected := must(sequence.Fork())(t)
	defer expected.Close()
	step := must(m.cache.BeginStep([]*kvq.Sequence{sequence}, 3))(t)
	defer step.Abort()
	r := random(5)
	tree, path := make([]float32, 3*64), make([]float32, 2*64)
	for layer := 0; layer < 2; layer++ {
		k, v, q := r.floats(3*32), r.floats(3*32), r.floats(3*64)
		batch := kvq.ExtendBatch{Sequences: []*kvq.Sequence{sequence}, TokenCounts: []int32{3}, Positions: []int32{100, 100, 101},
			K: kvq.Of(k), V: kvq.Of(v), Q: kvq.Of(q), Output: kvq.Of(tree), Mask: []uint32{1, 2, 6}, MaskSlots: 3}
		require(t, m.cache.Extend(layer, &batch))
		require(t, m.cache.Extend(layer, &kvq.ExtendBatch{Sequences: []*kvq.Sequence{expected}, TokenCounts: []int32{2},
			K: kvq.Of(k[32:]), V: kvq.Of(v[32:]), Q: kvq.Of(q[64:]), Output: kvq.Of(path)}))
		batch.MaskSlots = 40
		requireError(t, m.cache.Extend(layer, &batch), kvq.ErrArgument, "Mask has 3 elements")
	}
	for i, x := range path {
		if d := x - tree[64+i]; d > 1e-4 || d < -1e-4 {
			t.Fatalf("output %d is %g in the tree, %g alone", i, tree[64+i], x)
		}
	}
	require(t, step.CommitKept([]int32{1, 2}))
	if !bytes.Equal(must(sequence.Save())(t), must(expected.Save())(t)) {
		t.Fatal("a path of a tree is stored in other pages than alone")
	}
	requireError(t, step.CommitKept(nil), kvq.ErrState, "the step has ended")
}

func TestAnAbortedStepTakesItsTokensBack(t *testing.T) {
	m, both := conversations(t)
	before := must(both[0].Save())(t)
	func() {
		step := must(m.cache.BeginStep(both, 4, 4))(t)
		defer step.Abort()
		m.extend(t, both, 4)
	}()
	step := must(m.cache.BeginStep(both, 4, 4))(t)
	m.extend(t, both, 4)
	require(t, step.Abort())
	require(t, step.Abort()) // has ended, nothing happens
	requireError(t, step.Commit(), kvq.ErrState, "the step has ended")
	requireLengths(t, both[1], 30)
	if !bytes.Equal(must(both[0].Save())(t), before) {
		t.Fatal("an aborted step has changed a sequence")
	}
}

func TestWhatAStepRefusesLeavesItActive(t *testing.T) {
	m, both := conversations(t)
	requireError(t, errorOf(m.cache.BeginStep(nil)), kvq.ErrArgument, "sequences has 0 elements")
	requireError(t, errorOf(m.cache.BeginStep(both, 1)), kvq.ErrArgument, "counts has 1 elements, must have 2")
	requireError(t, errorOf(m.cache.BeginStep(both, 1, 0)), kvq.ErrArgument, "must be at least 1")
	step := must(m.cache.BeginStep(both, 2, 2))(t)
	m.extend(t, both, 2)
	requireError(t, both[0].Truncate(100), kvq.ErrState, "in a step")
	requireError(t, errorOf(both[0].Fork()), kvq.ErrState, "in a step")
	requireError(t, errorOf(both[0].Save()), kvq.ErrState, "in a step")
	requireError(t, both[0].Reserve(64), kvq.ErrState, "in a step")
	requireError(t, both[0].Recode(nil), kvq.ErrState, "in a step")
	requireError(t, errorOf(m.cache.Save(both)), kvq.ErrState, "in a step")
	requireError(t, errorOf(m.cache.BeginStep(both)), kvq.ErrState, "in a step already")
	one := kvq.Of(make([]float32, 32))
	requireError(t, both[0].Append(0, one, one), kvq.ErrArgument, "the step began with 2 tokens")
	requireError(t, step.Commit(3, 2), kvq.ErrArgument, "has received 2 tokens")
	requireError(t, step.Commit(1), kvq.ErrArgument, "counts has 1 elements, must have 2")
	require(t, step.Commit(1, 2))
	requireLengths(t, both[0], 101)
	requireLengths(t, both[1], 32)

	step = must(m.cache.BeginStep(both))(t)
	require(t, both[0].Append(0, one, one))
	requireError(t, step.Commit(), kvq.ErrState, "cannot keep all tokens")
	require(t, step.Abort())
	requireLengths(t, both[0], 101)
}

func TestASequenceMayBeClosedInsideAStep(t *testing.T) {
	m, both := conversations(t)
	step := must(m.cache.BeginStep(both, 2, 2))(t)
	m.extend(t, both, 2)
	require(t, both[1].Close())
	requireError(t, step.Commit(), kvq.ErrClosed)
	require(t, step.Abort())
	requireLengths(t, both[0], 100)
	step = must(m.cache.BeginStep(both[:1]))(t)
	require(t, both[0].Close())
	require(t, step.Abort())
}

// Draft tokens of speculative decoding: all layers take them, and the accepted ones stay.
func ExampleCache_BeginStep() {
	x, _ := kvq.NewContext(nil)
	defer x.Close()
	policy, _ := x.LoadPolicy("int4")
	cache, _ := x.NewCache(kvq.NewCacheOptions(2, 2, 2, 64), policy)
	sequence, _ := cache.NewSequence()
	step, err := cache.BeginStep([]*kvq.Sequence{sequence}, 5)
	if err != nil {
		panic(err)
	}
	defer step.Abort() // unless committed
	rows := func() kvq.Tensor { return kvq.Of(make([]float32, 5*2*64)) }
	for layer := 0; layer < 2; layer++ {
		if err := cache.Extend(layer, &kvq.ExtendBatch{Sequences: []*kvq.Sequence{sequence}, TokenCounts: []int32{5},
			K: rows(), V: rows(), Q: rows(), Output: rows()}); err != nil {
			panic(err)
		}
	}
	if err := step.Commit(3); err != nil { // as many as the model accepts
		panic(err)
	}
	length, _ := sequence.Length(1)
	fmt.Println(length, "tokens")
	// Output: 3 tokens
}
