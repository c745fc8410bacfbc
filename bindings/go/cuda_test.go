package kvq_test

import (
	"fmt"
	"os"
	"testing"
	"unsafe"

	"kvq"
)

// needsGPU skips a test where there is no GPU, with the library's reason.
func needsGPU(t *testing.T) {
	t.Helper()
	if info, err := kvq.DescribeDevice(kvq.DeviceCUDA, 0, ""); err != nil {
		t.Skip(err)
	} else if info.Devices < 1 || info.Name == "" || info.ComputeCapability < 10 {
		t.Fatalf("the device says %+v", info)
	}
}

// Memory that the GPU reads as its own comes from the device allocator's hook: without one, host memory is refused and
// no device memory is at hand, so this is as far as a test without CUDA's own headers gets.
func TestHostMemoryIsRefusedOnAGPU(t *testing.T) {
	needsGPU(t)
	m := newModel(t, "int4", &kvq.ContextOptions{Device: kvq.DeviceCUDA}, kvq.NewCacheOptions(1, 1, 1, 64))
	k := kvq.Of(make([]float32, 64))
	one := []*kvq.Sequence{m.sequence}
	requireError(t, m.sequence.Append(0, k, k), kvq.ErrArgument, "host memory", "AppendDevice")
	requireError(t, m.sequence.Attend(0, k, k), kvq.ErrArgument, "AttendDevice")
	requireError(t, m.cache.Append(0, &kvq.AppendBatch{Sequences: one, K: k, V: k}), kvq.ErrArgument, "AppendDevice")
	requireError(t, m.cache.Attend(0, &kvq.AttendBatch{Sequences: one, Q: k, Output: k}), kvq.ErrArgument, "AttendDevice")
	requireError(t, m.cache.Extend(0, &kvq.ExtendBatch{Sequences: one, K: k, V: k, Q: k, Output: k}), kvq.ErrArgument, "ExtendDevice")
	require(t, m.context.SetStream(0))
	if n := must(m.sequence.Length(0))(t); n != 0 {
		t.Fatalf("refused calls appended %d tokens", n)
	}
}

func TestDeviceMemoryIsRefusedOnACPU(t *testing.T) {
	m := newModel(t, "int4", nil, kvq.NewCacheOptions(1, 1, 1, 64))
	numbers := make([]float32, 64)
	p := kvq.DevicePointer(unsafe.Pointer(&numbers[0]))
	one, tensor := []*kvq.Sequence{m.sequence}, kvq.DeviceTensor{Pointer: p}
	requireError(t, m.sequence.AppendDevice(0, 1, p, p, kvq.F32, nil), kvq.ErrArgument, "device memory", "use Append")
	requireError(t, m.sequence.AttendDevice(0, 1, p, p, kvq.F32, kvq.F32), kvq.ErrArgument, "use Attend")
	requireError(t, m.cache.AppendDevice(0, &kvq.DeviceAppendBatch{Sequences: one, K: tensor, V: tensor}), kvq.ErrArgument, "use Append")
	requireError(t, m.cache.AttendDevice(0, &kvq.DeviceAttendBatch{Sequences: one, Q: tensor, Output: tensor}), kvq.ErrArgument, "use Attend")
	requireError(t, m.cache.ExtendDevice(0, &kvq.DeviceExtendBatch{Sequences: one, K: tensor, V: tensor, Q: tensor, Output: tensor}), kvq.ErrArgument, "use Extend")
	matrix := must(m.context.Quantize(background, kvq.Of(numbers), 1, 64, nil))(t)
	defer matrix.Close()
	requireError(t, matrix.LinearDevice(p, 1, p, kvq.F32), kvq.ErrArgument, "use Linear")
	requireError(t, kvq.LinearSharedDevice([]*kvq.Matrix{matrix}, p, 1, []kvq.DevicePointer{p}, kvq.F32), kvq.ErrArgument, "use LinearShared")
	requireError(t, errorOf(kvq.DescribeDevice(kvq.DeviceCPU, 0, "")), kvq.ErrArgument, "device is 0")
	requireError(t, errorOf(kvq.DescribeDevice(kvq.DeviceCUDA, 0, "/nowhere/libkvq_cuda.so")), kvq.ErrUnsupported, "/nowhere/libkvq_cuda.so")
	requireError(t, errorOf(kvq.NewContext(&kvq.ContextOptions{Device: kvq.DeviceCUDA, DeviceFree: func(kvq.DevicePointer, uintptr, uintptr) {}})), kvq.ErrArgument, "DeviceAllocate and DeviceFree")
}

// pretended is the plug-in of tests/plugins/pretend.cpp: a device that computes nothing but calls hooks, for machines
// without a GPU.
func pretended(t *testing.T, o kvq.ContextOptions) *kvq.ContextOptions {
	t.Helper()
	if o.Plugin = os.Getenv("KVQ_TEST_PRETENDED_DEVICE"); o.Plugin == "" {
		t.Skip("KVQ_TEST_PRETENDED_DEVICE names no plug-in")
	}
	o.Device = kvq.DeviceCUDA
	return &o
}

func TestAPretendedDeviceIsDescribedAndAllocatedFor(t *testing.T) {
	var calls []string
	options := pretended(t, kvq.ContextOptions{DeviceIndex: 1, Stream: 0xabc0, Released: func() { calls = append(calls, "released") },
		DeviceAllocate: func(bytes, stream uintptr) kvq.DevicePointer {
			calls = append(calls, fmt.Sprintf("allocate %d %#x", bytes, stream))
			return 0xd0d0
		},
		DeviceFree: func(memory kvq.DevicePointer, bytes, stream uintptr) {
			calls = append(calls, fmt.Sprintf("free %#x %d %#x", uintptr(memory), bytes, stream))
		}})
	if info := must(kvq.DescribeDevice(kvq.DeviceCUDA, 1, options.Plugin))(t); info.Name != "Pretend 1" ||
		info.Devices != 2 || info.ComputeCapability != 12 || info.DriverVersion != 3040 || info.MemoryBytes != 5<<30 {
		t.Fatalf("the device says %+v", info)
	}
	x := must(kvq.NewContext(options))(t)
	if info := must(x.Describe())(t); info.Device != kvq.DeviceCUDA || info.Backend != "pretend" || info.ISA != "pretend_1" {
		t.Fatalf("the context says %+v", info)
	}
	require(t, x.SetStream(0xdef0))
	err := x.SetStream(0)
	requireError(t, err, kvq.ErrBackend, "computes nothing")
	if code := err.(*kvq.Error).BackendCode; code != 77 {
		t.Fatalf("the backend's code is %d", code)
	}
	require(t, x.Close())
	if got, expected := fmt.Sprint(calls), "[allocate 512 0xabc0 free 0xd0d0 512 0xdef0 released]"; got != expected {
		t.Fatalf("the hooks were called as %s, expected %s", got, expected)
	}
	options.DeviceAllocate = func(bytes, stream uintptr) kvq.DevicePointer { panic("no device memory") }
	requirePanic(t, "DeviceAllocate", "no device memory", func() { kvq.NewContext(options) })
	options.DeviceAllocate = func(bytes, stream uintptr) kvq.DevicePointer { return 0 }
	requireError(t, errorOf(kvq.NewContext(options)), kvq.ErrMemory, "512 bytes")
	options.DeviceAllocate = func(bytes, stream uintptr) kvq.DevicePointer { return 0xd0d0 }
	options.DeviceFree = func(kvq.DevicePointer, uintptr, uintptr) { panic("not mine") }
	requirePanic(t, "DeviceFree", "not mine", func() { must(kvq.NewContext(options))(t).Close() })
	options.DeviceIndex = 2
	requireError(t, errorOf(kvq.NewContext(options)), kvq.ErrUnsupported, "no pretend device 2")
}

func TestAPretendedDeviceIsGivenDeviceMemoryOnly(t *testing.T) {
	x := must(kvq.NewContext(pretended(t, kvq.ContextOptions{})))(t)
	defer x.Close()
	requireError(t, errorOf(x.NewCache(kvq.NewCacheOptions(1, 1, 1, 64), nil)), kvq.ErrBackend, "computes nothing")
	matrix := must(x.Quantize(background, kvq.Of(make([]float32, 64)), 1, 64, nil))(t)
	defer matrix.Close()
	tensor, p := kvq.Of(make([]float32, 64)), kvq.DevicePointer(0xd0d0)
	requireError(t, matrix.Linear(tensor, tensor), kvq.ErrArgument, "host memory", "LinearDevice")
	requireError(t, matrix.LinearDevice(p, 1, p+4096, kvq.F32), kvq.ErrUnsupported)
	shared := func(y kvq.DevicePointer) error {
		return kvq.LinearSharedDevice([]*kvq.Matrix{matrix}, p, 1, []kvq.DevicePointer{y}, kvq.F32)
	}
	requireError(t, shared(p), kvq.ErrArgument, "y[0] at 0xd0d0 overlaps x at 0xd0d0")
	requireError(t, shared(p+4096), kvq.ErrUnsupported)
}
