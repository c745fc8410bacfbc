package kvq

import (
	"unsafe"

	"kvq/raw"
)

// Centres are the trained centres of the keys and values of one model, for the gain-shape formats. They are immutable;
// caches share them.
type Centres struct{ handle[raw.Centres] }

// LoadCentres reads centres from a file in memory. Every byte is checked.
func (x *Context) LoadCentres(file []byte) (*Centres, error) {
	if len(file) == 0 {
		return nil, argument("file is empty")
	}
	if err := x.lock(shared); err != nil {
		return nil, err
	}
	defer x.unlock(shared)
	it := new(Centres)
	var made *raw.Centres
	c := acquire()
	status := raw.CentresLoad(x.raw, bytesOf(file), uintptr(len(file)), &made, &c.err)
	return created(it, &it.handle, made, raw.CentresDestroy, c, status, x.fail)
}

// Save writes the centres as a file. The same centres give the same bytes.
func (c *Centres) Save() ([]byte, error) {
	if err := c.lock(shared); err != nil {
		return nil, err
	}
	defer c.unlock(shared)
	return saved(c.fail, func(buffer unsafe.Pointer, capacity uintptr, size *uintptr, err *raw.Error) raw.Status {
		return raw.CentresSave(c.raw, buffer, capacity, size, err)
	})
}

// Describe returns the shape and quality of the centres.
func (c *Centres) Describe() (CentresInfo, error) {
	return described(&c.handle, func(it *raw.CentresInfo, err *raw.Error) raw.Status {
		return raw.CentresDescribe(c.raw, it, err)
	}, centresInfoFrom)
}

// DescribeLayer describes one layer.
func (c *Centres) DescribeLayer(layer int) (CentresLayerInfo, error) {
	n, err := narrow("layer", layer)
	if err != nil {
		return CentresLayerInfo{}, err
	}
	return described(&c.handle, func(it *raw.CentresLayerInfo, err *raw.Error) raw.Status {
		return raw.CentresDescribeLayer(c.raw, n, it, err)
	}, centresLayerInfoFrom)
}
