package kvq

import (
	"runtime/debug"
	"sync"
	"sync/atomic"

	"kvq/raw"
)

var (
	errInHook = &Error{Status: ErrState, Message: "a hook may not use its own context or objects made from it"}
	errBroken = &Error{Status: ErrState, Message: "a hook ended its goroutine in the middle of a call: the context and " +
		"objects made from it cannot be used any more, and their memory is not freed"}
)

// running knows which threads run calls and hooks of a context.
type running struct {
	mu     sync.Mutex
	calls  map[uintptr]*call // by thread
	hooks  map[uintptr]int   // hooks that a thread is in
	count  atomic.Int32      // hooks that run
	exited atomic.Int32      // hooks that have ended their goroutine
}

func (r *running) enter(thread uintptr, c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[uintptr]*call{}
	}
	r.calls[thread] = c
}

func (r *running) leave(thread uintptr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls, thread)
}

// call returns the call that a thread is in, or nil.
func (r *running) call(thread uintptr) *call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[thread]
}

// run runs a hook and returns its panic. If the hook ends its goroutine, the library stays in the middle of the call
// with all that it has locked: the context is broken.
func (r *running) run(name string, hook func()) (panicked *HookPanic) {
	panicked = r.try(name, hook)
	if panicked != nil && panicked.Value == nil {
		r.exited.Add(-1) // this goroutine goes on: it was panic(nil)
	}
	return panicked
}

func (r *running) try(name string, hook func()) (panicked *HookPanic) {
	thread := raw.Thread()
	r.inHook(thread, 1)
	ended := false
	defer func() {
		r.inHook(thread, -1)
		if ended {
			return
		}
		panicked = &HookPanic{name, recover(), debug.Stack()}
		if panicked.Value == nil {
			r.exited.Add(1)
		}
	}()
	hook()
	ended = true
	return nil
}

func (r *running) inHook(thread uintptr, more int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hooks == nil {
		r.hooks = map[uintptr]int{}
	}
	if r.hooks[thread] += more; r.hooks[thread] == 0 {
		delete(r.hooks, thread)
	}
	r.count.Add(int32(more))
}

// isBroken reports whether a hook has ended its goroutine.
func (h *hooks) isBroken() bool { return h != nil && h.exited.Load() > 0 }

// refuse returns an error if the context is broken or its hook asks.
func (h *hooks) refuse() error {
	if h == nil {
		return nil
	}
	if h.isBroken() {
		return errBroken
	}
	if h.count.Load() == 0 {
		return nil
	}
	thread := raw.Thread()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hooks[thread] > 0 {
		return errInHook
	}
	return nil
}
