package kvq

import (
	"unsafe"

	"kvq/raw"
)

// Context holds memory, threads, limits and a device, shared by any number of caches.
type Context struct {
	handle[raw.Context]
	device Device
}

// ContextOptions are the options of a context: device, threads, limits and hooks. The zero value is one CPU thread
// without limits.
type ContextOptions struct {
	Device   Device
	Threads  int    // per call, including the caller's; 0 means 1, which starts none
	MaxBytes uint64 // limit on all memory allocated through the context; 0: none
	CPUISA   string // one of CPUISAs; "": the best that this machine supports

	// Allocate returns bytes aligned to alignment, or nil, and Free frees them: set both or neither. The memory must be
	// C memory, never Go memory. Called from any thread, several at once.
	Allocate func(bytes, alignment uintptr) unsafe.Pointer
	Free     func(memory unsafe.Pointer, bytes, alignment uintptr)

	// Log receives one message. Called from any thread, several at once.
	Log func(level LogLevel, message string)

	// ParallelFor calls body for 0 to n-1 in any order from any goroutines, and returns when all calls are done.
	// Threads is then ignored.
	ParallelFor func(n int, body func(i int))

	// Released is the last call of the context's hooks, made when the last object made from the context is closed or
	// collected.
	Released func()

	// For DeviceCUDA: the GPU, the path of libkvq_cuda.so if it is not next to the library, the cudaStream_t that work
	// is enqueued on, and a stream-ordered allocator.
	DeviceIndex    int
	Plugin         string
	Stream         uintptr
	DeviceAllocate func(bytes, stream uintptr) DevicePointer
	DeviceFree     func(memory DevicePointer, bytes, stream uintptr)
}

// NewContext creates a context; nil options mean the zero value.
func NewContext(options *ContextOptions) (*Context, error) {
	if err := checkVersion(); err != nil {
		return nil, err
	}
	if options == nil {
		options = new(ContextOptions)
	}
	o := *options
	var to raw.ContextOptions
	raw.ContextOptionsInit(&to)
	if err := o.fill(&to); err != nil {
		return nil, err
	}
	x := &Context{device: o.Device}
	var made *raw.Context
	fail := install(&o, &to)
	c := acquire(fail)
	status := raw.ContextCreate(&to, &made, &c.err)
	if status != raw.OK {
		fail.uninstall()
	}
	return created(x, &x.handle, made, raw.ContextDestroy, c, status)
}

func (o *ContextOptions) fill(to *raw.ContextOptions) error {
	if o.Threads == 0 {
		o.Threads = int(to.NThreads)
	}
	isa, isaErr := optional("CPUISA", o.CPUISA)
	plugin, pluginErr := optional("Plugin", o.Plugin)
	if err := firstOf(narrow("Threads", o.Threads, &to.NThreads), narrow("DeviceIndex", o.DeviceIndex, &to.DeviceIndex),
		isaErr, pluginErr); err != nil {
		return err
	}
	to.CPUISA, to.Plugin = isa, plugin
	if (o.Allocate == nil) != (o.Free == nil) {
		return argument("Allocate and Free go together, one of them is nil")
	}
	if (o.DeviceAllocate == nil) != (o.DeviceFree == nil) {
		return argument("DeviceAllocate and DeviceFree go together, one of them is nil")
	}
	to.Device, to.MaxBytes, to.Stream = o.Device, o.MaxBytes, o.Stream
	return nil
}

// SetStream enqueues later calls of a CUDA context on another cudaStream_t; 0 is the legacy default stream.
func (x *Context) SetStream(stream uintptr) error {
	if err := x.lock(exclusive); err != nil {
		return err
	}
	defer x.unlock(exclusive)
	c := acquire(x.fail)
	return c.end(raw.ContextSetStream(x.raw, stream, &c.err))
}

// FileType tells what a file in memory holds, to hand it to the method that loads it; [FileUnknown] is no error.
func (x *Context) FileType(file []byte) (kind FileKind, err error) {
	if len(file) == 0 {
		return FileUnknown, nil
	}
	if err := x.lock(shared); err != nil {
		return FileUnknown, err
	}
	defer x.unlock(shared)
	c := acquire(x.fail)
	return kind, c.end(raw.FileType(x.raw, bytesOf(file), uintptr(len(file)), &kind, &c.err))
}

// requireMemory checks that a method fits the memory of the context's device.
func (x *Context) requireMemory(onDevice bool, method string) error {
	switch {
	case x.device == DeviceCUDA && !onDevice:
		return argument("%s takes host memory, the context computes on a GPU: use %sDevice", method, method)
	case x.device != DeviceCUDA && onDevice:
		return argument("%sDevice takes device memory, the context computes on the CPU: use %s", method, method)
	}
	return nil
}

// DescribeDevice checks whether contexts can be created on a device and describes it; plugin is as in [ContextOptions].
func DescribeDevice(device Device, index int, plugin string) (DeviceInfo, error) {
	var n int32
	path, err := optional("plugin", plugin)
	if err := firstOf(checkVersion(), narrow("index", index, &n), err); err != nil {
		return DeviceInfo{}, err
	}
	return told(nil, func(it *raw.DeviceInfo, err *raw.Error) raw.Status {
		return raw.DeviceDescribe(device, n, path, it, err)
	}, deviceInfoFrom)
}

// CPUISAs returns the instruction sets that the library has kernels for and this machine supports, best first.
func CPUISAs() []string { return list(raw.CPUISACount(), raw.CPUISAName) }

// Schemes returns the schemes that [QuantizeOptions] can name.
func Schemes() []string { return list(raw.SchemeCount(), raw.SchemeName) }

// SchemeBits returns the bits per weight of a scheme, without scales and signs; 0 if there is no scheme of that name.
func SchemeBits(name string) float64 {
	scheme, err := terminated("name", name)
	if err != nil {
		return 0
	}
	return raw.SchemeBits(scheme)
}

func list(n int32, name func(int32) *byte) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = text(name(int32(i)))
	}
	return names
}
