package kvq

import "kvq/raw"

// LayerScales are the scales of one layer's channels, [KVHeads][HeadDim]; nil where centres have none of that side.
type LayerScales struct {
	// Of keys; both channels of a RoPE pair have the same.
	KeyScales []float32

	// Of values.
	ValueScales []float32

	// What is subtracted from values before scaling.
	ValueOffsets []float32
}

// ReadScales: read the scales of one layer, for example to fold them into weights. Scales are in (0, 1]: only their
// ratios within a head mean anything. [ErrState]: the layer is missing.
func (it *Centres) ReadScales(layer int) (*LayerScales, error) {
	info, err := it.Describe()
	if err != nil {
		return nil, err
	}
	var n int32
	if err := narrow("layer", layer, &n); err != nil {
		return nil, err
	}
	if err := it.lock(shared); err != nil {
		return nil, err
	}
	defer it.unlock(shared)
	var scales LayerScales
	var addresses [3]*float32
	room := func(present int, numbers *[]float32, address **float32) {
		if present != 0 {
			*numbers = make([]float32, info.KVHeads*info.HeadDim)
			*address = &(*numbers)[0]
		}
	}
	room(info.KeyScales, &scales.KeyScales, &addresses[0])
	room(info.ValueScales, &scales.ValueScales, &addresses[1])
	room(info.ValueScales, &scales.ValueOffsets, &addresses[2])
	c := acquire(it.fail)
	if err := c.end(raw.CentresReadScales(it.raw, n, addresses[0], addresses[1], addresses[2], &c.err)); err != nil {
		return nil, err
	}
	return &scales, nil
}
