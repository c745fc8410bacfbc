package kvq

import (
	"unsafe"

	"kvq/raw"
)

// Sequence holds the pages of one conversation. It still works after its cache is closed.
type Sequence struct {
	handle[raw.Sequence]
	cache *Cache
	owner *raw.Cache // the C cache, alive as long as the sequence
}

// use locks the sequence and makes [Cache.Usage] wait.
func (s *Sequence) use(exclusive bool) error {
	if err := s.lock(exclusive); err != nil {
		return err
	}
	s.cache.gate.RLock()
	return nil
}

func (s *Sequence) done(exclusive bool) {
	s.cache.gate.RUnlock()
	s.unlock(exclusive)
}

// requireMemory checks that a method fits the memory of the sequence's device.
func (s *Sequence) requireMemory(onDevice bool, method string) error {
	if s.cache == nil {
		return ErrClosed
	}
	return s.cache.context.requireMemory(onDevice, method)
}

// sequence wraps the handle that create returns; the caller holds the gate.
func (c *Cache) sequence(create func(made **raw.Sequence, err *raw.Error) raw.Status) (*Sequence, error) {
	s := &Sequence{cache: c}
	var made *raw.Sequence
	call := acquire(c.fail)
	status := create(&made, &call.err)
	s.owner = raw.SequenceCache(made)
	return created(s, &s.handle, made, c.endSequence, call, status)
}

func (c *Cache) endSequence(it *raw.Sequence) {
	c.gate.RLock()
	defer c.gate.RUnlock()
	raw.SequenceDestroy(it)
}

// newSequence creates a sequence of an open cache.
func (c *Cache) newSequence(create func(made **raw.Sequence, err *raw.Error) raw.Status) (*Sequence, error) {
	if err := c.lock(shared); err != nil {
		return nil, err
	}
	defer c.unlock(shared)
	c.gate.RLock()
	defer c.gate.RUnlock()
	return c.sequence(create)
}

// NewSequence creates an empty sequence.
func (c *Cache) NewSequence() (*Sequence, error) {
	return c.newSequence(func(made **raw.Sequence, err *raw.Error) raw.Status { return raw.SequenceCreate(c.raw, made, err) })
}

// LoadSequence creates a sequence from a snapshot of [Sequence.Save]. Every byte is checked. [Cache.Load] takes other
// formats and several sequences.
func (c *Cache) LoadSequence(snapshot []byte) (*Sequence, error) {
	if len(snapshot) == 0 {
		return nil, argument("snapshot is empty")
	}
	return c.newSequence(func(made **raw.Sequence, err *raw.Error) raw.Status {
		return raw.SequenceLoad(c.raw, bytesOf(snapshot), uintptr(len(snapshot)), made, err)
	})
}

// Cache returns the cache that the sequence belongs to.
func (s *Sequence) Cache() *Cache { return s.cache }

// Fork creates a sequence that starts with all tokens of this one. Pages are shared until either changes them.
func (s *Sequence) Fork() (*Sequence, error) {
	if err := s.use(shared); err != nil {
		return nil, err
	}
	defer s.done(shared)
	return s.cache.sequence(func(made **raw.Sequence, err *raw.Error) raw.Status {
		return raw.SequenceFork(s.owner, s.raw, made, err)
	})
}

// Append appends tokens to a layer: keys before RoPE, dense `[n, KVHeads, KeyDim]`, and values, dense
// `[n, KVHeads, ValueDim]`, at consecutive positions; where they are a prefix of the keys, v is Tensor{}. All tokens are
// appended or none. It allocates nothing in Go.
func (s *Sequence) Append(layer int, k, v Tensor) error { return s.AppendAt(layer, k, v, nil) }

// AppendAt appends tokens at strictly increasing positions beyond the layer's last one.
func (s *Sequence) AppendAt(layer int, k, v Tensor, positions []int32) error {
	if err := s.requireMemory(false, "Append"); err != nil {
		return err
	}
	shape, err := s.cache.layer(layer, s)
	if err != nil {
		return err
	}
	n, err := k.rows("k", shape.KVHeads, shape.KeyDim, "KVHeads x KeyDim")
	if err != nil {
		return err
	}
	if shape.ValuesAreKeyPrefix {
		err = v.absent("v")
	} else {
		err = firstOf(v.dense("v", n, shape.KVHeads, shape.ValueDim, "rows of k x KVHeads x ValueDim"), v.like("v", k, "k"))
	}
	if err != nil {
		return err
	}
	return s.append(layer, n, k, v, positions)
}

// AppendDevice appends n tokens whose keys, `[n, KVHeads, KeyDim]`, and values, `[n, KVHeads, ValueDim]`, are in device
// memory; positions may be nil, and v is 0 where values are a prefix of the keys.
func (s *Sequence) AppendDevice(layer, n int, k, v DevicePointer, dtype Dtype, positions []int32) error {
	if err := s.requireMemory(true, "Append"); err != nil {
		return err
	}
	return s.append(layer, n, k.of(dtype), v.of(dtype), positions)
}

func (s *Sequence) append(layer, n int, k, v Tensor, positions []int32) error {
	var index, tokens int32
	if err := firstOf(narrow("layer", layer, &index), narrow("n", n, &tokens), optionalSlice("positions", positions, n)); err != nil {
		return err
	}
	return s.call(exclusive, func(err *raw.Error) raw.Status {
		return raw.Append(s.owner, s.raw, index, tokens, k.data, v.data, k.dtype, first(positions), err)
	})
}

// call runs a call that uses the sequence.
func (s *Sequence) call(exclusive bool, by func(err *raw.Error) raw.Status) error {
	if err := s.use(exclusive); err != nil {
		return err
	}
	defer s.done(exclusive)
	c := acquire(s.fail)
	return c.end(by(&c.err))
}

// count returns the number that a call writes.
func (s *Sequence) count(by func(to *int32, err *raw.Error) raw.Status) (int, error) {
	if err := s.use(shared); err != nil {
		return 0, err
	}
	defer s.done(shared)
	c := acquire(s.fail)
	c.count = 0
	status := by(&c.count, &c.err)
	answer := int(c.count)
	return answer, c.end(status)
}

// Save writes a snapshot for [Cache.LoadSequence] and [Cache.Load].
func (s *Sequence) Save() ([]byte, error) {
	if err := s.use(shared); err != nil {
		return nil, err
	}
	defer s.done(shared)
	return saved(func(buffer unsafe.Pointer, capacity uintptr, size *uintptr) error {
		c := acquire(s.fail)
		return c.end(raw.SequenceSave(s.owner, s.raw, buffer, capacity, size, &c.err))
	})
}

// Decoded holds stored tokens of one KV head: keys `[n, KeyDim]` as attention reads them, after RoPE, and values
// `[n, ValueDim]`.
type Decoded struct {
	K, V      []float32
	Positions []int32
}

// Decode decodes n slots of a KV head from begin on, for inspection and tests. It is not optimised.
func (s *Sequence) Decode(layer, kvHead, begin, n int) (Decoded, error) {
	held, err := s.Slots(layer, kvHead)
	if err != nil {
		return Decoded{}, err
	}
	if n < 1 || begin < 0 || begin > held-n {
		return Decoded{}, argument("slots %d to %d of head %d are asked for, which holds %d", begin, begin+n-1, kvHead, held)
	}
	shape, err := s.cache.layer(layer, s)
	if err != nil {
		return Decoded{}, err
	}
	it := Decoded{make([]float32, n*shape.KeyDim), make([]float32, n*shape.ValueDim), make([]int32, n)}
	return it, s.call(shared, func(err *raw.Error) raw.Status {
		return raw.SequenceDecode(s.owner, s.raw, int32(layer), int32(kvHead), int32(begin), int32(n), &it.K[0], &it.V[0],
			&it.Positions[0], err)
	})
}

// Compressed is the result of an eviction.
type Compressed struct {
	Kept       []int32 // `[Layers, KVHeads]` tokens that each head now holds
	BytesFreed uint64  // decrease in the bytes of the sequence
}

// Compress evicts tokens as the cache's policy says, so that a KV head keeps budget tokens on average; 0: the policy's
// budget.
func (s *Sequence) Compress(budget int) (Compressed, error) {
	if s.cache == nil {
		return Compressed{}, ErrClosed
	}
	it := Compressed{Kept: make([]int32, s.cache.info.Layers*s.cache.info.KVHeads)}
	var options raw.CompressOptions
	raw.CompressOptionsInit(&options)
	options.Kept, options.BytesFreed = &it.Kept[0], &it.BytesFreed
	err := narrow("budget", budget, &options.Budget)
	if err == nil {
		err = s.call(exclusive, func(err *raw.Error) raw.Status { return raw.Compress(s.owner, s.raw, &options, err) })
	}
	if err != nil {
		return Compressed{}, err
	}
	return it, nil
}

// Usage returns the memory of the sequence, with shared pages counted in full.
func (s *Sequence) Usage() (Usage, error) {
	if err := s.use(shared); err != nil {
		return Usage{}, err
	}
	defer s.done(shared)
	return usage(s.owner, s.raw, s.fail)
}
