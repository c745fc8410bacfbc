package kvq_test

import (
	"bytes"
	"fmt"
	"testing"
	"unsafe"

	"kvq"
)

// saved makes a cache of gs4 with a sequence of 300 tokens and a fork of it with 40 more, and an empty cache.
func saved(t *testing.T) (m model, both []*kvq.Sequence, other *kvq.Cache) {
	t.Helper()
	m = newModel(t, "gs4", nil, kvq.NewCacheOptions(2, 4, 2, 16))
	r := random(7)
	for layer := 0; layer < 2; layer++ {
		m.append(t, m.sequence, layer, 300, &r)
	}
	require(t, m.sequence.Reserve(0)) // finds its scales, so that both share sealed pages
	fork := must(m.sequence.Fork())(t)
	for layer := 0; layer < 2; layer++ {
		m.append(t, fork, layer, 40, &r)
	}
	other = must(m.context.NewCache(kvq.NewCacheOptions(2, 4, 2, 16), m.policy(t, "gs4")))(t)
	t.Cleanup(func() { fork.Close(); other.Close() })
	return m, []*kvq.Sequence{m.sequence, fork}, other
}

func (m *model) policy(t *testing.T, text string) *kvq.Policy {
	t.Helper()
	it := must(m.context.LoadPolicy(text))(t)
	t.Cleanup(func() { it.Close() })
	return it
}

func requireSameTokens(t *testing.T, a, b *kvq.Sequence) {
	t.Helper()
	for layer := 0; layer < 2; layer++ {
		n := must(b.Length(layer))(t)
		requireLengths(t, a, n)
		if fmt.Sprint(must(a.Decode(layer, 1, 0, n))(t)) != fmt.Sprint(must(b.Decode(layer, 1, 0, n))(t)) {
			t.Fatalf("layer %d holds other numbers", layer)
		}
	}
}

func formats(t *testing.T, it interface {
	DescribeLayer(layer int) (kvq.LayerInfo, error)
}) string {
	t.Helper()
	return must(it.DescribeLayer(1))(t).Formats
}

func TestRecodingTakesTheMemoryThatWasPredicted(t *testing.T) {
	m, both, _ := saved(t)
	small, before := m.policy(t, "gs2"), must(both[1].Save())(t)
	alone := must(m.cache.LoadSequence(must(both[0].Save())(t)))(t)
	defer alone.Close()
	predicted, usage := must(alone.PredictRecode(small))(t), must(alone.Usage())(t)
	if predicted.Pages == 0 || predicted.BytesBefore != usage.TotalBytes {
		t.Fatalf("predicted %+v for %+v", predicted, usage)
	}
	require(t, alone.Recode(small))
	after := must(alone.Usage())(t)
	if after.TotalBytes != predicted.BytesAfter || after.TotalBytes >= usage.TotalBytes || after.SealedBytes >= usage.SealedBytes {
		t.Fatalf("%+v has become %+v", usage, after)
	}
	if formats(t, alone) == formats(t, m.cache) {
		t.Fatalf("the formats are still %s", formats(t, alone))
	}
	require(t, both[0].Recode(small))
	if !bytes.Equal(must(both[1].Save())(t), before) {
		t.Fatal("recoding a sequence has changed its fork")
	}
	require(t, both[0].Recode(nil))
	if formats(t, both[0]) != formats(t, m.cache) || must(both[0].PredictRecode(nil))(t).Pages != 0 {
		t.Fatal("no policy is not that of the cache")
	}
}

func TestRefusedRecodingChangesNothing(t *testing.T) {
	m, both, _ := saved(t)
	before := must(both[0].Save())(t)
	evicting, closed := m.policy(t, "gs2+snapkv:64"), m.policy(t, "gs2")
	require(t, closed.Close())
	requireError(t, both[0].Recode(evicting), kvq.ErrArgument, "evicts otherwise")
	requireError(t, errorOf(both[0].PredictRecode(evicting)), kvq.ErrArgument, "evicts otherwise")
	requireError(t, both[0].Recode(closed), kvq.ErrClosed)
	requireError(t, errorOf(both[0].DescribeLayer(2)), kvq.ErrArgument, "layer is 2")
	if !bytes.Equal(must(both[0].Save())(t), before) {
		t.Fatal("a refused recoding has changed the sequence")
	}
	require(t, both[1].Close())
	requireError(t, both[1].Recode(nil), kvq.ErrClosed)
}

func TestASequenceAndItsForkSharePagesAgainWhereTheyAreLoaded(t *testing.T) {
	m, both, other := saved(t)
	snapshot := must(m.cache.Save(both))(t)
	if len(snapshot) >= len(must(both[0].Save())(t))+len(must(both[1].Save())(t)) {
		t.Fatal("shared pages are written twice")
	}
	info := must(other.DescribeSnapshot(snapshot, nil))(t)
	if info.Sequences != 2 || info.Tokens != 340 || info.RecodedPages != 0 {
		t.Fatalf("the snapshot has %+v", info)
	}
	loaded := must(other.Load(snapshot, nil))(t)
	defer func() {
		for _, s := range loaded {
			require(t, s.Close())
		}
	}()
	shared := must(other.Usage())(t).SharedPages
	if shared == 0 || shared != must(m.cache.Usage())(t).SharedPages {
		t.Fatalf("%d pages are shared", shared)
	}
	for i, s := range loaded {
		requireSameTokens(t, s, both[i])
	}
	if !bytes.Equal(must(other.Save(loaded))(t), snapshot) {
		t.Fatal("a snapshot saved again has other bytes")
	}
	if !bytes.Equal(must(m.cache.Save(both[:1]))(t), must(both[0].Save())(t)) {
		t.Fatal("a snapshot of one sequence is not its own")
	}
	require(t, other.Close())
	requireLengths(t, loaded[1], 340)
}

func TestOtherFormatsAreRefusedUnlessPagesMayBeRecoded(t *testing.T) {
	m, both, other := saved(t)
	snapshot := must(m.cache.Save(both))(t)
	options := &kvq.LoadOptions{Policy: m.policy(t, "gs2")}
	requireError(t, errorOf(other.Load(snapshot, options)), kvq.ErrMismatch)
	requireError(t, errorOf(other.DescribeSnapshot(snapshot, options)), kvq.ErrMismatch)
	if must(other.Usage())(t).SealedPages != 0 {
		t.Fatal("a refused snapshot has left sequences")
	}
	options.Recode = true
	if must(other.DescribeSnapshot(snapshot, options))(t).RecodedPages == 0 {
		t.Fatal("no pages are recoded")
	}
	loaded := must(other.Load(snapshot, options))(t)
	defer loaded[0].Close()
	defer loaded[1].Close()
	if must(other.Usage())(t).SharedPages == 0 || must(loaded[0].Usage())(t).SealedBytes >= must(both[0].Usage())(t).SealedBytes {
		t.Fatal("pages are not shared, or not smaller")
	}
	require(t, both[0].Recode(options.Policy))
	requireSameTokens(t, loaded[0], both[0])
}

func TestWrongSequencesAndSnapshotsAreRefused(t *testing.T) {
	m, both, other := saved(t)
	snapshot := must(m.cache.Save(both))(t)
	requireError(t, errorOf(m.cache.Save(nil)), kvq.ErrArgument, "sequences has 0 elements")
	requireError(t, errorOf(m.cache.Save([]*kvq.Sequence{both[0], both[0]})), kvq.ErrArgument, "twice")
	requireError(t, errorOf(m.cache.Save([]*kvq.Sequence{nil})), kvq.ErrArgument, "Sequences[0] is nil")
	requireError(t, errorOf(other.Save(both)), kvq.ErrArgument, "Sequences[0] belongs to another cache")
	requireError(t, errorOf(other.LoadSequence(snapshot)), kvq.ErrMismatch, "snapshot has 2 sequences")
	requireError(t, errorOf(other.Load(nil, nil)), kvq.ErrArgument, "snapshot is empty")
	requireError(t, errorOf(other.DescribeSnapshot(nil, nil)), kvq.ErrArgument, "snapshot is empty")
	requireError(t, errorOf(other.Load(snapshot[1:], nil)), kvq.ErrFormat)
	closed := m.policy(t, "gs2")
	require(t, closed.Close())
	requireError(t, errorOf(other.Load(snapshot, &kvq.LoadOptions{Policy: closed})), kvq.ErrClosed)
	require(t, both[1].Close())
	requireError(t, errorOf(m.cache.Save(both)), kvq.ErrClosed)
	require(t, other.Close())
	requireError(t, errorOf(other.Load(snapshot, nil)), kvq.ErrClosed)
}

func TestAnAllocatorThatPanicsAtAnyTimeLeavesNoSequences(t *testing.T) {
	m, both, _ := saved(t)
	snapshot := must(m.cache.Save(both))(t)
	p, left := pages{blocks: map[unsafe.Pointer][]byte{}}, -1
	allocate := func(bytes, alignment uintptr) unsafe.Pointer {
		if left == 0 {
			panic("no more")
		}
		left--
		return p.allocate(bytes, alignment)
	}
	x := must(kvq.NewContext(&kvq.ContextOptions{Allocate: allocate, Free: p.free}))(t)
	defer x.Close()
	small := must(x.LoadPolicy("gs2"))(t)
	defer small.Close()
	cache := must(x.NewCache(kvq.NewCacheOptions(2, 4, 2, 16), small))(t)
	defer cache.Close()
	load := func() (panicked bool) {
		defer func() { panicked = recover() != nil }()
		for _, s := range must(cache.Load(snapshot, &kvq.LoadOptions{Recode: true}))(t) {
			requireLengths(t, s, must(s.Length(0))(t))
			s.Close()
		}
		return false
	}
	load()
	held, failures := p.bytes, 0
	for left = 0; load(); left = failures {
		if failures++; p.bytes != held || failures > 1000 {
			t.Fatalf("%d bytes are held after %d failures, before there were %d", p.bytes, failures, held)
		}
	}
	if failures < 10 {
		t.Fatalf("only %d allocations", failures)
	}
}

func TestStatesOfRecurrentLayersGoWithASequence(t *testing.T) {
	options := kvq.NewCacheOptions(4, 4, 2, 16)
	options.Shapes = []kvq.LayerShape{{FirstLayer: 1, Recurrent: true}, {FirstLayer: 3, Recurrent: true}}
	m := newModel(t, "int4", nil, options)
	r := random(7)
	for _, layer := range []int{0, 2} {
		m.append(t, m.sequence, layer, 70, &r)
	}
	if info := must(m.cache.DescribeLayer(1))(t); !info.Recurrent {
		t.Fatal("layer 1 is not recurrent")
	}
	require(t, m.sequence.PutState(1, 64, []byte("state")))
	require(t, m.sequence.PutState(3, 64, []byte("other")))
	require(t, m.sequence.PutState(1, 70, []byte("newer")))
	requireError(t, m.sequence.PutState(1, 70, nil), kvq.ErrArgument, "data is empty")
	if one, all := must(m.sequence.FindState(1, 100))(t), must(m.sequence.FindStates(100))(t); one != 70 || all != 64 {
		t.Fatalf("found states after %d and %d tokens", one, all)
	}
	requireError(t, m.sequence.Truncate(32), kvq.ErrState, "length is 32, but layer 1 has no state")
	loaded := must(m.cache.LoadSequence(must(m.sequence.Save())(t)))(t)
	defer loaded.Close()
	require(t, loaded.Truncate(64))
	if state := must(loaded.GetState(1, 64))(t); string(state) != "state" {
		t.Fatalf("the state is %q", state)
	}
	require(t, m.sequence.DropStates(0, 70))
	requireError(t, errorOf(m.sequence.GetState(3, 64)), kvq.ErrArgument, "layer 3 has no state")
}
