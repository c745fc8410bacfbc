package kvq

import (
	"fmt"
	"runtime"
	"runtime/cgo"
	"sync"
	"sync/atomic"
	"unsafe"

	"kvq/raw"
)

// HookPanic is the value that a call panics with after a hook panicked.
type HookPanic struct {
	Hook  string // name of the option
	Value any    // value of the hook's panic
	Stack []byte // stack of the hook
}

// Error names the hook and the value.
func (p *HookPanic) Error() string {
	return fmt.Sprintf("kvq: the hook %s panicked: %v", p.Hook, p.Value)
}

// Unwrap returns the value if it is an error.
func (p *HookPanic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// hooks holds a context's hooks, which the library calls through package raw.
type hooks struct {
	running
	options  ContextOptions
	handle   cgo.Handle                // 0 without hooks
	panicked atomic.Pointer[HookPanic] // panic of a hook outside of calls that has not been raised again
}

// install sets the hooks of options.
func install(o *ContextOptions, to *raw.ContextOptions) *hooks {
	h := &hooks{options: *o}
	if o.Allocate == nil && o.Log == nil && o.ParallelFor == nil && o.Released == nil && o.DeviceAllocate == nil {
		return h
	}
	h.handle = cgo.NewHandle(h)
	user := uintptr(h.handle)
	if o.Allocate != nil {
		to.Allocate, to.Free, to.AllocatorUser = raw.AllocateCallback(), raw.FreeCallback(), user
	}
	if o.Log != nil {
		to.Log, to.LogUser = raw.LogCallback(), user
	}
	if o.ParallelFor != nil {
		to.ParallelFor, to.ParallelForUser = raw.ParallelForCallback(), user
	}
	if o.DeviceAllocate != nil {
		to.DeviceAllocate, to.DeviceFree = raw.DeviceAllocateCallback(), raw.DeviceFreeCallback()
		to.DeviceAllocatorUser = user
	}
	to.Released, to.ReleasedUser = raw.ReleasedCallback(), user
	return h
}

// uninstall forgets the hooks of a context that could not be created.
func (h *hooks) uninstall() {
	if h.handle != 0 {
		h.handle.Delete()
	}
}

// begin registers a call that is about to be made, so that the panics of its hooks find it.
func (h *hooks) begin(c *call) {
	if h == nil || h.handle == 0 {
		return
	}
	runtime.LockOSThread()
	c.thread = raw.Thread()
	h.enter(c.thread, c)
}

func (h *hooks) end(c *call) {
	if h == nil || h.handle == 0 {
		return
	}
	h.leave(c.thread)
	runtime.UnlockOSThread()
}

// guard runs a hook and reports whether it returned or panicked.
func (h *hooks) guard(name string, run func()) (ended bool) {
	panicked := h.run(name, run)
	if panicked == nil {
		return true
	}
	if c := h.call(raw.Thread()); c == nil {
		h.panicked.CompareAndSwap(nil, panicked)
	} else if c.panicked == nil {
		c.panicked = panicked
	}
	return false
}

// raise panics if a hook did outside of calls.
func (h *hooks) raise() {
	if h == nil || h.panicked.Load() == nil {
		return
	}
	if p := h.panicked.Swap(nil); p != nil {
		panic(p)
	}
}

func (h *hooks) Allocate(bytes, alignment uintptr) (memory uintptr) {
	h.guard("Allocate", func() { memory = uintptr(h.options.Allocate(bytes, alignment)) })
	return memory
}

func (h *hooks) Free(memory, bytes, alignment uintptr) {
	h.guard("Free", func() { h.options.Free(foreign(memory), bytes, alignment) })
}

func (h *hooks) DeviceAllocate(bytes, stream uintptr) (memory uintptr) {
	h.guard("DeviceAllocate", func() { memory = uintptr(h.options.DeviceAllocate(bytes, stream)) })
	return memory
}

func (h *hooks) DeviceFree(memory, bytes, stream uintptr) {
	h.guard("DeviceFree", func() { h.options.DeviceFree(DevicePointer(memory), bytes, stream) })
}

func (h *hooks) Log(level raw.LogLevel, message *byte) {
	h.guard("Log", func() { h.options.Log(level, text(message)) })
}

// ParallelFor runs a loop of the library. Once the hook has returned or panicked, goroutines it left behind may not
// call the body any more: the loop's memory is gone.
func (h *hooks) ParallelFor(n int32, body raw.ParallelBody, argument uintptr) int32 {
	var mu sync.RWMutex
	over := false
	defer func() {
		mu.Lock()
		over = true
		mu.Unlock()
	}()
	if !h.guard("ParallelFor", func() {
		h.options.ParallelFor(int(n), func(i int) {
			mu.RLock()
			defer mu.RUnlock()
			if !over {
				raw.CallParallelBody(body, argument, int32(i))
			}
		})
	}) {
		return 1
	}
	return 0
}

func (h *hooks) Released() {
	if h.options.Released != nil {
		h.guard("Released", h.options.Released)
	}
	h.handle.Delete()
}

// foreign converts a number to a pointer to C or device memory, never Go memory.
func foreign(number uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&number)) }
