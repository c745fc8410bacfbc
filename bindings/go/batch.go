package kvq

import (
	"math"

	"kvq/raw"
)

// AppendBatch holds tokens for one layer of several sequences. Rows of K and V (one per token) are ordered by sequence.
// There is no V exactly where [LayerInfo].ValuesAreKeyPrefix.
type AppendBatch struct {
	Sequences   []*Sequence // sequences of one cache, all different
	TokenCounts []int32     // tokens per sequence, at least 1; nil: one each
	Positions   []int32     // positions of all tokens; nil: consecutive in each sequence
	K, V        Tensor      // `[tokens, KVHeads, KeyDim]` and `[tokens, KVHeads, ValueDim]`, of the same type, dense or strided

	// `[tokens, 3]` positions by which keys turn in a cache with MropeSection: temporal, height, width. Positions still say
	// which tokens a query sees. nil: a token's position in all three.
	RopePositions []int32
}

// DeviceAppendBatch is an [AppendBatch] whose keys and values are in device memory.
type DeviceAppendBatch struct {
	Sequences              []*Sequence
	TokenCounts, Positions []int32
	K, V                   DeviceTensor
	RopePositions          DevicePointer // int32; 0: none
}

// AttendBatch holds queries of one or more sequences, and where their results go.
type AttendBatch struct {
	Sequences      []*Sequence // sequences of one cache; one may occur repeatedly
	QueryCounts    []int32     // queries per sequence, at least 1; nil: one each
	QueryPositions []int32     // positions of all queries; nil: the last tokens of each sequence
	Q              Tensor      // `[queries, QHeads, KeyDim]` before RoPE, of any type, dense or strided
	Output         Tensor      // `[queries, QHeads, ValueDim]`, of any type, dense or strided; may not overlap Q
	SlidingWindow  int         // a query at position p sees positions > p - SlidingWindow; 0: all
	LogitSoftcap   float32     // cap·tanh(logit / cap); 0: none
	LSE            []float32   // receives `[queries, QHeads]` log-sum-exps of the logits; nil: skip
	Sinks          []float32   // `[QHeads]` logits added only to the softmax denominator; nil: none
	Mask           []uint32    // `[queries, (MaskSlots + 31) / 32]` bits: which of the newest slots a query sees; nil: all by position
	MaskSlots      int         // slots that Mask covers, at most [MaxMaskSlots]
	RopePositions  []int32     // `[queries, 3]` positions by which queries turn, as in AppendBatch; nil: those of the queries
}

// DeviceAttendBatch is an [AttendBatch] whose tensors are in device memory.
type DeviceAttendBatch struct {
	Sequences                   []*Sequence
	QueryCounts, QueryPositions []int32
	Q, Output                   DeviceTensor
	SlidingWindow               int
	LogitSoftcap                float32
	LSE, Sinks                  DevicePointer // float32; 0: none
	Mask                        DevicePointer // uint32; 0: none
	MaskSlots                   int
	RopePositions               DevicePointer // int32; 0: none
}

// ExtendBatch holds new tokens of one or more sequences, their queries, and where results go. Rows of K, V, Q and Output
// (one per token) are ordered by sequence.
type ExtendBatch struct {
	Sequences     []*Sequence // sequences of one cache, all different
	TokenCounts   []int32     // new tokens per sequence, at least 1; nil: one each
	Positions     []int32     // positions of all tokens; nil: consecutive in each sequence
	K, V          Tensor      // as in AppendBatch
	Q, Output     Tensor      // as in AttendBatch
	SlidingWindow int         // as in AttendBatch, like the fields below
	LogitSoftcap  float32
	LSE, Sinks    []float32
	Mask          []uint32
	MaskSlots     int
	RopePositions []int32 // as in AppendBatch, for keys and queries
}

// DeviceExtendBatch is an [ExtendBatch] whose tensors are in device memory.
type DeviceExtendBatch struct {
	Sequences              []*Sequence
	TokenCounts, Positions []int32
	K, V, Q, Output        DeviceTensor
	SlidingWindow          int
	LogitSoftcap           float32
	LSE, Sinks             DevicePointer // float32; 0: none
	Mask                   DevicePointer // uint32; 0: none
	MaskSlots              int
	RopePositions          DevicePointer // int32; 0: none
}

// total returns the number of rows of a batch, after checking that the method fits the memory of the device.
func (c *Cache) total(onDevice bool, method string, sequences []*Sequence, name string, counts []int32) (int, error) {
	if c.context == nil {
		return 0, ErrClosed
	}
	if err := c.context.requireMemory(onDevice, method); err != nil {
		return 0, err
	}
	if len(sequences) == 0 || len(sequences) > math.MaxInt32 {
		return 0, argument("Sequences has %d elements, must have 1 to %d", len(sequences), math.MaxInt32)
	}
	if counts == nil {
		return len(sequences), nil
	}
	if err := slice(name, len(counts), len(sequences)); err != nil {
		return 0, err
	}
	sum := 0
	for i, n := range counts {
		if n < 1 {
			return 0, argument("%s[%d] is %d, must be at least 1", name, i, n)
		}
		sum += int(n)
	}
	return sum, nil
}

// holdTokens checks the keys and values of n tokens.
func (l *LayerInfo) holdTokens(n int, k, v Tensor) error {
	if l.ValuesAreKeyPrefix {
		return firstOf(k.holds("K", n, l.KVHeads, l.KeyDim), v.absent("V"))
	}
	return firstOf(k.holds("K", n, l.KVHeads, l.KeyDim), v.holds("V", n, l.KVHeads, l.ValueDim), v.like("V", k, "K"))
}

// holdQueries checks n queries and where their results go.
func (l *LayerInfo) holdQueries(n int, q, output Tensor, lse, sinks []float32) error {
	return firstOf(q.holds("Q", n, l.QHeads, l.KeyDim), output.holds("Output", n, l.QHeads, l.ValueDim),
		optionalSlice("LSE", lse, n*l.QHeads), optionalSlice("Sinks", sinks, l.QHeads))
}

// holdMask checks the mask of n queries.
func holdMask(n int, mask []uint32, slots int) error {
	if slots < 0 {
		slots = 0 // which the library refuses
	}
	return optionalSlice("Mask", mask, n*((slots+31)/32))
}

// holdStreams checks the positions by which M-RoPE turns n rows.
func holdStreams(n int, positions []int32) error {
	return optionalSlice("RopePositions", positions, 3*n)
}

// take collects the sequences of a batch without locking them.
func (c *call) take(sequences []*Sequence, cache *Cache) error {
	for i, s := range sequences {
		if s != nil && s.cache == cache {
			c.sequences.given = append(c.sequences.given, &s.handle)
			continue
		}
		c.sequences.forget()
		if s == nil || s.cache == nil {
			return argument("Sequences[%d] is nil", i)
		}
		return argument("Sequences[%d] belongs to another cache", i)
	}
	return nil
}

// Append appends tokens to one layer of several sequences: to all of them or to none. [Cache.Extend] also attends, and
// loses less for chunks of a prompt.
func (c *Cache) Append(layer int, batch *AppendBatch) error {
	if batch == nil {
		return argument("batch is nil")
	}
	return c.append(layer, *batch, first(batch.RopePositions), false)
}

// AppendDevice appends from device memory; it does not check sizes.
func (c *Cache) AppendDevice(layer int, batch *DeviceAppendBatch) error {
	if batch == nil {
		return argument("batch is nil")
	}
	b := AppendBatch{Sequences: batch.Sequences, TokenCounts: batch.TokenCounts, Positions: batch.Positions,
		K: batch.K.tensor(), V: batch.V.tensor()}
	return c.append(layer, b, (*int32)(foreign(uintptr(batch.RopePositions))), true)
}

func (c *Cache) append(layer int, batch AppendBatch, streams *int32, onDevice bool) error {
	n, err := c.total(onDevice, "Append", batch.Sequences, "TokenCounts", batch.TokenCounts)
	if err != nil {
		return err
	}
	shape, err := c.layer(layer, c)
	if err != nil {
		return err
	}
	k, v := batch.K, batch.V
	var index int32
	if err := firstOf(shape.holdTokens(n, k, v), narrow("layer", layer, &index),
		optionalSlice("Positions", batch.Positions, n), holdStreams(n, batch.RopePositions)); err != nil {
		return err
	}
	to := raw.AppendBatch{TokenCounts: first(batch.TokenCounts), Positions: first(batch.Positions),
		K: k.data, V: v.data, Dtype: k.dtype, KTokenStride: int64(k.tokenStride), KHeadStride: int64(k.headStride),
		VTokenStride: int64(v.tokenStride), VHeadStride: int64(v.headStride), RopePositions: streams}
	return c.run(batch.Sequences, exclusive, func(sequences **raw.Sequence, n int32, err *raw.Error) raw.Status {
		to.NSequences, to.Sequences = n, sequences
		return raw.AppendSequences(c.raw, index, &to, err)
	})
}

// Attend computes attention of a batch of queries over one layer: softmax(Scale · q·kᵀ) v. It runs concurrently with
// other calls; only if the policy evicts it needs exclusive use of its sequences.
func (c *Cache) Attend(layer int, batch *AttendBatch) error {
	if batch == nil {
		return argument("batch is nil")
	}
	return c.attend(layer, *batch, first(batch.LSE), first(batch.Sinks), first(batch.Mask), first(batch.RopePositions), false)
}

// AttendDevice attends in device memory; it does not check sizes.
func (c *Cache) AttendDevice(layer int, batch *DeviceAttendBatch) error {
	if batch == nil {
		return argument("batch is nil")
	}
	b := AttendBatch{Sequences: batch.Sequences, QueryCounts: batch.QueryCounts, QueryPositions: batch.QueryPositions,
		Q: batch.Q.tensor(), Output: batch.Output.tensor(), SlidingWindow: batch.SlidingWindow, LogitSoftcap: batch.LogitSoftcap,
		MaskSlots: batch.MaskSlots}
	return c.attend(layer, b, (*float32)(foreign(uintptr(batch.LSE))), (*float32)(foreign(uintptr(batch.Sinks))),
		(*uint32)(foreign(uintptr(batch.Mask))), (*int32)(foreign(uintptr(batch.RopePositions))), true)
}

func (c *Cache) attend(layer int, batch AttendBatch, lse, sinks *float32, mask *uint32, streams *int32, onDevice bool) error {
	n, err := c.total(onDevice, "Attend", batch.Sequences, "QueryCounts", batch.QueryCounts)
	if err != nil {
		return err
	}
	shape, err := c.layer(layer, c)
	if err != nil {
		return err
	}
	q, output := batch.Q, batch.Output
	var index, window, slots int32
	if err := firstOf(shape.holdQueries(n, q, output, batch.LSE, batch.Sinks),
		optionalSlice("QueryPositions", batch.QueryPositions, n), narrow("layer", layer, &index),
		narrow("SlidingWindow", batch.SlidingWindow, &window), holdMask(n, batch.Mask, batch.MaskSlots),
		narrow("MaskSlots", batch.MaskSlots, &slots), holdStreams(n, batch.RopePositions)); err != nil {
		return err
	}
	to := raw.AttendBatch{QueryCounts: first(batch.QueryCounts), QueryPositions: first(batch.QueryPositions),
		Q: q.data, Output: output.data, QDtype: q.dtype, OutputDtype: output.dtype,
		QTokenStride: int64(q.tokenStride), QHeadStride: int64(q.headStride),
		OutputTokenStride: int64(output.tokenStride), OutputHeadStride: int64(output.headStride),
		SlidingWindow: window, LogitSoftcap: batch.LogitSoftcap, LSE: lse, Sinks: sinks,
		Mask: mask, MaskSlots: slots, RopePositions: streams}
	evicts := c.info.EvictionBudget > 0 // attention records observations
	return c.run(batch.Sequences, evicts, func(sequences **raw.Sequence, n int32, err *raw.Error) raw.Status {
		to.NSequences, to.Sequences = n, sequences
		return raw.Attend(c.raw, index, &to, err)
	})
}

// Extend appends tokens to one layer of several sequences and attends with their queries: all of it or nothing. Queries
// see the new tokens as they are given, not in the formats of sealed pages.
func (c *Cache) Extend(layer int, batch *ExtendBatch) error {
	if batch == nil {
		return argument("batch is nil")
	}
	return c.extend(layer, *batch, first(batch.LSE), first(batch.Sinks), first(batch.Mask), first(batch.RopePositions), false)
}

// ExtendDevice extends in device memory; it does not check sizes.
func (c *Cache) ExtendDevice(layer int, batch *DeviceExtendBatch) error {
	if batch == nil {
		return argument("batch is nil")
	}
	b := ExtendBatch{Sequences: batch.Sequences, TokenCounts: batch.TokenCounts, Positions: batch.Positions, K: batch.K.tensor(),
		V: batch.V.tensor(), Q: batch.Q.tensor(), Output: batch.Output.tensor(), SlidingWindow: batch.SlidingWindow,
		LogitSoftcap: batch.LogitSoftcap, MaskSlots: batch.MaskSlots}
	return c.extend(layer, b, (*float32)(foreign(uintptr(batch.LSE))), (*float32)(foreign(uintptr(batch.Sinks))),
		(*uint32)(foreign(uintptr(batch.Mask))), (*int32)(foreign(uintptr(batch.RopePositions))), true)
}

func (c *Cache) extend(layer int, batch ExtendBatch, lse, sinks *float32, mask *uint32, streams *int32, onDevice bool) error {
	n, err := c.total(onDevice, "Extend", batch.Sequences, "TokenCounts", batch.TokenCounts)
	if err != nil {
		return err
	}
	shape, err := c.layer(layer, c)
	if err != nil {
		return err
	}
	k, v, q, output := batch.K, batch.V, batch.Q, batch.Output
	var index, window, slots int32
	if err := firstOf(shape.holdTokens(n, k, v), shape.holdQueries(n, q, output, batch.LSE, batch.Sinks),
		optionalSlice("Positions", batch.Positions, n), narrow("layer", layer, &index),
		narrow("SlidingWindow", batch.SlidingWindow, &window), holdMask(n, batch.Mask, batch.MaskSlots),
		narrow("MaskSlots", batch.MaskSlots, &slots), holdStreams(n, batch.RopePositions)); err != nil {
		return err
	}
	to := raw.ExtendBatch{TokenCounts: first(batch.TokenCounts), Positions: first(batch.Positions),
		K: k.data, V: v.data, Dtype: k.dtype, KTokenStride: int64(k.tokenStride), KHeadStride: int64(k.headStride),
		VTokenStride: int64(v.tokenStride), VHeadStride: int64(v.headStride),
		Q: q.data, Output: output.data, QDtype: q.dtype, OutputDtype: output.dtype,
		QTokenStride: int64(q.tokenStride), QHeadStride: int64(q.headStride),
		OutputTokenStride: int64(output.tokenStride), OutputHeadStride: int64(output.headStride),
		SlidingWindow: window, LogitSoftcap: batch.LogitSoftcap, LSE: lse, Sinks: sinks,
		Mask: mask, MaskSlots: slots, RopePositions: streams}
	return c.run(batch.Sequences, exclusive, func(sequences **raw.Sequence, n int32, err *raw.Error) raw.Status {
		to.NSequences, to.Sequences = n, sequences
		return raw.Extend(c.raw, index, &to, err)
	})
}

// run makes a call on sequences of the cache with everything locked.
func (c *Cache) run(sequences []*Sequence, exclusive bool, run func(sequences **raw.Sequence, n int32, err *raw.Error) raw.Status) error {
	if err := c.lock(shared); err != nil {
		return err
	}
	defer c.unlock(shared)
	call := acquire(c.fail)
	err := call.take(sequences, c)
	if err == nil {
		err = call.sequences.lock("Sequences", exclusive)
	}
	if err != nil {
		call.release()
		return err
	}
	return call.end(c.locked(call, exclusive, int32(len(sequences)), run))
}

// locked makes a call on locked sequences and unlocks them, even if a hook ends the goroutine.
func (c *Cache) locked(call *call, exclusive bool, n int32, run func(sequences **raw.Sequence, n int32, err *raw.Error) raw.Status) raw.Status {
	defer call.sequences.unlock(exclusive)
	c.gate.RLock()
	defer c.gate.RUnlock()
	return run(&call.sequences.raw[0], n, &call.err)
}

// Attend attends to the sequence with the queries of its last tokens, dense `[n, QHeads, KeyDim]` before RoPE, so
// append before attending; output is dense `[n, QHeads, ValueDim]`. It allocates nothing in Go. [Cache.Attend] has more
// options.
func (s *Sequence) Attend(layer int, q, output Tensor) error {
	if err := s.requireMemory(false, "Attend"); err != nil {
		return err
	}
	shape, err := s.cache.layer(layer, s)
	if err != nil {
		return err
	}
	n, err := q.rows("q", shape.QHeads, shape.KeyDim, "QHeads x KeyDim")
	if err != nil {
		return err
	}
	if err := output.dense("output", n, shape.QHeads, shape.ValueDim, "rows of q x QHeads x ValueDim"); err != nil {
		return err
	}
	return s.attend(layer, n, q, output)
}

// AttendDevice attends with n queries in device memory, `[n, QHeads, KeyDim]`; the output is `[n, QHeads, ValueDim]`.
func (s *Sequence) AttendDevice(layer, n int, q, output DevicePointer, qDtype, outputDtype Dtype) error {
	if err := s.requireMemory(true, "Attend"); err != nil {
		return err
	}
	return s.attend(layer, n, q.of(qDtype), output.of(outputDtype))
}

func (s *Sequence) attend(layer, n int, q, output Tensor) error {
	var index, queries int32
	evicts := s.cache.info.EvictionBudget > 0
	if err := firstOf(narrow("layer", layer, &index), narrow("n", n, &queries)); err != nil {
		return err
	}
	if err := s.use(evicts); err != nil {
		return err
	}
	defer s.done(evicts)
	c := acquire(s.fail)
	c.count = queries
	batch := raw.AttendBatch{NSequences: 1, Sequences: &s.raw, QueryCounts: &c.count, Q: q.data, QDtype: q.dtype,
		Output: output.data, OutputDtype: output.dtype}
	return c.end(raw.Attend(s.owner, index, &batch, &c.err))
}
