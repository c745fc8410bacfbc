package kvq

import (
	"math/bits"
	"unsafe"
)

// Float16 is an IEEE 754 binary16 number.
type Float16 uint16

// BFloat16 is the upper half of a float32.
type BFloat16 uint16

// Element is the element type of a tensor.
type Element interface {
	float32 | Float16 | BFloat16
}

// Tensor is a slice in host memory with its element type; [Of] creates one.
type Tensor struct {
	data                    unsafe.Pointer
	length                  int
	dtype                   Dtype
	tokenStride, headStride int
	onDevice                bool // the length is not known
}

// Of returns a dense row-major tensor on the elements of a slice, which are not copied.
func Of[T Element](elements []T) Tensor {
	return Tensor{data: unsafe.Pointer(first(elements)), length: len(elements), dtype: dtypeOf[T]()}
}

func dtypeOf[T Element]() Dtype {
	switch any(*new(T)).(type) {
	case Float16:
		return F16
	case BFloat16:
		return BF16
	}
	return F32
}

// Strided returns the tensor with other strides, in elements, from a token to the next and from a head to the next; 0
// is dense. The channels of a head are always contiguous. Batches take strided tensors.
func (t Tensor) Strided(token, head int) Tensor {
	t.tokenStride, t.headStride = token, head
	return t
}

func (t Tensor) isStrided() bool { return t.tokenStride != 0 || t.headStride != 0 }

// rows returns the number of rows of a dense tensor with rows of the given size.
func (t Tensor) rows(name string, heads, channels int, shape string) (int, error) {
	row := heads * channels
	switch {
	case t.isStrided():
		return 0, argument("%s has strides (%d, %d), which only batches take", name, t.tokenStride, t.headStride)
	case t.length == 0:
		return 0, argument("%s has 0 elements, must have at least one row of %d (%s)", name, row, shape)
	case t.length%row != 0:
		return 0, argument("%s has %d elements, must be a multiple of %d (%s)", name, t.length, row, shape)
	}
	return t.length / row, nil
}

// dense checks that a tensor is dense and has exactly as many rows.
func (t Tensor) dense(name string, rows, heads, channels int, shape string) error {
	if needed := rows * heads * channels; t.isStrided() || t.length != needed {
		return argument("%s has %d elements, must be dense and have %d (%s)", name, t.length, needed, shape)
	}
	return nil
}

// holds checks that a tensor has the elements that a call reads: exactly as many if it is dense.
func (t Tensor) holds(name string, rows, heads, channels int) error {
	if t.onDevice {
		if t.data == nil {
			return argument("%s is 0, must be an address in device memory", name)
		}
		return nil
	}
	if !t.isStrided() {
		high, needed := bits.Mul64(uint64(rows), uint64(heads*channels))
		if high != 0 || uint64(t.length) != needed {
			return argument("%s has %d elements, must have %d: %d x %d x %d", name, t.length, needed, rows, heads, channels)
		}
		return nil
	}
	if t.tokenStride < 0 || t.headStride < 0 {
		return argument("%s has strides (%d, %d), must not be negative", name, t.tokenStride, t.headStride)
	}
	token, head := t.tokenStride, t.headStride
	if token == 0 {
		token = heads * channels
	}
	if head == 0 {
		head = channels
	}
	left := t.length - channels
	if left >= 0 && rows > 1 {
		if token > left/(rows-1) {
			left = -1
		} else {
			left -= token * (rows - 1)
		}
	}
	if left < 0 || heads > 1 && head > left/(heads-1) {
		return argument("%s has %d elements, too few for %d rows of %d heads of %d by strides (%d, %d)", name, t.length,
			rows, heads, channels, token, head)
	}
	return nil
}

// absent checks that no tensor is given.
func (t Tensor) absent(name string) error {
	if t.data != nil {
		return argument("%s is given, must be absent: the layer's values are a prefix of its keys", name)
	}
	return nil
}

// like checks that a tensor has the type of another one.
func (t Tensor) like(name string, other Tensor, otherName string) error {
	if t.dtype != other.dtype {
		return argument("%s is of %s, must be of the type of %s: %s", name, t.dtype, otherName, other.dtype)
	}
	return nil
}

func slice(name string, length, needed int) error {
	if length != needed {
		return argument("%s has %d elements, must have %d", name, length, needed)
	}
	return nil
}

// optionalSlice checks the length of a slice that may be nil.
func optionalSlice[T any](name string, s []T, needed int) error {
	if s == nil {
		return nil
	}
	return slice(name, len(s), needed)
}

// DevicePointer is an address in device memory, such as a CUdeviceptr; 0 is none.
type DevicePointer uintptr

// DeviceTensor is a tensor in device memory. Its size cannot be checked.
type DeviceTensor struct {
	Pointer                 DevicePointer
	Dtype                   Dtype
	TokenStride, HeadStride int // as in Tensor.Strided
}

func (p DevicePointer) of(dtype Dtype) Tensor {
	return Tensor{data: foreign(uintptr(p)), dtype: dtype, onDevice: true}
}

func (t DeviceTensor) tensor() Tensor {
	return t.Pointer.of(t.Dtype).Strided(t.TokenStride, t.HeadStride)
}
