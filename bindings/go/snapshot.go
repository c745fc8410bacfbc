package kvq

import (
	"math"
	"unsafe"

	"kvq/raw"
)

// Recode gives a sequence another policy than its cache's: its pages are written anew in that policy's formats, and later
// tokens are sealed in these too. So a conversation takes less memory from here on. A nil policy is the cache's. Forks made
// before keep their pages. All pages change or none, unless a device fails; see [raw.SequenceRecode].
func (s *Sequence) Recode(policy *Policy) error {
	return s.withPolicy(policy, func(to *raw.Policy, err *raw.Error) raw.Status {
		return raw.SequenceRecode(s.owner, s.raw, to, err)
	})
}

// PutState keeps a copy of the state of a layer after the first tokens tokens, for recurrent layers of hybrid models. Forks
// share it, [Sequence.Save] writes it with the pages, and [Sequence.Truncate] drops those after more tokens: where it drops
// tokens, each layer that has states needs one there, which [Sequence.FindStates] finds. A state of the same layer after as
// many tokens is replaced.
func (s *Sequence) PutState(layer, tokens int, data []byte) error {
	if len(data) == 0 {
		return argument("data is empty")
	}
	var n [2]int32
	if err := firstOf(narrow("layer", layer, &n[0]), narrow("tokens", tokens, &n[1])); err != nil {
		return err
	}
	return s.call(exclusive, func(err *raw.Error) raw.Status {
		return raw.SequencePutState(s.owner, s.raw, n[0], n[1], bytesOf(data), uintptr(len(data)), err)
	})
}

// PredictRecode tells what [Sequence.Recode] takes. With NeededBytes free it succeeds if the host's hooks find the memory.
func (s *Sequence) PredictRecode(policy *Policy) (RecodeInfo, error) {
	it := raw.RecodeInfo{StructSize: uint32(unsafe.Sizeof(raw.RecodeInfo{}))}
	if err := s.withPolicy(policy, func(to *raw.Policy, err *raw.Error) raw.Status {
		return raw.SequencePredictRecode(s.owner, s.raw, to, &it, err)
	}); err != nil {
		return RecodeInfo{}, err
	}
	return recodeInfoFrom(&it), nil
}

// withPolicy runs a call that uses the sequence alone, and a policy unless it is nil.
func (s *Sequence) withPolicy(policy *Policy, by func(to *raw.Policy, err *raw.Error) raw.Status) error {
	var to *raw.Policy
	if policy != nil {
		if err := policy.lock(shared); err != nil {
			return err
		}
		defer policy.unlock(shared)
		to = policy.raw
	}
	return s.call(exclusive, func(err *raw.Error) raw.Status { return by(to, err) })
}

// Save writes a snapshot of sequences of the cache, all different, for [Cache.Load]. Pages that they share, as forks do,
// are written once, and shared again where they are loaded.
func (c *Cache) Save(sequences []*Sequence) ([]byte, error) {
	if len(sequences) == 0 || len(sequences) > math.MaxInt32 {
		return nil, argument("sequences has %d elements, must have 1 to %d", len(sequences), math.MaxInt32)
	}
	var buffer []byte
	err := c.run(sequences, shared, func(pointers **raw.Sequence, n int32, err *raw.Error) raw.Status {
		var size uintptr
		status := raw.CacheSave(c.raw, pointers, n, nil, 0, &size, err)
		if status != raw.OK {
			return status
		}
		buffer = make([]byte, size)
		return raw.CacheSave(c.raw, pointers, n, bytesOf(buffer), size, &size, err)
	})
	if err != nil {
		return nil, err
	}
	return buffer, nil
}

// LoadOptions say how to load a snapshot.
type LoadOptions struct {
	Policy *Policy // of the loaded sequences, as for Sequence.Recode; nil: the cache's
	Recode bool    // write pages in other formats than the policy's anew, instead of failing with ErrMismatch
}

// Load creates all sequences of a snapshot of [Cache.Save] or [Sequence.Save], in their order, or none. Every byte is
// checked. Nil options are those of zero values.
func (c *Cache) Load(snapshot []byte, options *LoadOptions) (loaded []*Sequence, err error) {
	returned := false
	defer func() {
		if !returned { // a hook has panicked, in spite of which there are sequences
			for _, s := range loaded {
				_ = s.destroy()
			}
		}
	}()
	err = c.loading(snapshot, options, func(to *raw.LoadOptions) error {
		info, err := c.contents(snapshot, to)
		if err != nil {
			return err
		}
		made := make([]*raw.Sequence, info.Sequences)
		call := acquire(c.fail)
		status := c.loadAll(snapshot, made, to, &call.err)
		if status == raw.OK {
			loaded = make([]*Sequence, len(made))
			for i, it := range made {
				loaded[i] = &Sequence{cache: c, owner: raw.SequenceCache(it)}
				loaded[i].own(it, c.endSequence, c.fail)
			}
		}
		return call.end(status)
	})
	returned = true
	return loaded, err
}

func (c *Cache) loadAll(snapshot []byte, made []*raw.Sequence, options *raw.LoadOptions, err *raw.Error) raw.Status {
	c.gate.RLock()
	defer c.gate.RUnlock()
	return raw.CacheLoad(c.raw, bytesOf(snapshot), uintptr(len(snapshot)), first(made), int32(len(made)), options, err)
}

// DescribeSnapshot tells what a snapshot holds, and what [Cache.Load] takes with the same arguments.
func (c *Cache) DescribeSnapshot(snapshot []byte, options *LoadOptions) (info SnapshotInfo, err error) {
	err = c.loading(snapshot, options, func(to *raw.LoadOptions) (err error) {
		info, err = c.contents(snapshot, to)
		return err
	})
	return info, err
}

func (c *Cache) contents(snapshot []byte, options *raw.LoadOptions) (SnapshotInfo, error) {
	return told(c.fail, func(it *raw.SnapshotInfo, err *raw.Error) raw.Status {
		return raw.SnapshotDescribe(c.raw, bytesOf(snapshot), uintptr(len(snapshot)), options, it, err)
	}, snapshotInfoFrom)
}

// loading runs calls that read a snapshot with the cache and the options' policy locked.
func (c *Cache) loading(snapshot []byte, options *LoadOptions, by func(options *raw.LoadOptions) error) error {
	if len(snapshot) == 0 {
		return argument("snapshot is empty")
	}
	var to raw.LoadOptions
	raw.LoadOptionsInit(&to)
	if options != nil {
		if options.Recode {
			to.Recode = 1
		}
		if policy := options.Policy; policy != nil {
			if err := policy.lock(shared); err != nil {
				return err
			}
			defer policy.unlock(shared)
			to.Policy = policy.raw
		}
	}
	if err := c.lock(shared); err != nil {
		return err
	}
	defer c.unlock(shared)
	return by(&to)
}
