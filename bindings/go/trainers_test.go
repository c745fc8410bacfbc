//go:build kvq_experimental

package kvq_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"

	"kvq"
)

func codebookOptions() *kvq.CodebookTrainerOptions {
	options := kvq.NewCodebookTrainerOptions(2, 1, 16)
	options.KeyStages, options.KeyCodes, options.KeyGroup, options.KeyRounds = 3, 8, 8, 2
	options.ValueScope, options.ValueRounds = kvq.ScopeHead, 2
	options.Seed, options.Note, options.ModelID = 5, "small", 9
	return options
}

func TestCodebooksAreTrainedSavedAndUsed(t *testing.T) {
	x := must(kvq.NewContext(&kvq.ContextOptions{CPUISA: floatISA()}))(t)
	defer x.Close()
	trainer := must(x.NewCodebookTrainer(codebookOptions()))(t)
	defer trainer.Close()
	const tokens = 160
	r := random(1)
	add := func(trainer *kvq.CodebookTrainer, layer int) {
		require(t, trainer.Add(layer, kvq.Of(r.floats(tokens*16)), kvq.Of(r.floats(tokens*16))))
	}
	add(trainer, 0)
	last := 0.0
	require(t, trainer.Run(context.Background(), 0, func(done float64) error { last = done; return nil }))
	if last == 0 {
		t.Fatal("no progress was told")
	}
	part := must(trainer.Result())(t)
	defer part.Close()
	if info := must(part.Describe())(t); info.LayersPresent != 1 || info.Layers != 2 || info.Note != "small" ||
		info.Tokens != tokens || info.ModelID != 9 || info.KeyStages != 3 {
		t.Fatalf("the codebooks say %+v", info)
	}
	if layer := must(part.DescribeLayer(1))(t); layer.Present {
		t.Fatal("a layer is there that was not trained")
	}

	// Another trainer takes over what is done.
	second := must(x.NewCodebookTrainer(codebookOptions()))(t)
	defer second.Close()
	require(t, second.Resume(part))
	add(second, 1)
	enough := errors.New("enough")
	requireError(t, second.Run(context.Background(), 1, func(float64) error { return enough }), enough)
	require(t, second.Run(context.Background(), 1, nil)) // the tokens are there still
	requireError(t, second.Run(context.Background(), 1, nil), kvq.ErrState)
	codebook := must(second.Result())(t)
	defer codebook.Close()
	layer := must(codebook.DescribeLayer(1))(t)
	if !layer.Present || layer.KeyStageErrors[2] != layer.KeyError || layer.KeyStageErrors[0] < layer.KeyError {
		t.Fatalf("the layer says %+v", layer)
	}

	file := must(codebook.Save())(t)
	loaded := must(x.LoadCodebook(file))(t)
	defer loaded.Close()
	if !bytes.Equal(must(loaded.Save())(t), file) {
		t.Fatal("codebooks saved again have other bytes")
	}

	policy := must(x.LoadPolicy("commvq"))(t)
	defer policy.Close()
	options := kvq.NewCacheOptions(2, 1, 1, 16)
	_, err := x.NewCache(options, policy)
	requireError(t, err, kvq.ErrArgument, "codebook")
	options.Codebook = loaded
	m := model{context: x, cache: must(x.NewCache(options, policy))(t)}
	defer m.cache.Close()
	m.info, m.sequence = must(m.cache.Describe())(t), must(m.cache.NewSequence())(t)
	defer m.sequence.Close()
	m.append(t, m.sequence, 0, 100, &r)
	q, output := r.floats(16), make([]float32, 16)
	require(t, m.sequence.Attend(0, kvq.Of(q), kvq.Of(output)))
	expected, _ := attention(t, &m, m.sequence, 0, q, question{positions: []int{99}})
	requireClose(t, "output", output, expected, 1e-4)

	requireError(t, second.Add(0, kvq.Of(q), kvq.Of(q)), kvq.ErrState)
	requireError(t, trainer.Add(1, kvq.Of(q[:15]), kvq.Of(q)), kvq.ErrArgument, "k has 15 elements")
	requireError(t, trainer.Add(1, kvq.Of(q), kvq.Of(r.floats(32))), kvq.ErrArgument, "v has 2 tokens", "as many as k: 1")
	requireError(t, trainer.Add(1, kvq.Tensor{}, kvq.Tensor{}), kvq.ErrArgument, "k is empty")
	requireError(t, trainer.Resume(nil), kvq.ErrArgument, "codebook is nil")
	options2 := codebookOptions()
	options2.Note = "a\x00b"
	_, err = x.NewCodebookTrainer(options2)
	requireError(t, err, kvq.ErrArgument, "Note")
	require(t, trainer.Close())
	requireError(t, trainer.Add(1, kvq.Of(q), kvq.Of(q)), kvq.ErrClosed)
}

func TestCentresAreTrainedSavedAndUsed(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	options := kvq.NewCentresTrainerOptions(2, 1, 16)
	options.KeyCentres, options.ValueCentres, options.Seed, options.Note, options.ModelID = 4, 1, 5, "small", 9
	trainer := must(x.NewCentresTrainer(options))(t)
	defer trainer.Close()
	const tokens = 160
	r := random(1)
	for layer := 0; layer < 2; layer++ {
		require(t, trainer.Add(layer, kvq.Of(r.floats(tokens*16)), kvq.Of(r.floats(tokens*16))))
	}
	enough := errors.New("enough")
	requireError(t, trainer.Run(context.Background(), 0, func(float64) error { return enough }), enough)
	require(t, trainer.Run(context.Background(), 0, nil)) // the tokens are there still
	requireError(t, trainer.Run(context.Background(), 0, nil), kvq.ErrState)
	require(t, trainer.Run(context.Background(), 1, nil))
	centres := must(trainer.Result())(t)
	defer centres.Close()
	if info := must(centres.Describe())(t); info.LayersPresent != 2 || info.KeyCentres != 4 || info.ValueCentres != 1 ||
		info.Tokens != tokens || info.ModelID != 9 || info.Note != "small" {
		t.Fatalf("the centres say %+v", info)
	}
	if layer := must(centres.DescribeLayer(1))(t); !layer.Present || layer.KeyResidual <= 0 || layer.KeyResidual >= 1 {
		t.Fatalf("the layer says %+v", layer)
	}
	file := must(centres.Save())(t)
	loaded := must(x.LoadCentres(file))(t)
	defer loaded.Close()
	if !bytes.Equal(must(loaded.Save())(t), file) {
		t.Fatal("centres saved again have other bytes")
	}
	// A policy that needs none takes them too, unless they are gone.
	shape := kvq.NewCacheOptions(2, 1, 1, 16)
	shape.Centres = loaded
	cache := must(x.NewCache(shape, nil))(t)
	require(t, cache.Close())
	require(t, loaded.Close())
	_, err := x.NewCache(shape, nil)
	requireError(t, err, kvq.ErrClosed)

	q := r.floats(16)
	requireError(t, trainer.Add(1, kvq.Of(q), kvq.Of(q)), kvq.ErrState)
	_, err = x.LoadCentres([]byte("no centres"))
	requireError(t, err, kvq.ErrFormat)
	options.KeyCentres = 257
	_, err = x.NewCentresTrainer(options)
	requireError(t, err, kvq.ErrArgument, "key_centres is 257")
}

func TestRoutersAreTrainedSavedAndUsed(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	policy := must(x.LoadPolicy("{version: 1, router: {experts: [fp16, int4, int2]}}"))(t)
	defer policy.Close()
	shape := kvq.NewCacheOptions(2, 2, 1, 16)
	options := kvq.NewRouterTrainerOptions()
	options.Sharing, options.Epochs, options.MeanBits, options.Seed, options.Note = 2, 2, 8, 5, "small"
	trainer := must(x.NewRouterTrainer(shape, policy, options))(t)
	defer trainer.Close()
	const tokens = 200
	r := random(2)
	for layer := 0; layer < 2; layer++ {
		require(t, trainer.Add(layer, kvq.Of(r.floats(tokens*32)), kvq.Of(r.floats(tokens*16)), kvq.Of(r.floats(tokens*16))))
	}
	requireError(t, trainer.Add(0, kvq.Of(r.floats(32)), kvq.Tensor{}, kvq.Of(r.floats(16))), kvq.ErrArgument, "k has 0 elements")
	_, err := trainer.Result()
	requireError(t, err, kvq.ErrState)
	cancelled, cancel := context.WithCancel(context.Background())
	requireError(t, trainer.Run(cancelled, 0, func(float64) error { cancel(); return nil }), context.Canceled)
	require(t, trainer.Run(context.Background(), 0, nil))
	router := must(trainer.Result())(t)
	defer router.Close()
	info := must(router.Describe())(t)
	if info.Layers != 2 || info.Groups != 1 || info.NExperts != 3 || info.Note != "small" || info.Method != kvq.RouterLabel {
		t.Fatalf("the routers say %+v", info)
	}
	group, sum := must(router.DescribeGroup(0))(t), 0.0
	for _, share := range group.Shares {
		sum += share
	}
	if group.FirstLayer != 0 || group.LastLayer != 1 || math.Abs(sum-1) > 1e-9 {
		t.Fatalf("the group says %+v", group)
	}
	_, err = router.DescribeGroup(1)
	requireError(t, err, kvq.ErrArgument, "group is 1")
	file := must(router.Save())(t)
	loaded := must(x.LoadRouter(file))(t)
	defer loaded.Close()
	if !bytes.Equal(must(loaded.Save())(t), file) {
		t.Fatal("routers saved again have other bytes")
	}
	shape.Router = loaded
	cache := must(x.NewCache(shape, policy))(t)
	defer cache.Close()
	if layer := must(cache.DescribeLayer(0))(t); layer.NFormats != 3 || layer.Formats != "fp16, int4, int2" {
		t.Fatalf("the layer says %+v", layer)
	}
	_, err = x.NewRouterTrainer(shape, nil, options)
	requireError(t, err, kvq.ErrArgument, "policy")
	_, err = x.NewRouterTrainer(nil, policy, options)
	requireError(t, err, kvq.ErrArgument, "options is nil")
}
