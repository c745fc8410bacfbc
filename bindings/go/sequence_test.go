package kvq_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"kvq"
	"kvq/raw"
)

func TestForksShareWhatTheyDoNotChange(t *testing.T) {
	m := newModel(t, "int4", nil, kvq.NewCacheOptions(1, 2, 2, 16))
	r := random(1)
	m.append(t, m.sequence, 0, 64, &r)
	fork := must(m.sequence.Fork())(t)
	defer fork.Close()
	if usage := must(m.cache.Usage())(t); usage.SharedPages != 2*2 {
		t.Fatalf("%d pages are shared, expected 2 of 2 heads", usage.SharedPages)
	}
	before := must(m.sequence.Decode(0, 1, 0, 64))(t)
	m.append(t, fork, 0, 10, &r)
	if n := must(fork.Length(0))(t); n != 74 {
		t.Fatalf("the fork has %d tokens", n)
	}
	if n := must(m.sequence.Length(0))(t); n != 64 {
		t.Fatalf("the sequence has %d tokens", n)
	}
	after := must(m.sequence.Decode(0, 1, 0, 64))(t)
	if fmt.Sprint(before) != fmt.Sprint(after) {
		t.Fatal("appending to a fork changed what it was forked from")
	}
	if must(fork.Usage())(t).Scalars != 2*16*74*2 {
		t.Fatal("scalars are not 2 x head_dim x slots over heads")
	}
	if fork.Cache() != m.cache || m.cache.Context() != m.context {
		t.Fatal("a sequence or a cache does not know what it was made from")
	}
}

func TestTruncateTakesTokensBack(t *testing.T) {
	m := newModel(t, "{version: 1, keys: int4, values: int4, recent: 2}", nil, kvq.NewCacheOptions(1, 1, 1, 16))
	r := random(2)
	m.append(t, m.sequence, 0, 90, &r)
	kept := must(m.sequence.Decode(0, 0, 0, 70))(t)
	require(t, m.sequence.Truncate(70))
	if n := must(m.sequence.Length(0))(t); n != 70 {
		t.Fatalf("%d tokens are left", n)
	}
	if fmt.Sprint(must(m.sequence.Decode(0, 0, 0, 70))(t)) != fmt.Sprint(kept) {
		t.Fatal("what was kept has changed")
	}
	requireError(t, m.sequence.Truncate(20), kvq.ErrState, "20", "KVQ_E_STATE")
	requireError(t, m.sequence.Truncate(71), kvq.ErrArgument, "length is 71")
}

func TestSnapshotsComeBackBitForBit(t *testing.T) {
	m := newModel(t, "int3", nil, kvq.NewCacheOptions(2, 2, 1, 32))
	r := random(3)
	for layer := 0; layer < 2; layer++ {
		m.append(t, m.sequence, layer, 50, &r)
	}
	snapshot := must(m.sequence.Save())(t)
	loaded := must(m.cache.Load(snapshot))(t)
	defer loaded.Close()
	if !bytes.Equal(must(loaded.Save())(t), snapshot) {
		t.Fatal("a snapshot saved again has other bytes")
	}
	q, a, b := r.floats(64), make([]float32, 64), make([]float32, 64)
	require(t, m.sequence.Attend(1, kvq.Of(q), kvq.Of(a)))
	require(t, loaded.Attend(1, kvq.Of(q), kvq.Of(b)))
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Fatal("a loaded sequence answers differently")
	}
	damaged := append([]byte{}, snapshot...)
	damaged[len(damaged)/2] ^= 1
	_, err := m.cache.Load(damaged)
	requireError(t, err, kvq.ErrFormat)
	_, err = m.cache.Load(nil)
	requireError(t, err, kvq.ErrArgument, "snapshot is empty")
}

func TestReserveMakesRoom(t *testing.T) {
	m := newModel(t, "int4", nil, kvq.NewCacheOptions(1, 1, 1, 16))
	if room := must(m.sequence.Room(0))(t); room != 0 {
		t.Fatalf("an empty sequence has room for %d", room)
	}
	require(t, m.sequence.Reserve(100))
	room := must(m.sequence.Room(0))(t)
	if room < 100 {
		t.Fatalf("there is room for %d", room)
	}
	r := random(4)
	m.append(t, m.sequence, 0, 7, &r)
	if left := must(m.sequence.Room(0))(t); left != room-7 {
		t.Fatalf("7 tokens took %d of the room", room-left)
	}
	requireError(t, m.sequence.Reserve(-1), kvq.ErrArgument, "tokens is -1")
}

func TestPoliciesAreWrittenWithTheirLayersAndSizesPredicted(t *testing.T) {
	m := newModel(t, "fp16", nil, kvq.NewCacheOptions(1, 2, 2, 16))
	plain := must(m.context.LoadPolicy("int4"))(t)
	defer plain.Close()
	policy := must(m.context.PolicyWithLayer(plain, 0, 0, "", "gs2"))(t)
	defer policy.Close()
	text := must(policy.Save())(t)
	if text != "version: 1\nkeys: int4\nvalues: int4\nlayers:\n  - {range: [0, 0], values: gs2}\n" {
		t.Fatalf("the policy is written as %q", text)
	}
	cache := must(m.context.NewCache(kvq.NewCacheOptions(1, 2, 2, 16), policy))(t)
	defer cache.Close()
	predicted := must(cache.PredictUsage(1, 100, 0))(t)
	s := must(cache.NewSequence())(t)
	defer s.Close()
	require(t, s.Reserve(100))
	r := random(5)
	m.append(t, s, 0, 100, &r)
	if found := must(cache.Usage())(t); found != predicted {
		t.Fatalf("predicted %+v, found %+v", predicted, found)
	}
}

func TestCompressKeepsTheBudget(t *testing.T) {
	m := newModel(t, "fp16", nil, kvq.NewCacheOptions(1, 2, 2, 16))
	plain := must(m.context.LoadPolicy("int4"))(t)
	defer plain.Close()
	policy := must(m.context.PolicyWithEviction(plain, "snapkv", 48))(t)
	defer policy.Close()
	if info := must(policy.Describe())(t); info.EvictionBudget != 48 || info.EvictionWindow != 32 {
		t.Fatalf("the policy says %+v", info)
	}
	cache := must(m.context.NewCache(kvq.NewCacheOptions(1, 2, 2, 16), policy))(t)
	defer cache.Close()
	s := must(cache.NewSequence())(t)
	defer s.Close()
	r := random(5)
	m.append(t, s, 0, 128, &r)
	_, err := s.Compress(0)
	requireError(t, err, kvq.ErrState)
	q := r.floats(32 * 32)
	require(t, s.Attend(0, kvq.Of(q), kvq.Of(make([]float32, len(q)))))
	bytesBefore := must(s.Usage())(t).TotalBytes
	done := must(s.Compress(40))(t)
	for head, kept := range done.Kept {
		if slots := must(s.Slots(0, head))(t); kept != 40 || slots != 40 {
			t.Fatalf("head %d kept %d and holds %d", head, kept, slots)
		}
	}
	if freed := bytesBefore - must(s.Usage())(t).TotalBytes; freed != done.BytesFreed || freed == 0 {
		t.Fatalf("%d bytes were freed, %d reported", freed, done.BytesFreed)
	}
	newest := must(s.Decode(0, 0, 8, 32))(t)
	for i, position := range newest.Positions {
		if position != int32(96+i) {
			t.Fatalf("the window holds positions %v", newest.Positions)
		}
	}
	if n := must(s.Length(0))(t); n != 128 {
		t.Fatalf("the length is %d", n)
	}
	_, err = s.Compress(16)
	requireError(t, err, kvq.ErrArgument, "budget is 16")
}

func TestDescriptionsSayWhatThingsWereMadeWith(t *testing.T) {
	options := kvq.NewCacheOptions(2, 4, 2, 32)
	options.RotaryDim, options.ModelID = 16, 77
	m := newModel(t, "{version: 1, keys: int4, values: int2, sink: 1, recent: 3}",
		&kvq.ContextOptions{Threads: 2, MaxBytes: 1 << 30}, options)
	if i := m.info; i.Layers != 2 || i.QHeads != 4 || i.KVHeads != 2 || i.HeadDim != 32 || i.RotaryDim != 16 ||
		i.Rope != kvq.RopeHalf || i.Sink != 1 || i.Recent != 3 || i.ModelID != 77 {
		t.Fatalf("the cache says %+v", i)
	}
	layer := must(m.cache.DescribeLayer(1))(t)
	if layer.NFormats != 1 || layer.Formats != "int4/int2" {
		t.Fatalf("the layer says %+v", layer)
	}
	_, err := m.cache.DescribeLayer(2)
	requireError(t, err, kvq.ErrArgument, "layer is 2")
	info := must(m.context.Describe())(t)
	if info.Threads != 2 || info.MaxBytes != 1<<30 || info.Backend != "cpu" || info.Device != kvq.DeviceCPU ||
		info.ISA != kvq.CPUISAs()[0] || info.Bytes == 0 || info.PeakBytes < info.Bytes {
		t.Fatalf("the context says %+v", info)
	}
	if kvq.RopeHalf.String() != "KVQ_ROPE_HALF" || kvq.Rope(9).String() != "Rope(9)" {
		t.Fatal("values have other names")
	}
	if expected := fmt.Sprintf("%d.%d.", raw.HeaderVersionMajor, raw.HeaderVersionMinor); !strings.HasPrefix(kvq.Version(), expected) {
		t.Fatalf("the library is %s", kvq.Version())
	}
}
