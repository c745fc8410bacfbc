package kvq_test

import (
	"math"
	"reflect"
	"syscall"
	"testing"
	"unsafe"

	"kvq"
)

// engine is a program's side of a pool of 16 blocks and 3 tails for two layers.
type engine struct {
	pool   *kvq.Pool
	plan   *kvq.PoolPlan
	memory *kvq.PoolOptions
}

// pools makes a cache of two layers whose pages a pool can hold.
func pools(t *testing.T) model {
	t.Helper()
	return newModel(t, "{version: 1, keys: int4, values: gs4, sink: 0, calibrate: none}", nil, kvq.NewCacheOptions(2, 4, 2, 32))
}

// mapped returns memory that is not Go's until the test ends.
func mapped(t *testing.T, size int) []byte {
	t.Helper()
	memory := must(syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE))(t)
	t.Cleanup(func() { require(t, syscall.Munmap(memory)) })
	return memory
}

func newEngine(t *testing.T, m model, ranges int) engine {
	t.Helper()
	layout := must(m.cache.BlockLayout(0, 32))(t)
	each, stride := 16/ranges, int(layout.BlockBytes)+64
	memory := &kvq.PoolOptions{BlockTokens: 32, TailCount: 3}
	for layer := 0; layer < 2; layer++ {
		var of []kvq.BlockRange
		for i := 0; i < ranges; i++ {
			of = append(of, kvq.BlockRange{Memory: kvq.HostMemory(mapped(t, each*stride)), Blocks: each, Stride: stride})
		}
		memory.Ranges = append(memory.Ranges, of)
		memory.Tails = append(memory.Tails, kvq.HostMemory(mapped(t, 3*int(layout.TailBytes))))
	}
	pool := must(m.cache.NewPool(memory))(t)
	plan := must(pool.NewPlan(kvq.PoolLimits{Sequences: 3, Tokens: 200, Blocks: 8}))(t)
	t.Cleanup(func() { require(t, pool.Close()); require(t, plan.Close()) })
	return engine{pool, plan, memory}
}

// batch plans tokens of sequences of up to five blocks each.
func (e *engine) batch(counts, lengths []int32) error {
	n, starts := int32(len(counts)), []int32{0}
	var table, tails []int32
	for i, count := range counts {
		starts = append(starts, starts[i]+count)
		for block := int32(0); block < 5; block++ {
			table = append(table, block*n+int32(i))
		}
		tails = append(tails, n-1-int32(i))
	}
	return e.plan.Batch(&kvq.PoolBatch{QueryStarts: starts, Lengths: lengths, BlockTable: table, TableStride: 5, Tails: tails})
}

// tokens returns keys, values and queries of n tokens.
func (r *random) tokens(n int) (k, v, q kvq.Tensor) {
	return kvq.Of(r.floats(n * 64)), kvq.Of(r.floats(n * 64)), kvq.Of(r.floats(n * 128))
}

func TestAPoolHasTheResultsOfTheCache(t *testing.T) {
	for _, ranges := range []int{1, 4} {
		m, r := pools(t), random(1)
		e := newEngine(t, m, ranges)
		var sequences []*kvq.Sequence
		for i := 0; i < 3; i++ {
			s := must(m.cache.NewSequence())(t)
			defer s.Close()
			sequences = append(sequences, s)
		}
		lengths := make([]int32, 3)
		for _, counts := range [][]int32{{40, 3, 70}, {1, 1, 1}, {20, 30, 2}, {1, 1, 1}} {
			n := 0
			for i, count := range counts {
				lengths[i] += count
				n += int(count)
			}
			require(t, e.batch(counts, lengths))
			for layer := 0; layer < 2; layer++ {
				k, v, q := r.tokens(n)
				output, expected, lse := make([]float32, n*128), make([]float32, n*128), make([]float32, n*4)
				lse[0] = float32(math.NaN())
				require(t, e.plan.Extend(layer, &kvq.PoolCall{K: k, V: v, Q: q, Output: kvq.Of(output), LSE: lse}))
				require(t, m.cache.Extend(layer, &kvq.ExtendBatch{Sequences: sequences, TokenCounts: counts, K: k, V: v, Q: q,
					Output: kvq.Of(expected)}))
				if !reflect.DeepEqual(output, expected) || lse[0] != lse[0] {
					t.Fatalf("after %v tokens, layer %d has other results than the cache", lengths, layer)
				}
			}
		}
		if must(e.plan.Bytes())(t) == 0 || e.plan.Pool() != e.pool || e.pool.Cache() != m.cache {
			t.Fatal("the plan has no memory, or other objects")
		}
	}
}

func TestABlockGoesToAnotherPool(t *testing.T) {
	m, r := pools(t), random(1)
	one, other := newEngine(t, m, 1), newEngine(t, m, 1)
	require(t, one.batch([]int32{64}, []int32{64}))
	k, v, _ := r.tokens(64)
	require(t, one.plan.Append(0, &kvq.PoolCall{K: k, V: v}))
	for block := 0; block < 2; block++ {
		require(t, other.pool.WriteBlock(0, block, must(one.pool.ReadBlock(0, block))(t)))
	}
	k, v, q := r.tokens(1)
	var outputs [2][]float32
	for i, e := range []engine{one, other} {
		outputs[i] = make([]float32, 128)
		require(t, e.batch([]int32{1}, []int32{65}))
		require(t, e.plan.Append(0, &kvq.PoolCall{K: k, V: v}))
		require(t, e.plan.Attend(0, &kvq.PoolCall{Q: q, Output: kvq.Of(outputs[i])}))
	}
	if !reflect.DeepEqual(outputs[0], outputs[1]) {
		t.Fatal("the pools have different results")
	}
	bytes := must(one.pool.ReadBlock(0, 0))(t)
	for i := range bytes {
		bytes[i] = 0x7c
	}
	requireError(t, one.pool.WriteBlock(0, 0, bytes), kvq.ErrFormat, "no encoder writes")
	requireError(t, one.pool.WriteBlock(0, 0, bytes[1:]), kvq.ErrArgument, "size")
	requireError(t, one.pool.WriteBlock(0, 0, nil), kvq.ErrArgument, "data is empty")
}

func TestSizesOfPoolsAreChecked(t *testing.T) {
	m, r := pools(t), random(1)
	e := newEngine(t, m, 1)
	k, v, q := r.tokens(5)
	call := &kvq.PoolCall{K: k, V: v, Q: q, Output: kvq.Of(make([]float32, 5*128))}
	requireError(t, e.plan.Extend(0, call), kvq.ErrState, "plan has no batch")
	requireError(t, e.batch([]int32{5}, []int32{5, 5}), kvq.ErrArgument, "QueryStarts has 2 elements, must have 3")
	requireError(t, e.batch([]int32{5}, []int32{4}), kvq.ErrArgument, "lengths[0] is 4")
	batch := &kvq.PoolBatch{QueryStarts: []int32{0, 5}, Lengths: []int32{5}, BlockTable: []int32{0}}
	requireError(t, e.plan.Batch(batch), kvq.ErrArgument, "BlockTable has 1 elements, must have 8")
	requireError(t, e.plan.Batch(nil), kvq.ErrArgument, "batch is nil")
	requireError(t, e.plan.BatchDevice(&kvq.DevicePoolBatch{}), kvq.ErrArgument, "use Batch")

	require(t, e.batch([]int32{5}, []int32{5}))
	_, _, short := r.tokens(4)
	requireError(t, e.plan.Extend(0, &kvq.PoolCall{K: k, V: v, Q: short, Output: call.Output}), kvq.ErrArgument,
		"Q has 512 elements, must have 640: 5 x 4 x 32")
	requireError(t, e.plan.Append(0, call), kvq.ErrArgument, "Q or Output is given")
	requireError(t, e.plan.Attend(0, call), kvq.ErrArgument, "K or V is given")
	requireError(t, e.plan.Append(2, &kvq.PoolCall{K: k, V: v}), kvq.ErrArgument, "layer is 2")
	requireError(t, e.plan.ExtendDevice(0, &kvq.DevicePoolCall{}), kvq.ErrArgument, "use Extend")
	require(t, e.plan.Extend(0, call))

	memory := *e.memory
	memory.Ranges = e.memory.Ranges[:1]
	requireError(t, errorOf(m.cache.NewPool(&memory)), kvq.ErrArgument, "Ranges has 1 elements, must have 2")
	few := e.memory.Ranges[1][0]
	few.Blocks++
	memory.Ranges = [][]kvq.BlockRange{e.memory.Ranges[0], {few}}
	requireError(t, errorOf(m.cache.NewPool(&memory)), kvq.ErrArgument, "Ranges[1][0] has", "too few for 17 times")
	memory.Ranges, memory.TailCount = e.memory.Ranges, 4
	requireError(t, errorOf(m.cache.NewPool(&memory)), kvq.ErrArgument, "Tails[0] has", "too few for 4 times")
	memory.Tails, memory.TailCount = nil, 0
	requireError(t, errorOf(m.cache.NewPool(&memory)), kvq.ErrArgument, "options->tails")
	number := 0
	memory.Tails = []kvq.Memory{kvq.DevicePointer(unsafe.Pointer(&number)).Memory(), {}}
	requireError(t, errorOf(m.cache.NewPool(&memory)), kvq.ErrArgument, "Tails[0] is in other memory")
	requireError(t, errorOf(m.cache.BlockLayout(0, 33)), kvq.ErrArgument, "block_tokens is 33")
}

func TestAPlanOutlivesItsPool(t *testing.T) {
	m, r := pools(t), random(1)
	e := newEngine(t, m, 1)
	require(t, e.batch([]int32{5}, []int32{5}))
	k, v, q := r.tokens(5)
	call := &kvq.PoolCall{K: k, V: v, Q: q, Output: kvq.Of(make([]float32, 5*128))}
	require(t, e.pool.Close())
	require(t, e.plan.Extend(0, call))
	for _, err := range []error{errorOf(e.pool.ReadBlock(0, 0)), e.pool.WriteBlock(0, 0, []byte{1}), errorOf(e.pool.NewPlan(kvq.PoolLimits{}))} {
		requireError(t, err, kvq.ErrClosed)
	}
	require(t, e.plan.Close())
	for _, err := range []error{e.plan.Extend(0, call), e.batch([]int32{5}, []int32{5}), errorOf(e.plan.Bytes())} {
		requireError(t, err, kvq.ErrClosed)
	}
}
