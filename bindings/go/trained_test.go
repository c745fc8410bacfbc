package kvq_test

import (
	"bytes"
	"os"
	"reflect"
	"testing"

	"kvq"
)

// Files of the demonstration model are saved unchanged; a policy that needs them refuses a cache without them.
func TestTrainedFilesAreLoadedDescribedUsedAndSaved(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	options := kvq.NewCacheOptions(6, 4, 2, 128)
	for _, it := range []struct {
		file, policy string
		kind         kvq.FileKind
		load         func(file []byte) (save func() ([]byte, error), close func() error)
	}{
		{"commvq-2bit", "commvq", kvq.FileCodebook, func(file []byte) (func() ([]byte, error), func() error) {
			it := must(x.LoadCodebook(file))(t)
			info, layer := must(it.Describe())(t), must(it.DescribeLayer(5))(t)
			if info.Layers != 6 || info.HeadDim != 128 || layer.KeyStageErrors[info.KeyStages-1] != layer.KeyError {
				t.Fatalf("the codebooks say %+v, a layer %+v", info, layer)
			}
			requireError(t, errorOf(it.DescribeLayer(6)), kvq.ErrArgument, "layer is 6")
			options.Codebook = it
			return it.Save, it.Close
		}},
		{"centres", "gs2+centres", kvq.FileCentres, func(file []byte) (func() ([]byte, error), func() error) {
			it := must(x.LoadCentres(file))(t)
			if info, layer := must(it.Describe())(t), must(it.DescribeLayer(5))(t); info.Layers != 6 || layer.KeyResidual <= 0 {
				t.Fatalf("the centres say %+v, a layer %+v", info, layer)
			}
			if none := must(it.ReadScales(5))(t); none.KeyScales != nil || none.ValueScales != nil || none.ValueOffsets != nil {
				t.Fatalf("centres without scales have %+v", none)
			}
			options.Centres = it
			return it.Save, it.Close
		}},
		{"moqae", "{version: 1, router: {experts: [fp16, int4, int2]}}", kvq.FileRouter, func(file []byte) (func() ([]byte, error), func() error) {
			it := must(x.LoadRouter(file))(t)
			if info, group := must(it.Describe())(t), must(it.DescribeGroup(1))(t); info.Method != kvq.RouterLabel || group.FirstLayer != 3 {
				t.Fatalf("the routers say %+v, a group %+v", info, group)
			}
			options.Router = it
			return it.Save, it.Close
		}},
	} {
		file, err := os.ReadFile("../../models/demo/" + it.file + ".safetensors")
		if err != nil {
			t.Skip("this copy of the module has no ../../models/demo")
		}
		if kind := must(x.FileType(file))(t); kind != it.kind {
			t.Fatalf("%s is of kind %d", it.file, kind)
		}
		policy := must(x.LoadPolicy(it.policy))(t)
		requireError(t, errorOf(x.NewCache(options, policy)), kvq.ErrArgument)
		save, close := it.load(file)
		if !bytes.Equal(must(save())(t), file) {
			t.Fatalf("%s saved again has other bytes", it.file)
		}
		cache := must(x.NewCache(options, policy))(t)
		require(t, close())
		require(t, must(cache.NewSequence())(t).Append(0, kvq.Of(make([]float32, 256)), kvq.Of(make([]float32, 256))))
		requireError(t, errorOf(x.NewCache(options, policy)), kvq.ErrClosed)
		options = kvq.NewCacheOptions(6, 4, 2, 128)
	}
	if kind := must(x.FileType(nil))(t); kind != kvq.FileUnknown {
		t.Fatalf("an empty file is of kind %d", kind)
	}
	requireError(t, errorOf(x.LoadCentres([]byte("no centres"))), kvq.ErrFormat)
}

func TestScalesOfChannels(t *testing.T) {
	file, err := os.ReadFile("../../models/demo/scales.safetensors")
	if err != nil {
		t.Skip("this copy of the module has no ../../models/demo")
	}
	x := must(kvq.NewContext(nil))(t)
	it := must(x.LoadCentres(file))(t)
	fifth, sixth := must(it.ReadScales(4))(t), must(it.ReadScales(5))(t)
	if len(sixth.ValueScales) != 256 || len(sixth.ValueOffsets) != 256 || reflect.DeepEqual(fifth, sixth) {
		t.Fatalf("layers 4 and 5 have the scales %+v and %+v", fifth, sixth)
	}
	if !reflect.DeepEqual(sixth.KeyScales[:64], sixth.KeyScales[64:128]) {
		t.Fatalf("channels of a pair of RoPE have other scales: %v", sixth.KeyScales[:128])
	}
	for i, one := range append(sixth.KeyScales, sixth.ValueScales...) {
		if one <= 0 || one > 1 {
			t.Fatalf("scale %d is %v", i, one)
		}
	}
	requireError(t, errorOf(it.ReadScales(6)), kvq.ErrArgument, "layer is 6")
	requireError(t, errorOf(it.ReadScales(1<<40)), kvq.ErrArgument, "layer is 1099511627776") // and unlocks
	require(t, it.Close())
	requireError(t, errorOf(it.ReadScales(5)), kvq.ErrClosed)
}
