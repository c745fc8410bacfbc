package kvq_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"

	"kvq"
	"kvq/raw"
)

func TestWrongShapesAreRefusedByName(t *testing.T) {
	m := newModel(t, "fp16", nil, kvq.NewCacheOptions(1, 4, 2, 16))
	other := newModel(t, "fp16", nil, kvq.NewCacheOptions(1, 4, 2, 16))
	f := func(n int) kvq.Tensor { return kvq.Of(make([]float32, n)) }
	s, one := m.sequence, []*kvq.Sequence{m.sequence}
	require(t, s.Append(0, f(32), f(32)))
	for _, it := range []struct {
		err   error
		parts string
	}{
		{s.Append(0, f(33), f(33)), "k has 33 elements|multiple of 32"},
		{s.Append(0, f(0), f(0)), "k has 0 elements|32"},
		{s.Append(0, f(32), f(64)), "v has 64 elements|32"},
		{s.Append(0, f(32), kvq.Of(make([]kvq.Float16, 32))), "v is of KVQ_F16|KVQ_F32"},
		{s.Append(0, f(32).Strided(64, 0), f(32)), "k has strides (64, 0)"},
		{s.Append(1, f(32), f(32)), "layer is 1"},
		{s.Append(1<<40, f(32), f(32)), "layer is 1099511627776"},
		{s.AppendAt(0, f(64), f(64), []int32{1}), "positions has 1 elements, must have 2"},
		{s.AppendAt(0, f(32), f(32), []int32{0}), "positions"},
		{s.Attend(0, f(65), f(65)), "q has 65 elements|multiple of 64"},
		{s.Attend(0, f(64), f(63)), "output has 63 elements|64"},
		{m.cache.Append(0, &kvq.AppendBatch{}), "Sequences has 0 elements"},
		{m.cache.Append(0, nil), "batch is nil"},
		{m.cache.Append(0, &kvq.AppendBatch{Sequences: one, K: f(31), V: f(32)}), "K has 31 elements, must have 32"},
		{m.cache.Append(0, &kvq.AppendBatch{Sequences: one, K: f(32), V: f(31)}), "V has 31 elements, must have 32"},
		{m.cache.Append(0, &kvq.AppendBatch{Sequences: one, TokenCounts: []int32{0}}), "TokenCounts[0] is 0"},
		{m.cache.Append(0, &kvq.AppendBatch{Sequences: one, TokenCounts: []int32{1, 1}}), "TokenCounts has 2 elements, must have 1"},
		{m.cache.Append(0, &kvq.AppendBatch{Sequences: []*kvq.Sequence{s, s}, K: f(64), V: f(64)}), "sequences[1]|again"},
		{m.cache.Append(0, &kvq.AppendBatch{Sequences: []*kvq.Sequence{s, nil}, K: f(64), V: f(64)}), "Sequences[1] is nil"},
		{m.cache.Append(0, &kvq.AppendBatch{Sequences: []*kvq.Sequence{other.sequence}, K: f(32), V: f(32)}), "Sequences[0] belongs to another cache"},
		{m.cache.Append(0, &kvq.AppendBatch{Sequences: one, TokenCounts: []int32{3}, K: f(127).Strided(48, 0), V: f(96)}), "K has 127 elements, too few for 3 rows"},
		{m.cache.Append(0, &kvq.AppendBatch{Sequences: one, TokenCounts: []int32{3}, K: f(128).Strided(math.MaxInt, 0), V: f(96)}), "K has 128 elements, too few for 3 rows"},
		{m.cache.Append(0, &kvq.AppendBatch{Sequences: one, K: f(32).Strided(-1, 0), V: f(32)}), "K has strides (-1, 0)"},
		{m.cache.Attend(0, &kvq.AttendBatch{Sequences: one, Q: f(64), Output: f(64), LSE: make([]float32, 3)}), "LSE has 3 elements, must have 4"},
		{m.cache.Attend(0, &kvq.AttendBatch{Sequences: one, Q: f(64), Output: f(64), Sinks: make([]float32, 5)}), "Sinks has 5 elements, must have 4"},
		{m.cache.Attend(0, &kvq.AttendBatch{Sequences: one, Q: f(63), Output: f(64)}), "Q has 63 elements, must have 64"},
		{m.cache.Attend(0, &kvq.AttendBatch{Sequences: one, Q: f(64), Output: f(63)}), "Output has 63 elements, must have 64"},
		{m.cache.Attend(0, &kvq.AttendBatch{Sequences: one, Q: f(64), Output: f(math.MaxInt16).Strided(0, math.MaxInt), QueryPositions: []int32{0}}), "Output has 32767 elements, too few"},
		{m.cache.Attend(0, &kvq.AttendBatch{Sequences: one, QueryPositions: []int32{}, Q: f(64), Output: f(64)}), "QueryPositions has 0 elements, must have 1"},
		{m.cache.Extend(0, nil), "batch is nil"},
		{m.cache.Extend(0, &kvq.ExtendBatch{Sequences: one, K: f(32), V: f(32), Q: f(63), Output: f(64)}), "Q has 63 elements, must have 64"},
		{m.cache.Extend(0, &kvq.ExtendBatch{Sequences: one, K: f(32), V: f(31), Q: f(64), Output: f(64)}), "V has 31 elements, must have 32"},
	} {
		requireError(t, it.err, kvq.ErrArgument, strings.Split(it.parts, "|")...)
	}
	// A stride that lets the last row end where the memory does is right: 2 * 48 + 32.
	require(t, m.cache.Append(0, &kvq.AppendBatch{Sequences: one, TokenCounts: []int32{3}, K: f(128).Strided(48, 0), V: f(96)}))
	if n := must(s.Length(0))(t); n != 4 {
		t.Fatalf("refused calls changed the sequence: it has %d tokens", n)
	}
}

func TestFailuresOfTheLibraryKeepTheirStatusAndMessage(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	err := errorOf(x.LoadPolicy("version: 1\nkeys: int5\n"))
	requireError(t, err, kvq.ErrFormat, "int5", "KVQ_E_FORMAT")
	var failed *kvq.Error
	if !errors.As(err, &failed) || failed.Status != kvq.ErrFormat || failed.BackendCode != 0 {
		t.Fatalf("the error is %#v", err)
	}
	if errors.Is(err, kvq.ErrLimit) {
		t.Fatal("an error is of two statuses")
	}
	requireError(t, errorOf(x.Quantize(nil, kvq.Of(make([]float32, 64)), 1, 64, nil)), kvq.ErrArgument, "ctx is nil")
	plain := must(x.LoadPolicy("fp16"))(t)
	some := must(x.NewCache(kvq.NewCacheOptions(1, 1, 1, 8), plain))(t)
	frequencies := kvq.NewCacheOptions(1, 1, 1, 16)
	frequencies.InvFreq = make([]float32, 7)
	newContext := func(o kvq.ContextOptions) error { return errorOf(kvq.NewContext(&o)) }
	newCache := func(o *kvq.CacheOptions) error { return errorOf(x.NewCache(o, nil)) }
	withLayer := func(p *kvq.Policy, first int, keys string) error {
		return errorOf(x.PolicyWithLayer(p, first, 1, keys, ""))
	}
	_, _, sizeErr := kvq.PredictMatrixBytes("nuq-7", 1, 64, false)
	for _, it := range []struct {
		err    error
		target error
		part   string
	}{
		{errorOf(x.LoadPolicy("")), kvq.ErrFormat, ""},
		{errorOf(x.LoadCodebook([]byte("no codebook"))), kvq.ErrFormat, ""},
		{errorOf(x.LoadMatrix([]byte("no matrix"), "w")), kvq.ErrFormat, ""},
		{newContext(kvq.ContextOptions{CPUISA: "z80"}), kvq.ErrUnsupported, "z80"},
		{newContext(kvq.ContextOptions{CPUISA: "av\x00x2"}), kvq.ErrArgument, "zero byte"},
		{newContext(kvq.ContextOptions{Threads: -1}), kvq.ErrArgument, "n_threads is -1"},
		{newContext(kvq.ContextOptions{MaxBytes: 1}), kvq.ErrLimit, ""},
		{newCache(nil), kvq.ErrArgument, "options is nil"},
		{newCache(frequencies), kvq.ErrArgument, "InvFreq has 7 elements, must have 8"},
		{x.SetStream(0), kvq.ErrUnsupported, ""},
		{errorOf(x.PolicyWithEviction(nil, "h2o", 64)), kvq.ErrArgument, "policy is nil"},
		{withLayer(nil, 0, "int4"), kvq.ErrArgument, "policy is nil"},
		{withLayer(plain, 2, "int4"), kvq.ErrArgument, "first_layer is 2"},
		{withLayer(plain, 0, "int5"), kvq.ErrArgument, "keys is"},
		{errorOf(some.PredictUsage(0, 10, 1)), kvq.ErrArgument, "sequences is 0"},
		{sizeErr, kvq.ErrArgument, "nuq-7"},
	} {
		requireError(t, it.err, it.target, it.part)
	}
}

func TestClosedObjectsAnswerAndCloseAgain(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	policy := must(x.LoadPolicy("fp16"))(t)
	cache := must(x.NewCache(kvq.NewCacheOptions(1, 1, 1, 8), policy))(t)
	s := must(cache.NewSequence())(t)
	eight := kvq.Of(make([]float32, 8))
	weights := kvq.Of(make([]float32, 64))
	matrix := must(x.Quantize(context.Background(), weights, 1, 64, nil))(t)
	// In the order of creation: what others need stays.
	for _, it := range []interface{ Close() error }{x, policy, cache, x, policy, cache} {
		require(t, it.Close())
	}
	require(t, s.Append(0, eight, eight))
	require(t, s.Attend(0, eight, kvq.Of(make([]float32, 8))))
	fork := must(s.Fork())(t)
	require(t, fork.Close())
	require(t, s.Close())
	require(t, s.Close())
	require(t, matrix.Linear(weights, kvq.Of(make([]float32, 1))))
	require(t, matrix.Close())
	for i, err := range []error{errorOf(policy.Describe()), errorOf(x.Describe()), errorOf(cache.NewSequence()),
		errorOf(cache.Usage()), errorOf(s.Length(0)), errorOf(s.Save()), errorOf(s.Fork()), errorOf(x.LoadPolicy("fp16")),
		errorOf(matrix.Dequantize(0, 1)), errorOf(new(kvq.Sequence).Length(0)), s.Append(0, eight, eight), s.Attend(0, eight, eight), s.Truncate(0), new(kvq.Sequence).Append(0, eight, eight),
		cache.Attend(0, &kvq.AttendBatch{Sequences: []*kvq.Sequence{s}, Q: eight, Output: eight}),
		matrix.Linear(weights, kvq.Of(make([]float32, 1))), new(kvq.Cache).Append(0, &kvq.AppendBatch{})} {
		if !errors.Is(err, kvq.ErrClosed) {
			t.Errorf("use %d after Close gives %v", i, err)
		}
	}
	within := new(struct {
		before *int
		cache  kvq.Cache // never opened, and not where its memory begins
	})
	require(t, within.cache.Close())
}

func TestWhatIsNotClosedEndsWhenItIsCollected(t *testing.T) {
	released := make(chan bool, 1)
	func() {
		x := must(kvq.NewContext(&kvq.ContextOptions{Released: func() { released <- true }}))(t)
		cache := must(x.NewCache(kvq.NewCacheOptions(1, 1, 1, 8), nil))(t)
		must(cache.NewSequence())(t)
	}()
	for i := 0; i < 1000; i++ { // each object in the collection after what it keeps alive
		runtime.GC()
		select {
		case <-released:
			return
		default:
			runtime.Gosched()
		}
	}
	t.Fatal("the context was not released")
}

func TestTheRawLayerLeavesChecksToTheLibrary(t *testing.T) {
	var err raw.Error
	raw.ErrorInit(&err)
	if status := raw.Attend(nil, 0, nil, &err); status != raw.EArgument || status != err.Code {
		t.Fatalf("attending to nothing gives %s", status)
	}
	if raw.CacheContext(nil) != nil || raw.SequenceCache(nil) != nil {
		t.Fatal("nothing belongs to something")
	}
	var x *raw.Context
	var cache *raw.Cache
	if raw.ContextCreate(nil, &x, &err) != raw.OK {
		t.Fatal("no context")
	}
	var options raw.CacheOptions
	raw.CacheOptionsInit(&options)
	options.NLayers, options.QHeads, options.KVHeads, options.HeadDim = 1, 1, 1, 8
	if raw.CacheCreate(x, &options, nil, &cache, nil) != raw.OK || raw.CacheContext(cache) != x {
		t.Fatal("a cache does not know its context")
	}
	var append_ raw.AppendBatch
	append_.NSequences = 9
	raw.AppendBatchInit(&append_)
	var attend raw.AttendBatch
	attend.NSequences = 9
	raw.AttendBatchInit(&attend)
	var extend raw.ExtendBatch
	extend.NSequences = 9
	raw.ExtendBatchInit(&extend)
	var step raw.StepBatch
	step.NSequences = 9
	raw.StepBatchInit(&step)
	var planned raw.PoolBatch
	planned.NSequences = 9
	raw.PoolBatchInit(&planned)
	var call raw.PoolCall
	call.NTokens = 9
	raw.PoolCallInit(&call)
	if append_.NSequences != 0 || attend.NSequences != 0 || extend.NSequences != 0 || step.NSequences != 0 ||
		planned.NSequences != 0 || call.NTokens != 0 || planned.StructSize != 64 || call.StructSize != 152 ||
		append_.StructSize != 96 || attend.StructSize != 136 || extend.StructSize != 184 || step.StructSize != 32 {
		t.Fatal("defaults are not set")
	}
	raw.CacheDestroy(cache)
	raw.ContextDestroy(x)
}
