package kvq

import (
	"math"

	"kvq/raw"
)

// Step is appends to all layers of some sequences, begun by [Cache.BeginStep]: Commit keeps them, Abort takes them back.
// One goroutine at a time may use it, and its sequences until it ends. The cache must stay open until then.
type Step struct {
	cache     *Cache
	sequences []*Sequence
	active    bool
}

// BeginStep begins a step of sequences of the cache, all different, to each of whose layers at most counts[i] tokens are
// appended; no counts: one each. It preallocates what the tokens, their queries and the calls can need in all layers, or
// fails with nothing changed. Inside, the sequences take appends, extensions, attention and calls that only read; others,
// such as [Sequence.Truncate], [Sequence.Fork] and [Sequence.Recode], fail with [ErrState]. Defer [Step.Abort]: after a
// commit it does nothing.
func (c *Cache) BeginStep(sequences []*Sequence, counts ...int32) (*Step, error) {
	if len(sequences) == 0 || len(sequences) > math.MaxInt32 {
		return nil, argument("sequences has %d elements, must have 1 to %d", len(sequences), math.MaxInt32)
	}
	s := &Step{cache: c, sequences: append([]*Sequence(nil), sequences...)}
	returned := false
	defer func() {
		if !returned { // a hook has panicked, in spite of which the step has begun
			_ = s.Abort()
		}
	}()
	err := s.run(s.sequences, counts, nil, true, raw.StepBegin)
	returned = true
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Commit keeps the first counts[i] tokens of each sequence, from 0 on, and ends the step; no counts: all, of which layers
// must have received as many. If it fails, the step goes on.
func (s *Step) Commit(counts ...int32) error {
	if !s.active {
		return &Error{Status: ErrState, Message: "the step has ended"}
	}
	return s.run(s.sequences, counts, nil, false, raw.StepCommit)
}

// CommitKept keeps the tokens kept[i] of sequence i, counted from 0 in the order of appending and ascending, such as a path
// of a draft tree, and ends the step. The sequences are then as if only these had been appended. If it fails, the step
// goes on.
func (s *Step) CommitKept(kept ...[]int32) error {
	if !s.active {
		return &Error{Status: ErrState, Message: "the step has ended"}
	}
	counts, slots := make([]int32, len(kept)), make([]int32, 0, 1)
	for i, each := range kept {
		counts[i] = int32(len(each))
		slots = append(slots, each...)
	}
	return s.run(s.sequences, counts, append(slots, 0), false, raw.StepCommit) // an address also if none is kept
}

// Abort takes all tokens back and ends the step. It does nothing if the step has ended, and passes over sequences that have
// been closed.
func (s *Step) Abort() error {
	if !s.active {
		return nil
	}
	var open []*Sequence
	for _, it := range s.sequences {
		if it.lock(shared) == nil {
			it.unlock(shared)
			open = append(open, it)
		}
	}
	if len(open) == 0 {
		s.active = false
		return nil
	}
	return s.run(open, nil, nil, false, raw.StepAbort)
}

// run makes a call on these sequences, after which the step is active or not.
func (s *Step) run(sequences []*Sequence, counts, kept []int32, active bool,
	by func(cache *raw.Cache, batch *raw.StepBatch, err *raw.Error) raw.Status) error {
	if len(counts) > 0 {
		if err := slice("counts", len(counts), len(sequences)); err != nil {
			return err
		}
	}
	batch := raw.StepBatch{TokenCounts: first(counts), KeptSlots: first(kept)}
	return s.cache.run(sequences, exclusive, func(pointers **raw.Sequence, n int32, err *raw.Error) raw.Status {
		batch.NSequences, batch.Sequences = n, pointers
		status := by(s.cache.raw, &batch, err)
		if status == raw.OK {
			s.active = active
		}
		return status
	})
}
