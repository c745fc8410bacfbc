//go:build kvq_experimental

package kvq

import (
	"context"
	"unsafe"

	"kvq/raw"
)

// CodebookTrainer trains codebooks from keys and values that the caller's engine computed on some texts: Add for every
// text and layer, Run for every layer, then Result.
//
// Experimental: may change in a minor version.
type CodebookTrainer struct {
	handle[raw.CodebookTrainer]
	kvHeads, headDim int
}

// CodebookTrainerOptions say what codebooks are trained for; [NewCodebookTrainerOptions] fills in defaults. Fields are
// those of [raw.CodebookTrainerOptions].
type CodebookTrainerOptions struct {
	Layers, KVHeads, HeadDim      int
	Rope                          Rope
	KeyStages, KeyCodes, KeyGroup int
	KeyNorms                      Scope
	ValueBits                     int
	ValueScope                    Scope
	KeyRounds, ValueRounds        int
	ValueMethod                   ValueMethod
	Seed, ModelID, MaxBytes       uint64
	Note                          string
}

// NewCodebookTrainerOptions are the library's defaults for a shape.
func NewCodebookTrainerOptions(layers, kvHeads, headDim int) *CodebookTrainerOptions {
	var it raw.CodebookTrainerOptions
	raw.CodebookTrainerOptionsInit(&it)
	return &CodebookTrainerOptions{Layers: layers, KVHeads: kvHeads, HeadDim: headDim, Rope: it.Rope,
		KeyStages: int(it.KeyStages), KeyCodes: int(it.KeyCodes), KeyGroup: int(it.KeyGroup), KeyNorms: it.KeyNorms,
		ValueBits: int(it.ValueBits), ValueScope: it.ValueScope, KeyRounds: int(it.KeyRounds),
		ValueRounds: int(it.ValueRounds), ValueMethod: it.ValueMethod, Seed: it.Seed}
}

func (o *CodebookTrainerOptions) fill(to *raw.CodebookTrainerOptions) (err error) {
	raw.CodebookTrainerOptionsInit(to)
	if err := narrowAll([]number{{"Layers", o.Layers, &to.NLayers}, {"KVHeads", o.KVHeads, &to.KVHeads},
		{"HeadDim", o.HeadDim, &to.HeadDim}, {"KeyStages", o.KeyStages, &to.KeyStages},
		{"KeyCodes", o.KeyCodes, &to.KeyCodes}, {"KeyGroup", o.KeyGroup, &to.KeyGroup},
		{"ValueBits", o.ValueBits, &to.ValueBits}, {"KeyRounds", o.KeyRounds, &to.KeyRounds},
		{"ValueRounds", o.ValueRounds, &to.ValueRounds}}); err != nil {
		return err
	}
	to.Rope, to.KeyNorms, to.ValueScope, to.ValueMethod = o.Rope, o.KeyNorms, o.ValueScope, o.ValueMethod
	to.Seed, to.ModelID, to.MaxBytes = o.Seed, o.ModelID, o.MaxBytes
	to.Note, err = optional("Note", o.Note)
	return err
}

// NewCodebookTrainer creates a trainer. It works on the device of the context; networks of values, on the host.
func (x *Context) NewCodebookTrainer(options *CodebookTrainerOptions) (*CodebookTrainer, error) {
	if options == nil {
		return nil, argument("options is nil")
	}
	var to raw.CodebookTrainerOptions
	if err := options.fill(&to); err != nil {
		return nil, err
	}
	if err := x.lock(shared); err != nil {
		return nil, err
	}
	defer x.unlock(shared)
	it := &CodebookTrainer{kvHeads: options.KVHeads, headDim: options.HeadDim}
	var made *raw.CodebookTrainer
	c := acquire()
	status := raw.CodebookTrainerCreate(x.raw, &to, &made, &c.err)
	return created(it, &it.handle, made, raw.CodebookTrainerDestroy, c, status, x.fail)
}

// Resume takes over finished layers of an earlier, unfinished result.
func (t *CodebookTrainer) Resume(codebook *Codebook) error {
	if codebook == nil {
		return argument("codebook is nil")
	}
	if err := codebook.lock(shared); err != nil {
		return err
	}
	defer codebook.unlock(shared)
	if err := t.lock(exclusive); err != nil {
		return err
	}
	defer t.unlock(exclusive)
	c := acquire()
	return c.end(raw.CodebookTrainerResume(t.raw, codebook.raw, &c.err), t.fail)
}

// Add tokens to a layer that is not finished: keys before RoPE and values, `[n, KVHeads, HeadDim]`. One of them may be
// the zero Tensor where it gets no codes.
func (t *CodebookTrainer) Add(layer int, k, v Tensor) error {
	index, err := narrow("layer", layer)
	if err != nil {
		return err
	}
	n, dtype, err := tokensOf(t.headDim, of{"k", k, t.kvHeads, true}, of{"v", v, t.kvHeads, true})
	if err != nil {
		return err
	}
	if err := t.lock(exclusive); err != nil {
		return err
	}
	defer t.unlock(exclusive)
	c := acquire()
	return c.end(raw.CodebookTrainerAdd(t.raw, index, n, k.data, v.data, dtype, &c.err), t.fail)
}

// Run trains one layer on the tokens added to it, and drops them. It ends early, with the context's error, when ctx is
// done; progress may be nil.
func (t *CodebookTrainer) Run(ctx context.Context, layer int, progress Progress) error {
	index, err := narrow("layer", layer)
	if err != nil {
		return err
	}
	if err := t.lock(exclusive); err != nil {
		return err
	}
	defer t.unlock(exclusive)
	return watched(ctx, progress, func(hook raw.ProgressHook, user uintptr) error {
		c := acquire()
		return c.end(raw.CodebookTrainerRun(t.raw, index, hook, user, &c.err), t.fail)
	})
}

// Result is the codebooks of the layers finished so far.
func (t *CodebookTrainer) Result() (*Codebook, error) {
	if err := t.lock(shared); err != nil {
		return nil, err
	}
	defer t.unlock(shared)
	it := new(Codebook)
	var made *raw.Codebook
	c := acquire()
	status := raw.CodebookTrainerResult(t.raw, &made, &c.err)
	return created(it, &it.handle, made, raw.CodebookDestroy, c, status, t.fail)
}

// CentresTrainer trains centres from keys and values that the caller's engine computed on some texts: Add for every text
// and layer, Run for every layer, then Result.
//
// Experimental: may change in a minor version.
type CentresTrainer struct {
	handle[raw.CentresTrainer]
	kvHeads, headDim int
}

// CentresTrainerOptions say what centres are trained for; [NewCentresTrainerOptions] fills in defaults. Fields are those
// of [raw.CentresTrainerOptions].
type CentresTrainerOptions struct {
	Layers, KVHeads, HeadDim         int
	Rope                             Rope
	KeyCentres, ValueCentres, Rounds int
	Seed, ModelID, MaxBytes          uint64
	Note                             string
}

// NewCentresTrainerOptions are the library's defaults for a shape.
func NewCentresTrainerOptions(layers, kvHeads, headDim int) *CentresTrainerOptions {
	var it raw.CentresTrainerOptions
	raw.CentresTrainerOptionsInit(&it)
	return &CentresTrainerOptions{Layers: layers, KVHeads: kvHeads, HeadDim: headDim, Rope: it.Rope,
		KeyCentres: int(it.KeyCentres), ValueCentres: int(it.ValueCentres), Rounds: int(it.Rounds), Seed: it.Seed}
}

func (o *CentresTrainerOptions) fill(to *raw.CentresTrainerOptions) (err error) {
	raw.CentresTrainerOptionsInit(to)
	if err := narrowAll([]number{{"Layers", o.Layers, &to.NLayers}, {"KVHeads", o.KVHeads, &to.KVHeads},
		{"HeadDim", o.HeadDim, &to.HeadDim}, {"KeyCentres", o.KeyCentres, &to.KeyCentres},
		{"ValueCentres", o.ValueCentres, &to.ValueCentres}, {"Rounds", o.Rounds, &to.Rounds}}); err != nil {
		return err
	}
	to.Rope, to.Seed, to.ModelID, to.MaxBytes = o.Rope, o.Seed, o.ModelID, o.MaxBytes
	to.Note, err = optional("Note", o.Note)
	return err
}

// NewCentresTrainer creates a trainer. It works on the device of the context.
func (x *Context) NewCentresTrainer(options *CentresTrainerOptions) (*CentresTrainer, error) {
	if options == nil {
		return nil, argument("options is nil")
	}
	var to raw.CentresTrainerOptions
	if err := options.fill(&to); err != nil {
		return nil, err
	}
	if err := x.lock(shared); err != nil {
		return nil, err
	}
	defer x.unlock(shared)
	it := &CentresTrainer{kvHeads: options.KVHeads, headDim: options.HeadDim}
	var made *raw.CentresTrainer
	c := acquire()
	status := raw.CentresTrainerCreate(x.raw, &to, &made, &c.err)
	return created(it, &it.handle, made, raw.CentresTrainerDestroy, c, status, x.fail)
}

// Add tokens to a layer that is not finished: keys before RoPE and values, `[n, KVHeads, HeadDim]`. One of them may be
// the zero Tensor where it gets no centres.
func (t *CentresTrainer) Add(layer int, k, v Tensor) error {
	index, err := narrow("layer", layer)
	if err != nil {
		return err
	}
	n, dtype, err := tokensOf(t.headDim, of{"k", k, t.kvHeads, true}, of{"v", v, t.kvHeads, true})
	if err != nil {
		return err
	}
	if err := t.lock(exclusive); err != nil {
		return err
	}
	defer t.unlock(exclusive)
	c := acquire()
	return c.end(raw.CentresTrainerAdd(t.raw, index, n, k.data, v.data, dtype, &c.err), t.fail)
}

// Run trains one layer on the tokens added to it, and drops them. It ends early, with the context's error, when ctx is
// done; progress may be nil.
func (t *CentresTrainer) Run(ctx context.Context, layer int, progress Progress) error {
	index, err := narrow("layer", layer)
	if err != nil {
		return err
	}
	if err := t.lock(exclusive); err != nil {
		return err
	}
	defer t.unlock(exclusive)
	return watched(ctx, progress, func(hook raw.ProgressHook, user uintptr) error {
		c := acquire()
		return c.end(raw.CentresTrainerRun(t.raw, index, hook, user, &c.err), t.fail)
	})
}

// Result is the centres of the layers finished so far.
func (t *CentresTrainer) Result() (*Centres, error) {
	if err := t.lock(shared); err != nil {
		return nil, err
	}
	defer t.unlock(shared)
	it := new(Centres)
	var made *raw.Centres
	c := acquire()
	status := raw.CentresTrainerResult(t.raw, &made, &c.err)
	return created(it, &it.handle, made, raw.CentresDestroy, c, status, t.fail)
}

// RouterTrainer trains routers from queries, keys and values that the caller's engine computed on some texts: Add for
// every text and layer, then Run and Result.
//
// Experimental: may change in a minor version.
type RouterTrainer struct {
	handle[raw.RouterTrainer]
	qHeads, kvHeads, headDim int
}

// RouterTrainerOptions say how routers are trained; [NewRouterTrainerOptions] fills in defaults. Fields are those of
// [raw.RouterTrainerOptions].
type RouterTrainerOptions struct {
	Method                             RouterMethod
	Sharing, Epochs                    int
	MeanBits, LossWeight, LearningRate float64
	Seed, MaxBytes                     uint64
	Note                               string
}

// NewRouterTrainerOptions are the library's defaults; labels need MeanBits.
func NewRouterTrainerOptions() *RouterTrainerOptions {
	var it raw.RouterTrainerOptions
	raw.RouterTrainerOptionsInit(&it)
	return &RouterTrainerOptions{Method: it.Method, Sharing: int(it.Sharing), Epochs: int(it.Epochs),
		MeanBits: it.MeanBits, LossWeight: it.LossWeight, LearningRate: it.LearningRate, Seed: it.Seed}
}

// NewRouterTrainer creates a trainer for a cache of the given shape and a policy with a router's experts.
func (x *Context) NewRouterTrainer(cache *CacheOptions, policy *Policy, options *RouterTrainerOptions) (*RouterTrainer, error) {
	if options == nil {
		return nil, argument("options is nil")
	}
	var to raw.RouterTrainerOptions
	raw.RouterTrainerOptionsInit(&to)
	err := narrowAll([]number{{"Sharing", options.Sharing, &to.Sharing}, {"Epochs", options.Epochs, &to.Epochs}})
	if err != nil {
		return nil, err
	}
	to.Method, to.MeanBits, to.LossWeight = options.Method, options.MeanBits, options.LossWeight
	to.LearningRate, to.Seed, to.MaxBytes = options.LearningRate, options.Seed, options.MaxBytes
	if to.Note, err = optional("Note", options.Note); err != nil {
		return nil, err
	}
	if err := x.lock(shared); err != nil {
		return nil, err
	}
	defer x.unlock(shared)
	it := new(RouterTrainer)
	var callErr error
	err = cache.with(policy, func(shape *raw.CacheOptions, policy *raw.Policy) {
		var made *raw.RouterTrainer
		c := acquire()
		status := raw.RouterTrainerCreate(x.raw, shape, policy, &to, &made, &c.err)
		it, callErr = created(it, &it.handle, made, raw.RouterTrainerDestroy, c, status, x.fail)
	})
	if err == nil {
		err = callErr
	}
	if err != nil {
		return nil, err
	}
	it.qHeads, it.kvHeads, it.headDim = cache.QHeads, cache.KVHeads, cache.HeadDim
	return it, nil
}

// Add one text to a layer: queries `[n, QHeads, HeadDim]` and keys `[n, KVHeads, HeadDim]` before RoPE, values like
// keys. Queries and values may be the zero Tensor for RouterPaper.
func (t *RouterTrainer) Add(layer int, q, k, v Tensor) error {
	index, err := narrow("layer", layer)
	if err != nil {
		return err
	}
	n, dtype, err := tokensOf(t.headDim, of{"q", q, t.qHeads, true}, of{"k", k, t.kvHeads, false}, of{"v", v, t.kvHeads, true})
	if err != nil {
		return err
	}
	if err := t.lock(exclusive); err != nil {
		return err
	}
	defer t.unlock(exclusive)
	c := acquire()
	return c.end(raw.RouterTrainerAdd(t.raw, index, n, q.data, k.data, v.data, dtype, &c.err), t.fail)
}

// Run trains the routers of all layers on the texts added, and drops them. For RouterPaper, loss is the model's mean
// negative log-likelihood of a token. It ends early, with the context's error, when ctx is done; progress may be nil.
func (t *RouterTrainer) Run(ctx context.Context, loss float64, progress Progress) error {
	if err := t.lock(exclusive); err != nil {
		return err
	}
	defer t.unlock(exclusive)
	return watched(ctx, progress, func(hook raw.ProgressHook, user uintptr) error {
		c := acquire()
		return c.end(raw.RouterTrainerRun(t.raw, loss, hook, user, &c.err), t.fail)
	})
}

// Result is the routers, after Run.
func (t *RouterTrainer) Result() (*Router, error) {
	if err := t.lock(shared); err != nil {
		return nil, err
	}
	defer t.unlock(shared)
	it := new(Router)
	var made *raw.Router
	c := acquire()
	status := raw.RouterTrainerResult(t.raw, &made, &c.err)
	return created(it, &it.handle, made, raw.RouterDestroy, c, status, t.fail)
}

// of is one tensor of a text.
type of struct {
	name     string
	tensor   Tensor
	heads    int
	optional bool
}

// tokensOf checks that dense tensors have as many tokens and one type.
func tokensOf(headDim int, tensors ...of) (int32, Dtype, error) {
	if headDim < 1 {
		return 0, 0, ErrClosed
	}
	tokens, dtype, from := 0, F32, ""
	for _, it := range tensors {
		if it.optional && it.tensor.data == unsafe.Pointer(nil) {
			continue
		}
		n, err := it.tensor.rows(it.name, it.heads, headDim, "heads x HeadDim")
		if err != nil {
			return 0, 0, err
		}
		if from == "" {
			tokens, dtype, from = n, it.tensor.dtype, it.name
		}
		if n != tokens || it.tensor.dtype != dtype {
			return 0, 0, argument("%s has %d tokens of %s, must have as many as %s: %d of %s", it.name, n, it.tensor.dtype,
				from, tokens, dtype)
		}
	}
	if from == "" {
		return 0, 0, argument("%s is empty", tensors[0].name)
	}
	n, err := narrow("tokens", tokens)
	return n, dtype, err
}
