package kvq

import (
	"fmt"
	"math"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"unsafe"

	"kvq/raw"
)

// handle is embedded first in every object; it is nil once the object is closed. Shared uses read-lock it; exclusive
// uses and closing lock it. A call that locks several does so in this order: contexts, policies, codebooks, centres,
// routers, caches, sequences.
type handle[T any] struct {
	mu   sync.RWMutex
	id   uint64
	raw  *T
	end  func(*T)
	fail *hooks // the context's hooks
}

var lastID atomic.Uint64

// created wraps the handle that a call created, or ends the call with its error.
func created[O, T any](object *O, h *handle[T], made *T, end func(*T), c *call, status raw.Status) (*O, error) {
	if status != raw.OK {
		return nil, c.end(status)
	}
	h.own(made, end, c.fail)
	return object, c.end(status)
}

// own makes the handle of a new object that of the library's object.
func (h *handle[T]) own(made *T, end func(*T), fail *hooks) {
	h.id, h.raw, h.end, h.fail = lastID.Add(1), made, end, fail
	runtime.SetFinalizer(h, (*handle[T]).destroy)
}

// locker is a handle of any object.
type locker interface {
	lock(exclusive bool) error
	unlock(exclusive bool)
}

// create runs a call that creates an object from a context and other objects, with all of them locked.
func create[O, T any](x *Context, object *O, h *handle[T], end func(*T), by func(made **T, err *raw.Error) raw.Status, uses ...locker) (*O, error) {
	for _, it := range append([]locker{x}, uses...) {
		if err := it.lock(shared); err != nil {
			return nil, err
		}
		defer it.unlock(shared)
	}
	var made *T
	c := acquire(x.fail)
	status := by(&made, &c.err)
	return created(object, h, made, end, c, status)
}

// load creates an object from a file in memory.
func load[O, T any](x *Context, object *O, h *handle[T], end func(*T), name string, file []byte,
	by func(context *raw.Context, file unsafe.Pointer, size uintptr, made **T, err *raw.Error) raw.Status) (*O, error) {
	if len(file) == 0 {
		return nil, argument("%s is empty", name)
	}
	return create(x, object, h, end, func(made **T, err *raw.Error) raw.Status {
		return by(x.raw, bytesOf(file), uintptr(len(file)), made, err)
	})
}

func (h *handle[T]) destroy() error {
	if err := h.fail.refuse(); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.raw != nil && !h.fail.isBroken() {
		runtime.SetFinalizer(h, nil)
		h.end(h.raw)
		h.raw = nil
	}
	return nil
}

// Close destroys the object; closing it again does nothing. It fails only in a hook of the object's context, and after
// a hook ended its goroutine.
func (h *handle[T]) Close() error {
	if err := h.destroy(); err != nil {
		return err
	}
	h.fail.raise()
	return nil
}

// lock locks an open handle for exclusive or shared use.
func (h *handle[T]) lock(exclusive bool) error {
	if err := h.fail.refuse(); err != nil {
		return err
	}
	if exclusive {
		h.mu.Lock()
	} else {
		h.mu.RLock()
	}
	if h.raw == nil {
		h.unlock(exclusive)
		return ErrClosed
	}
	if h.fail.isBroken() { // while this waited
		h.unlock(exclusive)
		return errBroken
	}
	return nil
}

func (h *handle[T]) unlock(exclusive bool) {
	if exclusive {
		h.mu.Unlock()
	} else {
		h.mu.RUnlock()
	}
}

const (
	shared    = false
	exclusive = true
)

// call holds what a call needs besides its arguments, so that calls allocate nothing.
type call struct {
	err       raw.Error
	count     int32
	sequences locks[raw.Sequence]
	matrices  locks[raw.Matrix]

	fail     *hooks     // nil if the call uses no context
	thread   uintptr    // of the call, if its context has hooks
	panicked *HookPanic // first panic of a hook in this call
}

var calls = sync.Pool{New: func() any {
	c := new(call)
	raw.ErrorInit(&c.err)
	return c
}}

// acquire begins a call on a context with these hooks.
func acquire(fail *hooks) *call {
	c := calls.Get().(*call)
	c.fail = fail
	fail.begin(c)
	return c
}

// release ends the call and returns the panic of a hook in it.
func (c *call) release() *HookPanic {
	c.fail.end(c)
	panicked := c.panicked
	c.fail, c.panicked = nil, nil
	calls.Put(c)
	return panicked
}

// end releases the call and reports its error or a hook's panic to the caller.
func (c *call) end(status raw.Status) error {
	var err error
	if status != raw.OK {
		err = &Error{Status: Status(status), BackendCode: int(c.err.BackendCode), Message: text(&c.err.Message[0])}
	}
	fail := c.fail
	if panicked := c.release(); panicked != nil {
		panic(panicked)
	}
	fail.raise()
	return err
}

// locks holds the handles of several objects, which all calls lock in the same order, each once.
type locks[T any] struct {
	given, sorted []*handle[T]
	raw           []*T // in the order given
}

func (l *locks[T]) Len() int           { return len(l.sorted) }
func (l *locks[T]) Less(i, j int) bool { return l.sorted[i].id < l.sorted[j].id }
func (l *locks[T]) Swap(i, j int)      { l.sorted[i], l.sorted[j] = l.sorted[j], l.sorted[i] }

// lock locks all of them for exclusive or shared use.
func (l *locks[T]) lock(name string, exclusive bool) error {
	l.sorted = append(l.sorted[:0], l.given...)
	sort.Sort(l)
	for i, h := range l.sorted {
		if i > 0 && h == l.sorted[i-1] {
			continue
		}
		if err := h.lock(exclusive); err != nil {
			for j := i; j < len(l.sorted); j++ {
				l.sorted[j] = nil
			}
			l.sorted = l.sorted[:i]
			l.unlock(exclusive)
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for _, h := range l.given {
		l.raw = append(l.raw, h.raw)
	}
	return nil
}

// unlock unlocks and drops all of them, so that a pooled call keeps no object alive.
func (l *locks[T]) unlock(exclusive bool) {
	for i, h := range l.sorted {
		if i == 0 || h != l.sorted[i-1] {
			h.unlock(exclusive)
		}
	}
	l.forget()
}

func (l *locks[T]) forget() {
	for i := range l.given {
		l.given[i] = nil
	}
	for i := range l.sorted {
		l.sorted[i] = nil
	}
	l.given, l.sorted, l.raw = l.given[:0], l.sorted[:0], l.raw[:0]
}

// narrow converts an int to the type that C takes.
func narrow(name string, value int, to *int32) error {
	if value < math.MinInt32 || value > math.MaxInt32 {
		return argument("%s is %d, must be a number of 32 bits", name, value)
	}
	*to = int32(value)
	return nil
}

// firstOf returns the first error of some checks, nil if all passed.
func firstOf(checks ...error) error {
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}

// bytesOf returns the address of a slice's first byte, nil for an empty slice.
func bytesOf(s []byte) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&s)) }

// first returns the address of a slice's first element, nil for an empty slice.
func first[T any](s []T) *T {
	if len(s) == 0 {
		return nil
	}
	return &s[0]
}

// told returns the struct that a function fills; its first field is its size.
func told[S, I any](fail *hooks, tell func(it *S, err *raw.Error) raw.Status, from func(*S) I) (I, error) {
	var it S
	*(*uint32)(unsafe.Pointer(&it)) = uint32(unsafe.Sizeof(it))
	c := acquire(fail)
	if err := c.end(tell(&it, &c.err)); err != nil {
		var none I
		return none, err
	}
	return from(&it), nil
}

// described returns the struct that a function fills for an object.
func described[T, S, I any](h *handle[T], tell func(*T, *S, *raw.Error) raw.Status, from func(*S) I) (I, error) {
	return describedPart(h, "", 0, func(it *T, _ int32, info *S, err *raw.Error) raw.Status {
		return tell(it, info, err)
	}, from)
}

// describedPart returns the struct that a function fills for a part of an object, such as a layer.
func describedPart[T, S, I any](h *handle[T], name string, part int, tell func(*T, int32, *S, *raw.Error) raw.Status,
	from func(*S) I) (none I, err error) {
	var n int32
	if err := narrow(name, part, &n); err != nil {
		return none, err
	}
	if err := h.lock(shared); err != nil {
		return none, err
	}
	defer h.unlock(shared)
	return told(h.fail, func(info *S, err *raw.Error) raw.Status { return tell(h.raw, n, info, err) }, from)
}

// save returns the bytes that a function writes for an object.
func (h *handle[T]) save(by func(it *T, buffer unsafe.Pointer, capacity uintptr, size *uintptr, err *raw.Error) raw.Status) ([]byte, error) {
	if err := h.lock(shared); err != nil {
		return nil, err
	}
	defer h.unlock(shared)
	return saved(func(buffer unsafe.Pointer, capacity uintptr, size *uintptr) error {
		c := acquire(h.fail)
		return c.end(by(h.raw, buffer, capacity, size, &c.err))
	})
}

// saved returns the bytes that a call writes, after asking for their number.
func saved(save func(buffer unsafe.Pointer, capacity uintptr, size *uintptr) error) ([]byte, error) {
	var size uintptr
	if err := save(nil, 0, &size); err != nil {
		return nil, err
	}
	buffer := make([]byte, size)
	if err := save(bytesOf(buffer), size, &size); err != nil {
		return nil, err
	}
	return buffer[:size], nil
}
