package kvq_test

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"kvq"
)

// heads are those of a layer: numbers of heads, and channels.
type heads struct{ q, kv, key, value int }

// mixed has an ordinary layer, one with wide keys and other heads, and one without RoPE.
var mixed = []heads{{4, 2, 64, 64}, {6, 3, 192, 128}, {4, 2, 256, 256}}

func mixedOptions() *kvq.CacheOptions {
	options, none := kvq.NewCacheOptions(3, 4, 2, 64), kvq.RopeNone
	options.Shapes = []kvq.LayerShape{
		{FirstLayer: 1, QHeads: 6, KVHeads: 3, KeyDim: 192, ValueDim: 128, RopeBase: 1e6},
		{FirstLayer: 2, KeyDim: 256, ValueDim: 256, Rope: &none, Scale: 0.5, LogitSoftcap: 20},
	}
	return options
}

// integers are numbers that FP16 has.
func (r *random) integers(n int) []float32 {
	x := r.floats(n)
	for i := range x {
		x[i] = float32(int(10 * x[i]))
	}
	return x
}

// repeated returns values `[tokens, kv, value]` as outputs have them where every query sees its token alone.
func (h heads) repeated(v []float32) (output []float32) {
	for ; len(v) > 0; v = v[h.value:] {
		for i := 0; i < h.q/h.kv; i++ {
			output = append(output, v[:h.value]...)
		}
	}
	return output
}

func requireSame(t *testing.T, what string, got, expected []float32) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(expected) {
		t.Fatalf("%s is %v, expected %v", what, got, expected)
	}
}

func TestLayersHaveShapesOfTheirOwn(t *testing.T) {
	m := newModel(t, "fp16", nil, mixedOptions())
	r := random(3)
	for layer, h := range mixed {
		i := must(m.cache.DescribeLayer(layer))(t)
		if (heads{i.QHeads, i.KVHeads, i.KeyDim, i.ValueDim}) != h {
			t.Fatalf("layer %d is %+v", layer, i)
		}
		k, v, q := r.integers(2*h.kv*h.key), r.integers(2*h.kv*h.value), r.floats(2*h.q*h.key)
		first := h.kv * h.value
		expected := h.repeated(v)
		output := make([]float32, h.q*h.value)
		require(t, m.sequence.Append(layer, kvq.Of(k[:len(k)/2]), kvq.Of(v[:first])))
		require(t, m.sequence.Attend(layer, kvq.Of(q[:len(q)/2]), kvq.Of(output)))
		requireSame(t, "output", output, expected[:len(output)])
		decoded := must(m.sequence.Decode(layer, h.kv-1, 0, 1))(t)
		requireSame(t, "decoded value", decoded.V, v[first-h.value:first])
		if len(decoded.K) != h.key {
			t.Fatalf("a key has %d channels", len(decoded.K))
		}

		var some [4]*kvq.Sequence
		for i := range some {
			some[i] = must(m.cache.NewSequence())(t)
			defer some[i].Close()
		}
		both, lse := make([]float32, len(expected)), make([]float32, 2*h.q)
		require(t, m.cache.Append(layer, &kvq.AppendBatch{Sequences: some[:2], K: kvq.Of(k), V: kvq.Of(v)}))
		require(t, m.cache.Attend(layer, &kvq.AttendBatch{Sequences: some[:2], Q: kvq.Of(q), Output: kvq.Of(both), LSE: lse}))
		requireSame(t, "output of a batch", both, expected)
		both = make([]float32, len(expected))
		require(t, m.cache.Extend(layer, &kvq.ExtendBatch{Sequences: some[2:], K: kvq.Of(k), V: kvq.Of(v), Q: kvq.Of(q),
			Output: kvq.Of(both), LSE: lse}))
		requireSame(t, "output of extend", both, expected)
	}
}

func TestLengthsOfOtherLayersAreRefused(t *testing.T) {
	m := newModel(t, "fp16", nil, mixedOptions())
	f := func(n int) kvq.Tensor { return kvq.Of(make([]float32, n)) }
	s, one := m.sequence, []*kvq.Sequence{m.sequence}
	require(t, s.Append(1, f(576), f(384)))
	for _, it := range []struct {
		err  error
		part string
	}{
		{s.Append(1, f(128), f(128)), "k has 128 elements, must be a multiple of 576 (KVHeads x KeyDim)"},
		{s.Append(1, f(576), f(576)), "v has 576 elements, must be dense and have 384 (rows of k x KVHeads x ValueDim)"},
		{s.Append(3, f(128), f(128)), "layer is 3"},
		{s.Append(-1, f(128), f(128)), "layer is -1"},
		{s.Attend(1, f(768), f(768)), "q has 768 elements, must be a multiple of 1152 (QHeads x KeyDim)"},
		{s.Attend(1, f(1152), f(1152)), "output has 1152 elements, must be dense and have 768 (rows of q x QHeads x ValueDim)"},
		{s.Attend(3, f(256), f(256)), "layer is 3"},
		{m.cache.Append(1, &kvq.AppendBatch{Sequences: one, K: f(576), V: f(576)}), "V has 576 elements, must have 384: 1 x 3 x 128"},
		{m.cache.Append(3, &kvq.AppendBatch{Sequences: one, K: f(128), V: f(128)}), "layer is 3"},
		{m.cache.Attend(1, &kvq.AttendBatch{Sequences: one, Q: f(768), Output: f(768)}), "Q has 768 elements, must have 1152: 1 x 6 x 192"},
		{m.cache.Attend(1, &kvq.AttendBatch{Sequences: one, Q: f(1152), Output: f(1152)}), "Output has 1152 elements, must have 768: 1 x 6 x 128"},
		{m.cache.Attend(1, &kvq.AttendBatch{Sequences: one, Q: f(1152), Output: f(768), LSE: make([]float32, 4)}), "LSE has 4 elements, must have 6"},
		{m.cache.Extend(1, &kvq.ExtendBatch{Sequences: one, K: f(576), V: f(384), Q: f(1152), Output: f(512)}), "Output has 512 elements, must have 768"},
		{m.cache.Extend(1, &kvq.ExtendBatch{Sequences: one, K: f(384), V: f(384), Q: f(1152), Output: f(768)}), "K has 384 elements, must have 576"},
		{errorOf(m.cache.DescribeLayer(1 << 40)), "layer is 1099511627776"},
		{errorOf(s.DescribeLayer(1 << 40)), "layer is 1099511627776"},
	} {
		requireError(t, it.err, kvq.ErrArgument, it.part)
	}
	require(t, m.cache.Close()) // sequences go on
	requireError(t, s.Append(3, f(128), f(128)), kvq.ErrArgument, "layer is 3")
	require(t, s.Append(1, f(576), f(384)))
	if n := must(s.Length(1))(t); n != 2 {
		t.Fatalf("the layer has %d tokens", n)
	}
}

// latentOptions have an ordinary layer, and a latent one: 64 channels of values, and 32 behind them that are rotated.
func latentOptions() *kvq.CacheOptions {
	options := kvq.NewCacheOptions(2, 4, 2, 64)
	options.Shapes = []kvq.LayerShape{{FirstLayer: 1, KVHeads: 1, KeyDim: 96, ValueDim: 64, ValuesAreKeyPrefix: true, Scale: 0.1}}
	return options
}

// attended returns attention of four heads of the last queries to rows of 96 channels, of which the first 64 are the values.
func attended(k, q []float32) (output []float64) {
	rotated := func(x []float32, position int) (row [96]float64) {
		for i := range row {
			row[i] = float64(x[i])
		}
		for pair := 0; pair < 16; pair++ {
			sin, cos := math.Sincos(float64(position) * math.Pow(10000, -float64(pair)/16))
			a, b := row[64+pair], row[80+pair]
			row[64+pair], row[80+pair] = a*cos-b*sin, b*cos+a*sin
		}
		return row
	}
	n := len(k) / 96
	for i := 0; i < len(q)/96; i++ {
		position := n - len(q)/(4*96) + i/4
		query, total, sum := rotated(q[i*96:], position), 0.0, make([]float64, 64)
		for at := 0; at <= position; at++ {
			key, logit := rotated(k[at*96:], at), 0.0
			for c := range key {
				logit += 0.1 * key[c] * query[c]
			}
			total += math.Exp(logit)
			for c := range sum {
				sum[c] += math.Exp(logit) * key[c]
			}
		}
		for _, x := range sum {
			output = append(output, x/total)
		}
	}
	return output
}

func TestLayersWithAWindowFreeWhatNoQuerySees(t *testing.T) {
	options := kvq.NewCacheOptions(2, 4, 2, 64)
	options.SlidingWindow = 64
	options.Shapes = []kvq.LayerShape{{FirstLayer: 1, SlidingWindow: -1}}
	m := newModel(t, "int4", nil, options)
	r := random(9)
	rows := kvq.Of(r.floats(50 * 2 * 64))
	for i := 0; i < 10; i++ {
		for layer := 0; layer < 2; layer++ {
			require(t, m.sequence.Append(layer, rows, rows))
		}
	}
	for layer, expected := range []int{500 - 384, 500} {
		window := must(m.cache.DescribeLayer(layer))(t).SlidingWindow
		if slots := must(m.sequence.Slots(layer, 1))(t); slots != expected || (window == 64) != (layer == 0) {
			t.Errorf("layer %d has %d slots and a window of %d", layer, slots, window)
		}
	}
	if err := m.sequence.Truncate(416); err == nil || !strings.Contains(err.Error(), "has freed tokens up to position 383") {
		t.Errorf("a cut too far back: %v", err)
	}
}

func TestValuesMayBeAPrefixOfKeys(t *testing.T) {
	m := newModel(t, "fp16", nil, latentOptions())
	i := must(m.cache.DescribeLayer(1))(t)
	if !i.ValuesAreKeyPrefix || i.RotaryBegin != 64 || i.RotaryDim != 32 || must(m.cache.DescribeLayer(0))(t).ValuesAreKeyPrefix {
		t.Fatalf("layer 1 is %+v", i)
	}
	r := random(8)
	k, q := r.floats(50*96), r.floats(3*4*96)
	before, last := k[:47*96], k[47*96:]
	expected := attended(k, q)
	var some [3]*kvq.Sequence
	for i := range some {
		some[i] = must(m.cache.NewSequence())(t)
		defer some[i].Close()
	}
	require(t, m.sequence.Append(1, kvq.Of(before), kvq.Tensor{}))
	require(t, m.sequence.AppendAt(1, kvq.Of(last), kvq.Of[float32](nil), []int32{47, 48, 49}))
	twice := append(append([]float32{}, before...), before...)
	require(t, m.cache.Append(1, &kvq.AppendBatch{Sequences: some[:2], TokenCounts: []int32{47, 47}, K: kvq.Of(twice)}))
	require(t, m.cache.Append(1, &kvq.AppendBatch{Sequences: some[:1], TokenCounts: []int32{3}, K: kvq.Of(last)}))
	for _, s := range []*kvq.Sequence{m.sequence, some[0]} {
		output := make([]float32, 3*4*64)
		require(t, s.Attend(1, kvq.Of(q), kvq.Of(output)))
		requireClose(t, "output", output, expected, 1e-3)
	}
	output := make([]float32, 3*4*64)
	require(t, m.cache.Extend(1, &kvq.ExtendBatch{Sequences: some[1:2], TokenCounts: []int32{3}, K: kvq.Of(last), Q: kvq.Of(q),
		Output: kvq.Of(output)}))
	requireClose(t, "output of extend", output, expected, 1e-3)
	decoded := must(some[1].Decode(1, 0, 0, 50))(t)
	for token := 0; token < 50; token++ {
		requireSame(t, "decoded value", decoded.V[token*64:][:64], decoded.K[token*96:][:64])
	}

	// Of another type than that of no values, and between other numbers.
	halves, floats, wide := make([]kvq.BFloat16, 50*96), make([]float32, 50*96), make([]kvq.BFloat16, 50*100)
	for i := range halves {
		halves[i] = kvq.BFloat16(math.Float32bits(k[i]) >> 16)
		floats[i], wide[i/96*100+i%96] = math.Float32frombits(uint32(halves[i])<<16), halves[i]
	}
	require(t, some[2].Append(1, kvq.Of(halves), kvq.Tensor{}))
	same, strided := must(m.cache.NewSequence())(t), must(m.cache.NewSequence())(t)
	defer same.Close()
	defer strided.Close()
	require(t, same.Append(1, kvq.Of(floats), kvq.Tensor{}))
	require(t, m.cache.Append(1, &kvq.AppendBatch{Sequences: []*kvq.Sequence{strided}, TokenCounts: []int32{50},
		K: kvq.Of(wide).Strided(100, 0)}))
	pairs := [][2]*kvq.Sequence{{m.sequence, some[0]}, {m.sequence, some[1]}, {same, some[2]}, {same, strided}}
	for i, pair := range pairs {
		if !bytes.Equal(must(pair[0].Save())(t), must(pair[1].Save())(t)) {
			t.Fatalf("the sequences of pair %d are saved differently", i)
		}
	}
	loaded := must(m.cache.LoadSequence(must(same.Save())(t)))(t)
	require(t, loaded.Close())
}

func TestValuesAreGivenExactlyWhereKeysDoNotContainThem(t *testing.T) {
	m := newModel(t, "fp16", nil, latentOptions())
	f := func(n int) kvq.Tensor { return kvq.Of(make([]float32, n)) }
	s, one := m.sequence, []*kvq.Sequence{m.sequence}
	for _, it := range []struct {
		err  error
		part string
	}{
		{s.Append(1, f(96), f(64)), "v is given, must be absent: the layer's values are a prefix of its keys"},
		{s.AppendAt(1, f(96), f(64), []int32{3}), "v is given, must be absent"},
		{m.cache.Append(1, &kvq.AppendBatch{Sequences: one, K: f(96), V: f(64)}), "V is given, must be absent"},
		{m.cache.Extend(1, &kvq.ExtendBatch{Sequences: one, K: f(96), V: f(64), Q: f(384), Output: f(256)}), "V is given, must be absent"},
		{s.Append(1, f(64), kvq.Tensor{}), "k has 64 elements, must be a multiple of 96"},
		{s.Append(0, f(128), kvq.Tensor{}), "v has 0 elements, must be dense and have 128"},
		{m.cache.Append(0, &kvq.AppendBatch{Sequences: one, K: f(128)}), "V has 0 elements, must have 128"},
		{m.cache.Extend(0, &kvq.ExtendBatch{Sequences: one, K: f(128), Q: f(256), Output: f(256)}), "V has 0 elements, must have 128"},
	} {
		requireError(t, it.err, kvq.ErrArgument, it.part)
	}
	if must(s.Length(0))(t)+must(s.Length(1))(t) != 0 {
		t.Fatal("refused calls appended tokens")
	}
	for _, it := range []struct {
		shape kvq.LayerShape
		part  string
	}{
		{kvq.LayerShape{KeyDim: 96, InvFreq: make([]float32, 16)}, ""},
		{kvq.LayerShape{KeyDim: 96, RotaryBegin: 80, InvFreq: make([]float32, 8)}, ""},
		{kvq.LayerShape{KeyDim: 96, ValueDim: 80, InvFreq: make([]float32, 16)}, "InvFreq has 16 elements, must have 8"},
		{kvq.LayerShape{KeyDim: 96, RotaryBegin: 32}, "options->shapes[0].rotary_begin is 32, must be at least the 64"},
		{kvq.LayerShape{}, "options->shapes[0].values_are_key_prefix is 1, but keys have 64 channels"},
	} {
		it.shape.ValuesAreKeyPrefix = true
		options := kvq.NewCacheOptions(1, 4, 2, 64)
		options.Shapes = []kvq.LayerShape{it.shape}
		cache, err := m.context.NewCache(options, nil)
		if it.part != "" {
			requireError(t, err, kvq.ErrArgument, it.part)
			continue
		}
		require(t, err)
		require(t, cache.Close())
	}
}

func TestSnapshotsLoadIntoTheSameShapesAlone(t *testing.T) {
	m := newModel(t, "fp16", nil, mixedOptions())
	r := random(5)
	for layer, h := range mixed {
		require(t, m.sequence.Append(layer, kvq.Of(r.floats(40*h.kv*h.key)), kvq.Of(r.floats(40*h.kv*h.value))))
	}
	snapshot := must(m.sequence.Save())(t)
	same := newModel(t, "fp16", nil, mixedOptions())
	loaded := must(same.cache.LoadSequence(snapshot))(t)
	defer loaded.Close()
	if !bytes.Equal(must(loaded.Save())(t), snapshot) {
		t.Fatal("the sequence is saved otherwise")
	}
	usual := newModel(t, "fp16", nil, kvq.NewCacheOptions(3, 4, 2, 64))
	requireError(t, errorOf(usual.cache.LoadSequence(snapshot)), kvq.ErrMismatch, "layers of different shapes")
	options := mixedOptions()
	options.Shapes = options.Shapes[:1]
	other := newModel(t, "fp16", nil, options)
	requireError(t, errorOf(other.cache.LoadSequence(snapshot)), kvq.ErrMismatch)
}

func TestLayersMayReadThePagesOfAnotherOne(t *testing.T) {
	options, first := mixedOptions(), 1
	options.Shapes[1] = kvq.LayerShape{FirstLayer: 2, QHeads: 6, PagesOfLayer: &first}
	m := newModel(t, "fp16", nil, options)
	r := random(5)
	k, v, q := r.floats(40*3*192), r.floats(40*3*128), r.floats(6*192)
	require(t, m.sequence.Append(1, kvq.Of(k), kvq.Of(v)))
	outputs := [2][]float32{make([]float32, 6*128), make([]float32, 6*128)}
	for i, output := range outputs {
		if info := must(m.cache.DescribeLayer(i + 1))(t); info.PagesOfLayer != 1 {
			t.Fatalf("layer %d reads the pages of layer %d", i+1, info.PagesOfLayer)
		}
		if length := must(m.sequence.Length(i + 1))(t); length != 40 {
			t.Fatalf("layer %d has %d tokens", i+1, length)
		}
		require(t, m.sequence.Attend(i+1, kvq.Of(q), kvq.Of(output)))
	}
	if fmt.Sprint(outputs[0]) != fmt.Sprint(outputs[1]) {
		t.Fatal("both layers read the same pages, but give other outputs")
	}
	requireError(t, m.sequence.Append(2, kvq.Of(k), kvq.Of(v)), kvq.ErrArgument, "layer is 2, which reads the pages of layer 1")
	context := must(kvq.NewContext(nil))(t)
	defer context.Close()
	self := 2
	options.Shapes[1].PagesOfLayer = &self
	requireError(t, errorOf(context.NewCache(options, nil)), kvq.ErrArgument, "options->shapes[1].pages_of_layer is 2")
}

func TestFrequenciesOfALayerAreCheckedAndUsed(t *testing.T) {
	options := func(shapes ...kvq.LayerShape) *kvq.CacheOptions {
		it := kvq.NewCacheOptions(2, 2, 2, 64)
		it.Shapes = shapes
		return it
	}
	x := make([]float32, 128)
	for i := range x {
		x[i] = float32(i)
	}
	decoded := func(options *kvq.CacheOptions) (k [2]string) {
		m := newModel(t, "fp16", nil, options)
		for layer := range k {
			require(t, m.sequence.AppendAt(layer, kvq.Of(x), kvq.Of(x), []int32{9}))
			k[layer] = fmt.Sprint(must(m.sequence.Decode(layer, 1, 0, 1))(t).K)
		}
		return k
	}
	plain := options()
	plain.Rope = kvq.RopeNone
	still, usual := decoded(plain)[0], decoded(options())[0]
	half := make([]float32, 32) // frequencies of the second layer, after those of the first
	for i := range half {
		half[i] = float32(math.Pow(10000, -float64(i)/32))
	}
	given := decoded(options(kvq.LayerShape{InvFreq: make([]float32, 32)}, kvq.LayerShape{FirstLayer: 1, InvFreq: half}))
	if given[0] != still || given[1] != usual || still == usual {
		t.Fatalf("keys are %s, expected %s and %s", given, still, usual)
	}

	context := must(kvq.NewContext(nil))(t)
	defer context.Close()
	for _, it := range []struct {
		shape kvq.LayerShape
		part  string
	}{
		{kvq.LayerShape{InvFreq: make([]float32, 16)}, "Shapes[0]: kvq: KVQ_E_ARGUMENT: InvFreq has 16 elements, must have 32"},
		{kvq.LayerShape{RotaryBegin: 48, InvFreq: make([]float32, 16)}, "InvFreq has 16 elements, must have 8"},
		{kvq.LayerShape{KeyDim: 32, RotaryDim: 16, InvFreq: make([]float32, 16)}, "InvFreq has 16 elements, must have 8"},
		{kvq.LayerShape{RotaryBegin: 100, InvFreq: []float32{}}, "options->shapes[0].rotary_begin is 100"},
		{kvq.LayerShape{KeyDim: 12}, "options->shapes[0].key_dim is 12"},
		{kvq.LayerShape{FirstLayer: 1, Layers: 2}, "options->shapes[0].n_layers is 2"},
		{kvq.LayerShape{QHeads: 1 << 40}, "Shapes[0]: kvq: KVQ_E_ARGUMENT: QHeads is 1099511627776"},
	} {
		requireError(t, errorOf(context.NewCache(options(it.shape), nil)), kvq.ErrArgument, it.part)
	}
}
