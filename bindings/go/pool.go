package kvq

import (
	"fmt"
	"unsafe"

	"kvq/raw"
)

// Pool holds tokens in memory of an engine that keeps block tables: the layers and formats of a cache, but no sequences of
// its own. The memory of a layer is cut into blocks of so many tokens for all KV heads, which the engine allocates, shares
// by prefix, copies, swaps and frees as it likes; sequences are rows of block numbers, which [PoolPlan.Batch] takes.
//
// A full page of [PageSlots] tokens is encoded in its block by the call that brings its last token; FP16 numbers of the
// newest two pages are in a tail, of which each growing sequence has one. Blocks of full pages may be shared by any number
// of sequences. See docs/engines.md of the repository.
type Pool struct {
	handle[raw.Pool]
	cache *Cache
}

// Memory is memory of a pool's blocks or tails, from [HostMemory] or [DevicePointer.Memory]; the zero value is none.
type Memory struct {
	pointer unsafe.Pointer
	length  int // not known on a device
}

// HostMemory returns memory in which a pool may keep tokens until it and its plans are closed: not Go's own, whose
// addresses the library may not keep, but that of syscall.Mmap or of C.
func HostMemory(bytes []byte) Memory { return Memory{bytesOf(bytes), len(bytes)} }

// Memory returns memory of a pool on a GPU, whose size is not checked.
func (p DevicePointer) Memory() Memory { return Memory{foreign(uintptr(p)), -1} }

// holds checks that memory is where the cache computes and has room for n items, and returns its address.
func (m Memory) holds(c *Cache, name string, n int, stride, bytes int64) (unsafe.Pointer, error) {
	if m.pointer != nil && (m.length < 0) != (c.context.device == DeviceCUDA) {
		return nil, argument("%s is in other memory than where the context computes", name)
	}
	if stride == 0 {
		stride = bytes
	}
	if n > 0 && bytes > 0 && m.length >= 0 && m.pointer != nil {
		if left := int64(m.length) - bytes; left < 0 || stride > 0 && int64(n-1) > left/stride {
			return nil, argument("%s has %d bytes, too few for %d times %d bytes, %d apart", name, m.length, n, bytes, stride)
		}
	}
	return m.pointer, nil
}

// BlockRange is consecutive blocks of one layer.
type BlockRange struct {
	Memory Memory // none: the layer has no tokens of its own
	Blocks int    // the same in all layers
	Stride int    // bytes from one block to the next; 0: those of a block
}

// PoolOptions are the memory of a pool; [Cache.BlockLayout] tells the sizes.
type PoolOptions struct {
	BlockTokens int            // a multiple of PageSlots
	Ranges      [][]BlockRange // of each layer as many, through which blocks are numbered
	Tails       []Memory       // of each layer, none for one that needs none; nil: no layer does
	TailCount   int            // tails of each layer
	TailStride  int            // bytes from one tail to the next; 0: those of a tail
}

// BlockLayout returns the sizes of a layer's blocks and tails, which depend on its heads and format alone. A layer without
// tokens of its own has blocks of 0 bytes.
func (c *Cache) BlockLayout(layer, blockTokens int) (BlockLayout, error) {
	var tokens int32
	if err := narrow("blockTokens", blockTokens, &tokens); err != nil {
		return BlockLayout{}, err
	}
	return describedPart(&c.handle, "layer", layer, func(it *raw.Cache, layer int32, layout *raw.BlockLayout, err *raw.Error) raw.Status {
		return raw.PoolLayout(it, layer, tokens, layout, err)
	}, blockLayoutFrom)
}

// NewPool creates a pool of blocks for the layers and formats of the cache. It may not evict or route.
func (c *Cache) NewPool(options *PoolOptions) (*Pool, error) {
	if options == nil {
		return nil, argument("options is nil")
	}
	var to raw.PoolOptions
	raw.PoolOptionsInit(&to)
	lists, err := options.place(c, &to)
	if err != nil {
		return nil, err
	}
	defer raw.Free(lists)
	if err := c.lock(shared); err != nil {
		return nil, err
	}
	defer c.unlock(shared)
	pool := &Pool{cache: c}
	var made *raw.Pool
	call := acquire(c.fail)
	status := raw.PoolCreate(c.raw, &to, &made, &call.err)
	return created(pool, &pool.handle, made, raw.PoolDestroy, call, status)
}

// place sets the options of C and its lists in memory of C's, which the caller frees.
func (o *PoolOptions) place(c *Cache, to *raw.PoolOptions) (unsafe.Pointer, error) {
	n := len(c.layers)
	if err := firstOf(slice("Ranges", len(o.Ranges), n), optionalSlice("Tails", o.Tails, n),
		narrow("BlockTokens", o.BlockTokens, &to.BlockTokens), narrow("TailCount", o.TailCount, &to.NTails)); err != nil {
		return nil, err
	}
	each := 0
	if n > 0 {
		each = len(o.Ranges[0])
	}
	if err := narrow("Ranges", each, &to.NRanges); err != nil {
		return nil, err
	}
	size := uintptr(n*each) * unsafe.Sizeof(raw.BlockRange{})
	memory := raw.Allocate(size + uintptr(n)*unsafe.Sizeof(unsafe.Pointer(nil)) + 1)
	if memory == nil {
		return nil, &Error{Status: ErrMemory, Message: "no memory for Ranges"}
	}
	ranges := unsafe.Slice((*raw.BlockRange)(memory), n*each)
	tails := unsafe.Slice((*unsafe.Pointer)(unsafe.Add(memory, size)), n)
	for layer := range o.Ranges {
		if err := o.placeLayer(c, layer, ranges[layer*each:(layer+1)*each], tails); err != nil {
			raw.Free(memory)
			return nil, err
		}
	}
	to.NLayers, to.TailStride, to.Ranges = int32(n), int64(o.TailStride), first(ranges)
	if o.Tails != nil {
		to.Tails = first(tails)
	}
	return memory, nil
}

func (o *PoolOptions) placeLayer(c *Cache, layer int, ranges []raw.BlockRange, tails []unsafe.Pointer) error {
	layout, err := c.BlockLayout(layer, o.BlockTokens)
	if err != nil {
		return err
	}
	if err := slice(fmt.Sprintf("Ranges[%d]", layer), len(o.Ranges[layer]), len(ranges)); err != nil {
		return err
	}
	for i, given := range o.Ranges[layer] {
		name, it := fmt.Sprintf("Ranges[%d][%d]", layer, i), raw.BlockRange{}
		raw.BlockRangeInit(&it)
		it.Data, err = given.Memory.holds(c, name, given.Blocks, int64(given.Stride), layout.BlockBytes)
		if err := firstOf(err, narrow(name+".Blocks", given.Blocks, &it.NBlocks)); err != nil {
			return err
		}
		it.Stride = int64(given.Stride)
		ranges[i] = it
	}
	if o.Tails != nil {
		tails[layer], err = o.Tails[layer].holds(c, fmt.Sprintf("Tails[%d]", layer), o.TailCount, int64(o.TailStride), layout.TailBytes)
	}
	return err
}

// Cache returns the cache whose layers and formats the pool has.
func (p *Pool) Cache() *Cache { return p.cache }

// WriteBlock writes a block of a layer from bytes of [Pool.ReadBlock]; numbers that no encoder writes are refused.
func (p *Pool) WriteBlock(layer, block int, data []byte) error {
	var n [2]int32
	if err := firstOf(narrow("layer", layer, &n[0]), narrow("block", block, &n[1])); err != nil {
		return err
	}
	if len(data) == 0 {
		return argument("data is empty")
	}
	if err := p.lock(exclusive); err != nil {
		return err
	}
	defer p.unlock(exclusive)
	c := acquire(p.fail)
	return c.end(raw.PoolWriteBlock(p.raw, n[0], n[1], bytesOf(data), uintptr(len(data)), &c.err))
}

// PoolLimits are the limits of a plan's batches, which its memory depends on.
type PoolLimits struct {
	Sequences int // of a batch
	Tokens    int // new ones of all sequences of a batch
	Queries   int // new tokens of one sequence; 0: as many as Tokens
	Blocks    int // of one sequence
}

// PoolPlan is memory for calls on a pool, and the batch that they work on. Its calls run one at a time; other plans of the
// pool may run meanwhile, on blocks and tails that this one does not write to.
type PoolPlan struct {
	handle[raw.PoolPlan]
	pool   *Pool
	blocks int // of one sequence, at most
	tokens int // of the planned batch; 0: none is planned
}

// NewPlan creates a plan with memory for all calls within the limits. An engine needs one, or one for each goroutine that
// calls. It still works after its pool is closed.
func (p *Pool) NewPlan(limits PoolLimits) (*PoolPlan, error) {
	var to raw.PoolLimits
	raw.PoolLimitsInit(&to)
	if err := firstOf(narrow("Sequences", limits.Sequences, &to.MaxSequences), narrow("Tokens", limits.Tokens, &to.MaxTokens),
		narrow("Queries", limits.Queries, &to.MaxQueries), narrow("Blocks", limits.Blocks, &to.MaxBlocks)); err != nil {
		return nil, err
	}
	if err := p.lock(shared); err != nil {
		return nil, err
	}
	defer p.unlock(shared)
	plan := &PoolPlan{pool: p, blocks: limits.Blocks}
	var made *raw.PoolPlan
	call := acquire(p.fail)
	status := raw.PoolPlanCreate(p.raw, &to, &made, &call.err)
	return created(plan, &plan.handle, made, raw.PoolPlanDestroy, call, status)
}

// Pool returns the pool of the plan.
func (p *PoolPlan) Pool() *Pool { return p.pool }

// Bytes returns the bytes that the plan has allocated, which count as the context's.
func (p *PoolPlan) Bytes() (uint64, error) {
	if err := p.lock(shared); err != nil {
		return 0, err
	}
	defer p.unlock(shared)
	return raw.PoolPlanBytes(p.raw), nil
}

// PoolBatch holds sequences of a pool: Lengths has one number for each.
type PoolBatch struct {
	QueryStarts []int32 // `[sequences + 1]`: the first row of each sequence, from 0 on and ascending, and the end
	Lengths     []int32 // tokens, new ones included; token t is at position t
	BlockTable  []int32 // `[sequences, TableStride]`: numbers of each sequence's blocks, in order
	Tails       []int32 // the tail of each sequence; nil: the pool has no tails
	TableStride int     // numbers from one row to the next; 0: the plan's limit of blocks
	Tokens      int     // rows of the calls' tensors; 0: the end of QueryStarts
	MaxQueries  int     // most new tokens of a sequence; 0: the plan's limit
	MaxLength   int     // tokens of the longest sequence; 0: the plan's limit
}

// DevicePoolBatch is a [PoolBatch] whose arrays of int32 are in device memory: they are read in stream order and may change
// in place between replays of a CUDA graph. What is out of range there counts as absent.
type DevicePoolBatch struct {
	Sequences                               int
	QueryStarts, Lengths, BlockTable, Tails DevicePointer
	TableStride                             int
	Tokens                                  int // at least the new tokens of all sequences
	MaxQueries, MaxLength                   int
}

// Batch finds the pages of a batch, once for the calls on all layers. It refuses two sequences that write to one block or
// tail.
func (p *PoolPlan) Batch(batch *PoolBatch) error {
	if batch == nil {
		return argument("batch is nil")
	}
	n, stride, tokens := len(batch.Lengths), either(batch.TableStride, p.blocks), batch.Tokens
	if err := firstOf(slice("QueryStarts", len(batch.QueryStarts), n+1), slice("BlockTable", len(batch.BlockTable), n*stride),
		optionalSlice("Tails", batch.Tails, n)); err != nil {
		return err
	}
	if tokens == 0 {
		tokens = int(batch.QueryStarts[n])
	}
	return p.batch(false, n, tokens, batch.MaxQueries, batch.MaxLength, raw.PoolBatch{QueryStarts: first(batch.QueryStarts),
		Lengths: first(batch.Lengths), BlockTable: first(batch.BlockTable), TableStride: int64(stride), Tails: first(batch.Tails)})
}

// BatchDevice finds the pages of a batch by arrays in device memory, in stream order.
func (p *PoolPlan) BatchDevice(batch *DevicePoolBatch) error {
	if batch == nil {
		return argument("batch is nil")
	}
	at := func(p DevicePointer) *int32 { return (*int32)(foreign(uintptr(p))) }
	return p.batch(true, batch.Sequences, batch.Tokens, batch.MaxQueries, batch.MaxLength, raw.PoolBatch{
		QueryStarts: at(batch.QueryStarts), Lengths: at(batch.Lengths), BlockTable: at(batch.BlockTable),
		TableStride: int64(batch.TableStride), Tails: at(batch.Tails)})
}

func (p *PoolPlan) batch(onDevice bool, n, tokens, queries, length int, to raw.PoolBatch) error {
	if p.pool == nil {
		return ErrClosed
	}
	if err := firstOf(p.pool.cache.context.requireMemory(onDevice, "Batch"), narrow("Lengths", n, &to.NSequences),
		narrow("Tokens", tokens, &to.NTokens), narrow("MaxQueries", queries, &to.MaxQueries),
		narrow("MaxLength", length, &to.MaxLength)); err != nil {
		return err
	}
	if err := p.lock(exclusive); err != nil {
		return err
	}
	defer p.unlock(exclusive)
	p.tokens = 0
	c := acquire(p.fail)
	status := raw.PoolPlanBatch(p.raw, &to, &c.err)
	if status == raw.OK {
		p.tokens = tokens
	}
	return c.end(status)
}

// PoolCall holds new tokens of one layer, their queries, and where results go, a row for each of the batch.
type PoolCall struct {
	K, V          Tensor // as in AppendBatch; absent in Attend
	Q, Output     Tensor // as in AttendBatch; absent in Append
	SlidingWindow int    // as in AttendBatch, like the fields below
	LogitSoftcap  float32
	LSE, Sinks    []float32
	Mask          []uint32
	MaskSlots     int
}

// DevicePoolCall is a [PoolCall] whose tensors are in device memory.
type DevicePoolCall struct {
	K, V, Q, Output DeviceTensor
	SlidingWindow   int
	LogitSoftcap    float32
	LSE, Sinks      DevicePointer // float32; 0: none
	Mask            DevicePointer // uint32; 0: none
	MaskSlots       int
}

// poolMethod is what calls of a plan do with a [PoolCall].
type poolMethod struct {
	name           string
	tokens, attend bool
	by             func(plan *raw.PoolPlan, layer int32, call *raw.PoolCall, err *raw.Error) raw.Status
}

var (
	poolAppend = poolMethod{"Append", true, false, raw.PoolAppend}
	poolAttend = poolMethod{"Attend", false, true, raw.PoolAttend}
	poolExtend = poolMethod{"Extend", true, true, raw.PoolExtend}
)

// Append stores the new tokens of the batch in a layer. If it fails, full pages and tokens of the tails are as they were.
func (p *PoolPlan) Append(layer int, call *PoolCall) error { return p.onHost(&poolAppend, layer, call) }

// AppendDevice appends from device memory; it does not check sizes.
func (p *PoolPlan) AppendDevice(layer int, call *DevicePoolCall) error {
	return p.onDevice(&poolAppend, layer, call)
}

// Attend computes attention of the batch's newest tokens, which the layer, or the one whose pages it reads, holds.
func (p *PoolPlan) Attend(layer int, call *PoolCall) error { return p.onHost(&poolAttend, layer, call) }

// AttendDevice attends in device memory; it does not check sizes.
func (p *PoolPlan) AttendDevice(layer int, call *DevicePoolCall) error {
	return p.onDevice(&poolAttend, layer, call)
}

// Extend stores the new tokens of the batch and attends with their queries, which see them as they are given.
func (p *PoolPlan) Extend(layer int, call *PoolCall) error { return p.onHost(&poolExtend, layer, call) }

// ExtendDevice extends in device memory; it does not check sizes.
func (p *PoolPlan) ExtendDevice(layer int, call *DevicePoolCall) error {
	return p.onDevice(&poolExtend, layer, call)
}

func (p *PoolPlan) onHost(method *poolMethod, layer int, call *PoolCall) error {
	if call == nil {
		return argument("call is nil")
	}
	return p.run(method, layer, call, first(call.LSE), first(call.Sinks), first(call.Mask), false)
}

func (p *PoolPlan) onDevice(method *poolMethod, layer int, call *DevicePoolCall) error {
	if call == nil {
		return argument("call is nil")
	}
	it := PoolCall{K: call.K.tensor(), V: call.V.tensor(), Q: call.Q.tensor(), Output: call.Output.tensor(),
		SlidingWindow: call.SlidingWindow, LogitSoftcap: call.LogitSoftcap, MaskSlots: call.MaskSlots}
	return p.run(method, layer, &it, (*float32)(foreign(uintptr(call.LSE))), (*float32)(foreign(uintptr(call.Sinks))),
		(*uint32)(foreign(uintptr(call.Mask))), true)
}

func (p *PoolPlan) run(method *poolMethod, layer int, call *PoolCall, lse, sinks *float32, mask *uint32, onDevice bool) error {
	if p.pool == nil {
		return ErrClosed
	}
	cache := p.pool.cache
	if err := cache.context.requireMemory(onDevice, method.name); err != nil {
		return err
	}
	shape, err := cache.layer(layer, cache)
	if err != nil {
		return err
	}
	if err := p.lock(exclusive); err != nil {
		return err
	}
	defer p.unlock(exclusive)
	n := p.tokens
	if n == 0 {
		return &Error{Status: ErrState, Message: "the plan has no batch"}
	}
	to := raw.PoolCall{NTokens: int32(n), LogitSoftcap: call.LogitSoftcap, LSE: lse, Sinks: sinks, Mask: mask}
	var index int32
	if err := firstOf(narrow("layer", layer, &index), narrow("SlidingWindow", call.SlidingWindow, &to.SlidingWindow),
		holdMask(n, call.Mask, call.MaskSlots), narrow("MaskSlots", call.MaskSlots, &to.MaskSlots)); err != nil {
		return err
	}
	if k, v := call.K, call.V; method.tokens {
		if err := shape.holdTokens(n, k, v); err != nil {
			return err
		}
		to.K, to.V, to.Dtype = k.data, v.data, k.dtype
		to.KTokenStride, to.KHeadStride = int64(k.tokenStride), int64(k.headStride)
		to.VTokenStride, to.VHeadStride = int64(v.tokenStride), int64(v.headStride)
	} else if k.data != nil || v.data != nil {
		return argument("K or V is given, but %s stores no tokens", method.name)
	}
	if q, output := call.Q, call.Output; method.attend {
		if err := shape.holdQueries(n, q, output, call.LSE, call.Sinks); err != nil {
			return err
		}
		to.Q, to.Output, to.QDtype, to.OutputDtype = q.data, output.data, q.dtype, output.dtype
		to.QTokenStride, to.QHeadStride = int64(q.tokenStride), int64(q.headStride)
		to.OutputTokenStride, to.OutputHeadStride = int64(output.tokenStride), int64(output.headStride)
	} else if q.data != nil || output.data != nil {
		return argument("Q or Output is given, but %s has no queries", method.name)
	}
	c := acquire(p.fail)
	return c.end(method.by(p.raw, index, &to, &c.err))
}
