package kvq

import (
	"unsafe"

	"kvq/raw"
)

// Codebook is a set of CommVQ codebooks for the layers of one model. It is immutable; caches share it.
type Codebook struct{ handle[raw.Codebook] }

// LoadCodebook reads codebooks from a file in memory. Every byte is checked.
func (x *Context) LoadCodebook(file []byte) (*Codebook, error) {
	if len(file) == 0 {
		return nil, argument("file is empty")
	}
	if err := x.lock(shared); err != nil {
		return nil, err
	}
	defer x.unlock(shared)
	it := new(Codebook)
	var made *raw.Codebook
	c := acquire()
	status := raw.CodebookLoad(x.raw, bytesOf(file), uintptr(len(file)), &made, &c.err)
	return created(it, &it.handle, made, raw.CodebookDestroy, c, status, x.fail)
}

// Save writes the codebooks as a file. The same codebooks give the same bytes.
func (b *Codebook) Save() ([]byte, error) {
	if err := b.lock(shared); err != nil {
		return nil, err
	}
	defer b.unlock(shared)
	return saved(b.fail, func(buffer unsafe.Pointer, capacity uintptr, size *uintptr, err *raw.Error) raw.Status {
		return raw.CodebookSave(b.raw, buffer, capacity, size, err)
	})
}

// Describe returns the shape and quality of the codebooks.
func (b *Codebook) Describe() (CodebookInfo, error) {
	return described(&b.handle, func(it *raw.CodebookInfo, err *raw.Error) raw.Status {
		return raw.CodebookDescribe(b.raw, it, err)
	}, codebookInfoFrom)
}

// DescribeLayer describes one layer.
func (b *Codebook) DescribeLayer(layer int) (CodebookLayerInfo, error) {
	n, err := narrow("layer", layer)
	if err != nil {
		return CodebookLayerInfo{}, err
	}
	return described(&b.handle, func(it *raw.CodebookLayerInfo, err *raw.Error) raw.Status {
		return raw.CodebookDescribeLayer(b.raw, n, it, err)
	}, codebookLayerInfoFrom)
}
