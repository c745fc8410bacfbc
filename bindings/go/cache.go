package kvq

import (
	"sync"

	"kvq/raw"
)

// Cache holds the attention layers of one model: page formats and workspace for any number of sequences.
type Cache struct {
	handle[raw.Cache]
	context *Context
	info    CacheInfo
	layers  []LayerInfo
	gate    sync.RWMutex // read-locked by calls on sequences, after their own locks
}

// CacheOptions are the shape of a model's attention layers; [NewCacheOptions] fills in defaults.
type CacheOptions struct {
	Layers, QHeads, KVHeads, HeadDim int

	Rope      Rope      // RopeNone is the zero value, RopeHalf that of NewCacheOptions
	RotaryDim int       // leading channels that are rotated; 0: HeadDim
	RopeBase  float32   // ignored if InvFreq is given
	InvFreq   []float32 // radians per position of each pair of channels; nil: RopeBase^(-2j / RotaryDim)
	Scale     float32   // factor applied to q·k; 0: 1 / sqrt(HeadDim)

	MaxBytes uint64 // limit on the memory of the cache; 0: only the context's limit
	ModelID  uint64 // any number that identifies the model's weights

	Codebook *Codebook // for policies with commvq
	Centres  *Centres  // for policies with trained centres
	Router   *Router   // for policies with a router

	Shapes []LayerShape // layers that differ; nil: none

	SlidingWindow  int // positions that a query sees, with its own; pages that no later one sees are freed; 0: all
	AttentionChunk int // queries see positions of their chunk of so many, in the same way; 0: all

	// For M-RoPE, as in Qwen2-VL: how many pairs of channels turn by the temporal position, by the height and by the width,
	// which batches have as RopePositions. They add up to all rotated pairs, and the cache takes no codebook, no router and
	// no trained centres. nil: all pairs turn by the position of the token.
	MropeSection     []int32
	MropeInterleaved bool // pairs of the three alternate, as in Qwen3-VL; else they follow one another
}

// NewCacheOptions returns the defaults for a shape.
func NewCacheOptions(layers, qHeads, kvHeads, headDim int) *CacheOptions {
	var it raw.CacheOptions
	raw.CacheOptionsInit(&it)
	return &CacheOptions{Layers: layers, QHeads: qHeads, KVHeads: kvHeads, HeadDim: headDim, Rope: it.Rope,
		RotaryDim: int(it.RotaryDim), RopeBase: it.RopeBase, Scale: it.Scale}
}

// fill sets the options of C, except the shapes, and the codebook, the centres and the router, which must be locked
// first.
func (o *CacheOptions) fill(to *raw.CacheOptions) error {
	raw.CacheOptionsInit(to)
	if err := firstOf(narrow("Layers", o.Layers, &to.NLayers), narrow("QHeads", o.QHeads, &to.QHeads),
		narrow("KVHeads", o.KVHeads, &to.KVHeads), narrow("HeadDim", o.HeadDim, &to.HeadDim),
		narrow("RotaryDim", o.RotaryDim, &to.RotaryDim), narrow("SlidingWindow", o.SlidingWindow, &to.SlidingWindow),
		narrow("AttentionChunk", o.AttentionChunk, &to.AttentionChunk),
		optionalSlice("MropeSection", o.MropeSection, 3)); err != nil {
		return err
	}
	if o.InvFreq != nil {
		pairs := o.RotaryDim / 2
		if o.RotaryDim == 0 {
			pairs = o.HeadDim / 2
		}
		if err := slice("InvFreq", len(o.InvFreq), pairs); err != nil {
			return err
		}
	}
	if o.MropeInterleaved {
		to.MropeInterleaved = 1
	}
	to.MropeSection = first(o.MropeSection)
	to.Rope, to.RopeBase, to.InvFreq, to.Scale = o.Rope, o.RopeBase, first(o.InvFreq), o.Scale
	to.MaxBytes, to.ModelID = o.MaxBytes, o.ModelID
	return nil
}

// NewCache creates a cache; a nil policy is fp16.
func (x *Context) NewCache(options *CacheOptions, policy *Policy) (*Cache, error) {
	if options == nil {
		return nil, argument("options is nil")
	}
	var to raw.CacheOptions
	if err := options.fill(&to); err != nil {
		return nil, err
	}
	shapes, err := options.place(&to)
	if err != nil {
		return nil, err
	}
	defer raw.Free(shapes)
	var uses []locker
	var fill []func() // when all are locked
	use := func(isGiven bool, it locker, set func()) {
		if isGiven {
			uses, fill = append(uses, it), append(fill, set)
		}
	}
	var sealed *raw.Policy
	use(policy != nil, policy, func() { sealed = policy.raw })
	use(options.Codebook != nil, options.Codebook, func() { to.Codebook = options.Codebook.raw })
	use(options.Centres != nil, options.Centres, func() { to.Centres = options.Centres.raw })
	use(options.Router != nil, options.Router, func() { to.Router = options.Router.raw })
	cache := &Cache{context: x}
	_, err = create(x, cache, &cache.handle, raw.CacheDestroy, func(made **raw.Cache, err *raw.Error) raw.Status {
		for _, set := range fill {
			set()
		}
		return raw.CacheCreate(x.raw, &to, sealed, made, err)
	}, uses...)
	if err != nil {
		return nil, err
	}
	cache.info, err = described(&cache.handle, raw.CacheDescribe, cacheInfoFrom)
	if err != nil {
		return nil, err
	}
	cache.layers = make([]LayerInfo, cache.info.Layers)
	for i := range cache.layers {
		if cache.layers[i], err = cache.DescribeLayer(i); err != nil {
			return nil, err
		}
	}
	return cache, nil
}

// layer returns the shape of a layer with tokens, or the library's refusal of its number from an object that has layers.
func (c *Cache) layer(layer int, of interface {
	DescribeLayer(layer int) (LayerInfo, error)
}) (*LayerInfo, error) {
	if layer >= 0 && layer < len(c.layers) {
		if c.layers[layer].Recurrent {
			return nil, argument("layer is %d, which is recurrent and holds no tokens", layer)
		}
		return &c.layers[layer], nil
	}
	info, err := of.DescribeLayer(layer)
	return &info, err
}

// Context returns the context of the cache.
func (c *Cache) Context() *Context { return c.context }

// Describe returns the options that the cache was created with, defaults filled in.
func (c *Cache) Describe() (CacheInfo, error) {
	if err := c.lock(shared); err != nil {
		return CacheInfo{}, err
	}
	defer c.unlock(shared)
	return c.info, nil
}

// Usage returns the memory of the cache and all its sequences, with shared pages counted once. It waits for calls on
// sequences of the cache, and they wait for it.
func (c *Cache) Usage() (Usage, error) {
	if err := c.lock(shared); err != nil {
		return Usage{}, err
	}
	defer c.unlock(shared)
	c.gate.Lock()
	defer c.gate.Unlock()
	return usage(c.raw, nil, c.fail)
}

// PredictUsage predicts the result of Usage for a cache that holds only new sequences with the given number of tokens
// each, for which pages were reserved. Unless queries is 0, it assumes that this many queries of each attended in one
// batch.
func (c *Cache) PredictUsage(sequences, tokens, queries int) (Usage, error) {
	var n [3]int32
	if err := firstOf(narrow("sequences", sequences, &n[0]), narrow("tokens", tokens, &n[1]), narrow("queries", queries, &n[2])); err != nil {
		return Usage{}, err
	}
	return described(&c.handle, func(cache *raw.Cache, it *raw.Usage, err *raw.Error) raw.Status {
		return raw.CachePredictUsage(cache, n[0], n[1], n[2], it, err)
	}, usageFrom)
}

func usage(cache *raw.Cache, sequence *raw.Sequence, fail *hooks) (Usage, error) {
	return told(fail, func(it *raw.Usage, err *raw.Error) raw.Status {
		return raw.CacheUsage(cache, sequence, it, err)
	}, usageFrom)
}
