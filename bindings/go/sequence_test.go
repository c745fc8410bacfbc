package kvq_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"kvq"
	"kvq/raw"
)

func TestForksAreCutAndSaved(t *testing.T) {
	m := newModel(t, "{version: 1, keys: int4, values: int4, recent: 2}", nil, kvq.NewCacheOptions(1, 2, 2, 16))
	r := random(1)
	m.append(t, m.sequence, 0, 64, &r)
	fork := must(m.sequence.Fork())(t)
	defer fork.Close()
	m.append(t, fork, 0, 10, &r)
	require(t, fork.Truncate(70))
	for s, expected := range map[*kvq.Sequence]int{fork: 70, m.sequence: 64} {
		if n := must(s.Length(0))(t); n != expected || must(s.Slots(0, 1))(t) != expected {
			t.Fatalf("%d tokens are there instead of %d", n, expected)
		}
	}
	if shared := must(m.cache.Usage())(t).SharedPages; shared == 0 || must(fork.Usage())(t).Scalars != 2*16*70*2 {
		t.Fatalf("%d pages are shared, or scalars are not 2 x head_dim x slots over heads", shared)
	}
	requireError(t, fork.Truncate(20), kvq.ErrState, "20", "KVQ_E_STATE")
	snapshot := must(fork.Save())(t)
	loaded := must(m.cache.LoadSequence(snapshot))(t)
	defer loaded.Close()
	if !bytes.Equal(must(loaded.Save())(t), snapshot) {
		t.Fatal("a snapshot saved again has other bytes")
	}
	requireError(t, errorOf(m.cache.LoadSequence(nil)), kvq.ErrArgument, "snapshot is empty")
	if fork.Cache() != m.cache || m.cache.Context() != m.context {
		t.Fatal("a sequence or a cache does not know what it was made from")
	}
}

func TestReservedPagesMakeRoomAndAreWhatWasPredicted(t *testing.T) {
	m := newModel(t, "gs2", nil, kvq.NewCacheOptions(1, 1, 1, 16))
	predicted := must(m.cache.PredictUsage(1, 100, 0))(t)
	require(t, m.sequence.Reserve(100))
	room := must(m.sequence.Room(0))(t)
	r := random(4)
	m.append(t, m.sequence, 0, 100, &r)
	if left := must(m.sequence.Room(0))(t); room < 100 || left != room-100 {
		t.Fatalf("100 tokens took %d of the room for %d", room-left, room)
	}
	if found := must(m.cache.Usage())(t); found != predicted {
		t.Fatalf("predicted %+v, found %+v", predicted, found)
	}
	requireError(t, m.sequence.Reserve(-1), kvq.ErrArgument, "tokens is -1")
}

func TestPoliciesAreMadeFromPoliciesAndWritten(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	plain := must(x.LoadPolicy("int4"))(t)
	defer plain.Close()
	layers := must(x.PolicyWithLayer(plain, 0, 0, "", "gs2"))(t)
	defer layers.Close()
	if yaml := must(layers.Save())(t); yaml != "version: 1\nkeys: int4\nvalues: int4\nlayers:\n  - {range: [0, 0], values: gs2}\n" {
		t.Fatalf("the policy is written as %q", yaml)
	}
	evicting := must(x.PolicyWithEviction(plain, "snapkv", 48))(t)
	defer evicting.Close()
	if info := must(evicting.Describe())(t); info.EvictionBudget != 48 || info.EvictionWindow != 32 {
		t.Fatalf("the policy says %+v", info)
	}
}

func TestCompressKeepsTheBudget(t *testing.T) {
	m := newModel(t, "int4+streaming:48", nil, kvq.NewCacheOptions(1, 2, 2, 16)) // scores by position alone
	r := random(5)
	m.append(t, m.sequence, 0, 128, &r)
	before := must(m.sequence.Usage())(t).TotalBytes
	done := must(m.sequence.Compress(40))(t)
	if slots := must(m.sequence.Slots(0, 1))(t); fmt.Sprint(done.Kept) != "[40 40]" || slots != 40 {
		t.Fatalf("heads kept %v, the second holds %d", done.Kept, slots)
	}
	if freed := before - must(m.sequence.Usage())(t).TotalBytes; freed != done.BytesFreed || freed == 0 {
		t.Fatalf("%d bytes were freed, %d reported", freed, done.BytesFreed)
	}
	requireError(t, errorOf(m.sequence.Compress(-1)), kvq.ErrArgument, "budget is -1")
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
	if layer := must(m.cache.DescribeLayer(1))(t); layer.NFormats != 1 || layer.Formats != "int4/int2" {
		t.Fatalf("the layer says %+v", layer)
	}
	requireError(t, errorOf(m.cache.DescribeLayer(2)), kvq.ErrArgument, "layer is 2")
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
