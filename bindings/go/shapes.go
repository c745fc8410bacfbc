package kvq

import (
	"fmt"
	"unsafe"

	"kvq/raw"
)

// LayerShape is the shape of a range of layers that differ from the cache's others, such as those with larger heads or
// without RoPE, or without keys and values of their own. Caches with such layers take no trained objects but scales, and
// these where only frequencies, scale and soft cap differ; those with other heads do not evict.
type LayerShape struct {
	FirstLayer int // ranges may not overlap
	Layers     int // layers of the range; 0: 1

	QHeads, KVHeads int // 0, here and below: the cache's
	KeyDim          int // channels of a key and of a query, a multiple of 8, 8 to 576
	ValueDim        int // channels of a value and of an output, a multiple of 8, 8 to 512

	// Values are the first ValueDim channels of the keys, of which there are more, as in latent attention (MLA), and are
	// stored once. Appending takes no values; of the keys, only the channels behind them may be rotated.
	ValuesAreKeyPrefix bool

	Rope        *Rope     // nil: the cache's
	RotaryBegin int       // first channel that is rotated; 0: the first one, or ValueDim with ValuesAreKeyPrefix
	RotaryDim   int       // channels that are rotated; 0: the cache's, if it has one, else all from RotaryBegin on
	RopeBase    float32   // 0: the cache's, with its InvFreq; ignored if InvFreq is given
	InvFreq     []float32 // radians per position of each pair of channels; nil: those of RopeBase

	Scale        float32 // factor applied to q·k; 0: the cache's, or 1 / sqrt(KeyDim) if that is 0
	LogitSoftcap float32 // of calls whose own is 0

	// The earlier layer whose pages these layers read, as models with shared KV layers do (Gemma 3n, Gemma 4); nil: their
	// own. They hold no tokens: append to that layer, then attend to these. Their KV heads, channels and RoPE are that
	// layer's, their query heads, scale and soft cap their own.
	PagesOfLayer *int

	// The layers keep no keys and values, as recurrent and linear-attention layers of hybrid models: they take no memory
	// and no tokens, and sequences may carry their states, see [Sequence.PutState]. They have no other fields.
	Recurrent bool

	SlidingWindow  int // as in [CacheOptions]; 0: the cache's, -1: none
	AttentionChunk int // as in [CacheOptions]; 0: the cache's, -1: none
}

// fill sets the shape of C, except the frequencies.
func (s *LayerShape) fill(to *raw.LayerShape) error {
	raw.LayerShapeInit(to)
	if s.Rope != nil {
		to.Rope = *s.Rope
	}
	to.RopeBase, to.Scale, to.LogitSoftcap = s.RopeBase, s.Scale, s.LogitSoftcap
	if s.ValuesAreKeyPrefix {
		to.ValuesAreKeyPrefix = 1
	}
	if s.Recurrent {
		to.Recurrent = 1
	}
	layers := s.Layers
	if layers == 0 {
		layers = 1
	}
	if s.PagesOfLayer != nil {
		if err := narrow("PagesOfLayer", *s.PagesOfLayer, &to.PagesOfLayer); err != nil {
			return err
		}
	}
	return firstOf(narrow("FirstLayer", s.FirstLayer, &to.FirstLayer), narrow("Layers", layers, &to.NLayers),
		narrow("QHeads", s.QHeads, &to.QHeads), narrow("KVHeads", s.KVHeads, &to.KVHeads),
		narrow("KeyDim", s.KeyDim, &to.KeyDim), narrow("ValueDim", s.ValueDim, &to.ValueDim),
		narrow("RotaryBegin", s.RotaryBegin, &to.RotaryBegin), narrow("RotaryDim", s.RotaryDim, &to.RotaryDim),
		narrow("SlidingWindow", s.SlidingWindow, &to.SlidingWindow),
		narrow("AttentionChunk", s.AttentionChunk, &to.AttentionChunk))
}

// pairs returns the number of frequencies that the shape's layers have.
func (s *LayerShape) pairs(o *CacheOptions) int {
	begin := s.RotaryBegin
	if s.ValuesAreKeyPrefix {
		begin = either(begin, either(s.ValueDim, o.HeadDim))
	}
	rotated := either(either(s.RotaryDim, o.RotaryDim), either(s.KeyDim, o.HeadDim)-begin)
	if rotated < 0 { // which the library refuses
		return 0
	}
	return rotated / 2
}

// either returns a number that is given, or else the usual one.
func either(given, usual int) int {
	if given != 0 {
		return given
	}
	return usual
}

// place sets the shapes of C in memory of C's, which the caller frees: they point to frequencies, and cgo passes no
// memory of Go's with pointers to other memory of Go's.
func (o *CacheOptions) place(to *raw.CacheOptions) (unsafe.Pointer, error) {
	if len(o.Shapes) == 0 {
		return nil, nil
	}
	if err := narrow("the length of Shapes", len(o.Shapes), &to.NShapes); err != nil {
		return nil, err
	}
	filled, frequencies := make([]raw.LayerShape, len(o.Shapes)), 0
	for i := range o.Shapes {
		shape := &o.Shapes[i]
		err := shape.fill(&filled[i])
		if err == nil {
			err = optionalSlice("InvFreq", shape.InvFreq, shape.pairs(o))
		}
		if err != nil {
			return nil, fmt.Errorf("Shapes[%d]: %w", i, err)
		}
		frequencies += len(shape.InvFreq)
	}
	size := uintptr(len(filled)) * unsafe.Sizeof(filled[0])
	memory := raw.Allocate(size + uintptr(frequencies)*unsafe.Sizeof(float32(0)))
	if memory == nil {
		return nil, &Error{Status: ErrMemory, Message: "no memory for Shapes"}
	}
	to.Shapes = (*raw.LayerShape)(memory)
	left := unsafe.Slice((*float32)(unsafe.Add(memory, size)), frequencies)
	for i := range filled {
		if n := copy(left, o.Shapes[i].InvFreq); n > 0 {
			filled[i].InvFreq = &left[0]
			left = left[n:]
		}
	}
	copy(unsafe.Slice(to.Shapes, len(filled)), filled)
	return memory, nil
}
