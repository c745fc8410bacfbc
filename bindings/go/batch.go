package kvq

import (
	"math"
	"unsafe"

	"kvq/raw"
)

// AppendBatch holds tokens for one layer of several sequences. Rows of K and V (one per token) are ordered by sequence.
type AppendBatch struct {
	Sequences   []*Sequence // sequences of one cache, all different
	TokenCounts []int32     // tokens per sequence, at least 1; nil: one each
	Positions   []int32     // positions of all tokens; nil: consecutive in each sequence
	K, V        Tensor      // `[tokens, KVHeads, HeadDim]` of the same type, dense or strided
}

// DeviceAppendBatch is an [AppendBatch] whose keys and values are in device memory.
type DeviceAppendBatch struct {
	Sequences              []*Sequence
	TokenCounts, Positions []int32
	K, V                   DeviceTensor
}

// AttendBatch holds queries of one or more sequences, and where their results go.
type AttendBatch struct {
	Sequences      []*Sequence // sequences of one cache; one may occur repeatedly
	QueryCounts    []int32     // queries per sequence, at least 1; nil: one each
	QueryPositions []int32     // positions of all queries; nil: the last tokens of each sequence
	Q, Output      Tensor      // `[queries, QHeads, HeadDim]` before RoPE, of any types, dense or strided; may not overlap
	SlidingWindow  int         // a query at position p sees positions > p - SlidingWindow; 0: all
	LogitSoftcap   float32     // cap·tanh(logit / cap); 0: none
	LSE            []float32   // receives `[queries, QHeads]` log-sum-exps of the logits; nil: skip
	Sinks          []float32   // `[QHeads]` logits added only to the softmax denominator; nil: none
}

// DeviceAttendBatch is an [AttendBatch] whose tensors are in device memory.
type DeviceAttendBatch struct {
	Sequences                   []*Sequence
	QueryCounts, QueryPositions []int32
	Q, Output                   DeviceTensor
	SlidingWindow               int
	LogitSoftcap                float32
	LSE, Sinks                  DevicePointer // float32; 0: none
}

// total returns the number of rows of a batch.
func total(sequences []*Sequence, name string, counts []int32) (int, error) {
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

// take collects the sequences of a batch without locking them.
func (c *call) take(sequences []*Sequence, cache *Cache) error {
	for i, s := range sequences {
		if s == nil || s.cache == nil {
			c.sequences.forget()
			return argument("Sequences[%d] is nil", i)
		}
		if s.cache != cache {
			c.sequences.forget()
			return argument("Sequences[%d] belongs to another cache", i)
		}
		c.sequences.given = append(c.sequences.given, &s.handle)
	}
	return nil
}

// Append appends tokens to one layer of several sequences: to all of them or to none.
func (c *Cache) Append(layer int, batch *AppendBatch) error {
	if c.context == nil || batch == nil {
		return closedOr(c.context == nil, "batch is nil")
	}
	if err := requireMemory(c.context.device, false, "Append"); err != nil {
		return err
	}
	n, err := total(batch.Sequences, "TokenCounts", batch.TokenCounts)
	if err != nil {
		return err
	}
	k, v := batch.K, batch.V
	if err := k.holds("K", n, c.info.KVHeads, c.info.HeadDim); err != nil {
		return err
	}
	if err := v.holds("V", n, c.info.KVHeads, c.info.HeadDim); err != nil {
		return err
	}
	if v.dtype != k.dtype {
		return argument("V is of %s, must be of the type of K: %s", v.dtype, k.dtype)
	}
	return c.append(layer, n, batch.Sequences, batch.Positions, raw.AppendBatch{
		TokenCounts: first(batch.TokenCounts), K: k.data, V: v.data, Dtype: k.dtype,
		KTokenStride: int64(k.tokenStride), KHeadStride: int64(k.headStride),
		VTokenStride: int64(v.tokenStride), VHeadStride: int64(v.headStride)})
}

// AppendDevice appends from device memory; it does not check sizes.
func (c *Cache) AppendDevice(layer int, batch *DeviceAppendBatch) error {
	if c.context == nil || batch == nil {
		return closedOr(c.context == nil, "batch is nil")
	}
	if err := requireMemory(c.context.device, true, "Append"); err != nil {
		return err
	}
	n, err := total(batch.Sequences, "TokenCounts", batch.TokenCounts)
	if err != nil {
		return err
	}
	k, v := batch.K, batch.V
	if v.Dtype != k.Dtype {
		return argument("V is of %s, must be of the type of K: %s", v.Dtype, k.Dtype)
	}
	return c.append(layer, n, batch.Sequences, batch.Positions, raw.AppendBatch{
		TokenCounts: first(batch.TokenCounts), K: foreign(uintptr(k.Pointer)), V: foreign(uintptr(v.Pointer)),
		Dtype: k.Dtype, KTokenStride: int64(k.TokenStride), KHeadStride: int64(k.HeadStride),
		VTokenStride: int64(v.TokenStride), VHeadStride: int64(v.HeadStride)})
}

func (c *Cache) append(layer, n int, sequences []*Sequence, positions []int32, to raw.AppendBatch) error {
	index, err := narrow("layer", layer)
	if err != nil {
		return err
	}
	if positions != nil {
		if err := slice("Positions", len(positions), n); err != nil {
			return err
		}
	}
	return c.run(sequences, exclusive, func(sequences **raw.Sequence, n int32, err *raw.Error) raw.Status {
		to.NSequences, to.Sequences, to.Positions = n, sequences, first(positions)
		return raw.AppendSequences(c.raw, index, &to, err)
	})
}

// Attend computes attention of a batch of queries over one layer: softmax(Scale · q·kᵀ) v. It runs concurrently with
// other calls; only if the policy evicts it needs exclusive use of its sequences.
func (c *Cache) Attend(layer int, batch *AttendBatch) error {
	if c.context == nil || batch == nil {
		return closedOr(c.context == nil, "batch is nil")
	}
	if err := requireMemory(c.context.device, false, "Attend"); err != nil {
		return err
	}
	n, err := total(batch.Sequences, "QueryCounts", batch.QueryCounts)
	if err != nil {
		return err
	}
	q, output, info := batch.Q, batch.Output, &c.info
	if err := q.holds("Q", n, info.QHeads, info.HeadDim); err != nil {
		return err
	}
	if err := output.holds("Output", n, info.QHeads, info.HeadDim); err != nil {
		return err
	}
	if batch.LSE != nil {
		if err := slice("LSE", len(batch.LSE), n*info.QHeads); err != nil {
			return err
		}
	}
	if batch.Sinks != nil {
		if err := slice("Sinks", len(batch.Sinks), info.QHeads); err != nil {
			return err
		}
	}
	return c.attend(layer, n, batch.Sequences, batch.QueryPositions, batch.SlidingWindow, raw.AttendBatch{
		QueryCounts: first(batch.QueryCounts), Q: q.data, Output: output.data, QDtype: q.dtype,
		OutputDtype: output.dtype, LogitSoftcap: batch.LogitSoftcap,
		QTokenStride: int64(q.tokenStride), QHeadStride: int64(q.headStride),
		OutputTokenStride: int64(output.tokenStride), OutputHeadStride: int64(output.headStride),
		LSE: first(batch.LSE), Sinks: first(batch.Sinks)})
}

// AttendDevice attends in device memory; it does not check sizes.
func (c *Cache) AttendDevice(layer int, batch *DeviceAttendBatch) error {
	if c.context == nil || batch == nil {
		return closedOr(c.context == nil, "batch is nil")
	}
	if err := requireMemory(c.context.device, true, "Attend"); err != nil {
		return err
	}
	n, err := total(batch.Sequences, "QueryCounts", batch.QueryCounts)
	if err != nil {
		return err
	}
	q, output := batch.Q, batch.Output
	return c.attend(layer, n, batch.Sequences, batch.QueryPositions, batch.SlidingWindow, raw.AttendBatch{
		QueryCounts: first(batch.QueryCounts), Q: foreign(uintptr(q.Pointer)), Output: foreign(uintptr(output.Pointer)),
		QDtype: q.Dtype, OutputDtype: output.Dtype, LogitSoftcap: batch.LogitSoftcap,
		QTokenStride: int64(q.TokenStride), QHeadStride: int64(q.HeadStride),
		OutputTokenStride: int64(output.TokenStride), OutputHeadStride: int64(output.HeadStride),
		LSE: (*float32)(foreign(uintptr(batch.LSE))), Sinks: (*float32)(foreign(uintptr(batch.Sinks)))})
}

func (c *Cache) attend(layer, n int, sequences []*Sequence, positions []int32, window int, to raw.AttendBatch) error {
	index, err := narrow("layer", layer)
	if err != nil {
		return err
	}
	if to.SlidingWindow, err = narrow("SlidingWindow", window); err != nil {
		return err
	}
	if positions != nil {
		if err := slice("QueryPositions", len(positions), n); err != nil {
			return err
		}
	}
	evicts := c.info.EvictionBudget > 0 // attention records observations
	return c.run(sequences, evicts, func(sequences **raw.Sequence, n int32, err *raw.Error) raw.Status {
		to.NSequences, to.Sequences, to.QueryPositions = n, sequences, first(positions)
		return raw.Attend(c.raw, index, &to, err)
	})
}

// run makes a call on sequences of the cache with everything locked.
func (c *Cache) run(sequences []*Sequence, exclusive bool, run func(sequences **raw.Sequence, n int32, err *raw.Error) raw.Status) error {
	if err := c.lock(shared); err != nil {
		return err
	}
	defer c.unlock(shared)
	call := acquire()
	if err := call.take(sequences, c); err != nil {
		calls.Put(call)
		return err
	}
	if err := call.sequences.lock("Sequences", exclusive); err != nil {
		calls.Put(call)
		return err
	}
	c.gate.RLock()
	status := run(&call.sequences.raw[0], int32(len(sequences)), &call.err)
	c.gate.RUnlock()
	call.sequences.unlock(exclusive)
	return call.end(status, c.fail)
}

// Attend attends to the sequence with the queries of its last tokens, dense `[n, QHeads, HeadDim]` before RoPE, so
// append before attending; output has the same shape. It allocates nothing in Go. [Cache.Attend] has more options.
func (s *Sequence) Attend(layer int, q, output Tensor) error {
	if s.cache == nil {
		return ErrClosed
	}
	info := &s.cache.info
	if err := requireMemory(s.cache.context.device, false, "Attend"); err != nil {
		return err
	}
	n, err := q.rows("q", info.QHeads, info.HeadDim, "QHeads x HeadDim")
	if err != nil {
		return err
	}
	if output.isStrided() || output.length != q.length {
		return argument("output has %d elements, must be dense and have as many as q: %d", output.length, q.length)
	}
	return s.attend(layer, n, q.data, output.data, q.dtype, output.dtype)
}

// AttendDevice attends with n queries in device memory, `[n, QHeads, HeadDim]` like the output.
func (s *Sequence) AttendDevice(layer, n int, q, output DevicePointer, qDtype, outputDtype Dtype) error {
	if s.cache == nil {
		return ErrClosed
	}
	if err := requireMemory(s.cache.context.device, true, "Attend"); err != nil {
		return err
	}
	return s.attend(layer, n, foreign(uintptr(q)), foreign(uintptr(output)), qDtype, outputDtype)
}

func (s *Sequence) attend(layer, n int, q, output unsafe.Pointer, qDtype, outputDtype Dtype) error {
	index, err := narrow("layer", layer)
	if err != nil {
		return err
	}
	queries, err := narrow("n", n)
	if err != nil {
		return err
	}
	evicts := s.cache.info.EvictionBudget > 0
	if err := s.use(evicts); err != nil {
		return err
	}
	defer s.done(evicts)
	c := acquire()
	c.count = queries
	batch := raw.AttendBatch{NSequences: 1, Sequences: &s.raw, QueryCounts: &c.count, Q: q, QDtype: qDtype,
		OutputDtype: outputDtype, Output: output}
	return c.end(raw.Attend(s.owner, index, &batch, &c.err), s.fail)
}

func closedOr(closed bool, otherwise string) error {
	if closed {
		return ErrClosed
	}
	return argument("%s", otherwise)
}
