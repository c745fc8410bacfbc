package kvq_test

import (
	"bytes"
	"os"
	"testing"

	"kvq"
)

// demoFile is a file of the demonstration model; not every copy of this module has it beside it.
func demoFile(t *testing.T, name string) []byte {
	t.Helper()
	file, err := os.ReadFile("../../models/demo/" + name)
	if err != nil {
		t.Skip("this copy of the module has no ../../models/demo")
	}
	return file
}

// useTrained makes a cache of the demonstration model with what is trained for it, once it is refused without.
func useTrained(t *testing.T, x *kvq.Context, policy, missing string, set func(*kvq.CacheOptions)) {
	t.Helper()
	p := must(x.LoadPolicy(policy))(t)
	defer p.Close()
	options := kvq.NewCacheOptions(6, 4, 2, 128)
	options.RopeBase = 500000
	_, err := x.NewCache(options, p)
	requireError(t, err, kvq.ErrArgument, missing)
	set(options)
	m := model{context: x, cache: must(x.NewCache(options, p))(t)}
	defer m.cache.Close()
	m.info, m.sequence = must(m.cache.Describe())(t), must(m.cache.NewSequence())(t)
	defer m.sequence.Close()
	r := random(1)
	m.append(t, m.sequence, 0, 70, &r)
}

func TestTrainedFilesAreLoadedDescribedUsedAndSaved(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	file := demoFile(t, "commvq-2bit.safetensors")
	codebook := must(x.LoadCodebook(file))(t)
	if !bytes.Equal(must(codebook.Save())(t), file) {
		t.Fatal("codebooks saved again have other bytes")
	}
	info, layer := must(codebook.Describe())(t), must(codebook.DescribeLayer(5))(t)
	if info.Layers != 6 || info.LayersPresent != 6 || info.HeadDim != 128 || !layer.Present ||
		layer.KeyStageErrors[info.KeyStages-1] != layer.KeyError {
		t.Fatalf("the codebooks say %+v, a layer %+v", info, layer)
	}
	_, err := codebook.DescribeLayer(6)
	requireError(t, err, kvq.ErrArgument, "layer is 6")
	useTrained(t, x, "commvq", "codebook", func(o *kvq.CacheOptions) { o.Codebook = codebook })

	file = demoFile(t, "centres.safetensors")
	centres := must(x.LoadCentres(file))(t)
	if !bytes.Equal(must(centres.Save())(t), file) {
		t.Fatal("centres saved again have other bytes")
	}
	if info, layer := must(centres.Describe())(t), must(centres.DescribeLayer(5))(t); info.Layers != 6 || !layer.Present ||
		layer.KeyResidual <= 0 || layer.KeyResidual >= 1 {
		t.Fatalf("the centres say %+v, a layer %+v", info, layer)
	}
	useTrained(t, x, "{version: 1, keys: gs2, values: gs2, centres: trained}", "centres", func(o *kvq.CacheOptions) { o.Centres = centres })

	file = demoFile(t, "moqae.safetensors")
	router := must(x.LoadRouter(file))(t)
	if !bytes.Equal(must(router.Save())(t), file) {
		t.Fatal("routers saved again have other bytes")
	}
	routes, group := must(router.Describe())(t), must(router.DescribeGroup(0))(t)
	if routes.Layers != 6 || routes.Method != kvq.RouterLabel || group.FirstLayer != 0 || group.Shares[1] <= 0 {
		t.Fatalf("the routers say %+v, a group %+v", routes, group)
	}
	_, err = router.DescribeGroup(routes.Groups)
	requireError(t, err, kvq.ErrArgument, "group is")
	useTrained(t, x, "{version: 1, router: {experts: ["+routes.Experts+"]}}", "router", func(o *kvq.CacheOptions) { o.Router = router })

	for _, it := range []interface{ Close() error }{codebook, centres, router} {
		require(t, it.Close())
	}
	options := kvq.NewCacheOptions(6, 4, 2, 128)
	options.Centres = centres
	_, err = x.NewCache(options, nil)
	requireError(t, err, kvq.ErrClosed)
	_, err = x.LoadCentres([]byte("no centres"))
	requireError(t, err, kvq.ErrFormat)
}
