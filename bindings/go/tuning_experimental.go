//go:build kvq_experimental

package kvq

import (
	"unsafe"

	"kvq/raw"
)

// Tune measures which of a GPU's kernels are the fastest for calls of LinearShared with matrices of these schemes and
// shapes and exactly so many rows, instead of going by an estimate; see [raw.Tune]. The last bits of results may change,
// now and from one measurement to the next: keep it with SaveTuning where they are to stay the same.
//
// Experimental: may change in a minor version.
func Tune(matrices []*Matrix, batch int) error {
	if _, err := requireMatrices(matrices); err != nil {
		return err
	}
	n, err := narrow("batch", batch)
	if err != nil {
		return err
	}
	return withMatrices(matrices, func(list **raw.Matrix, err *raw.Error) raw.Status {
		return raw.Tune(list, int32(len(matrices)), n, err)
	})
}

// SaveTuning writes what Tune measured and LoadTuning read: a line for each device, scheme and shape.
//
// Experimental: may change in a minor version.
func (x *Context) SaveTuning() (string, error) {
	if err := x.lock(shared); err != nil {
		return "", err
	}
	defer x.unlock(shared)
	text, err := saved(x.fail, func(buffer unsafe.Pointer, capacity uintptr, size *uintptr, err *raw.Error) raw.Status {
		return raw.TuningSave(x.raw, (*byte)(buffer), capacity, size, err)
	})
	return string(text), err
}

// LoadTuning goes by what was measured before. What another device or version measured is kept for SaveTuning and not
// used.
//
// Experimental: may change in a minor version.
func (x *Context) LoadTuning(text string) error {
	if err := x.lock(shared); err != nil {
		return err
	}
	defer x.unlock(shared)
	bytes := []byte(text + "\x00") // one more, so that there is a first
	c := acquire()
	return c.end(raw.TuningLoad(x.raw, &bytes[0], uintptr(len(text)), &c.err), x.fail)
}
