package kvq

import (
	"context"
	"errors"
	"runtime/cgo"

	"kvq/raw"
)

// Progress receives the progress of a long call now and then, a share of 0 to 1 that never decreases. An error stops
// the call, which returns it as the cause of [ErrCancelled]. Progress may not use the context or objects made from it.
type Progress func(done float64) error

// watch is a call's progress hook.
type watch struct {
	ctx      context.Context
	progress Progress
	cause    error
	hooks    *hooks
	panicked *HookPanic
}

// Progress reports whether to go on.
func (w *watch) Progress(done float64) int32 {
	w.panicked = w.hooks.run("Progress", func() {
		if w.cause = w.ctx.Err(); w.cause == nil && w.progress != nil {
			w.cause = w.progress(done)
		}
	})
	if w.cause != nil || w.panicked != nil {
		return 1
	}
	return 0
}

// watched runs a call with a progress hook.
func watched(ctx context.Context, hooks *hooks, progress Progress, run func(hook raw.ProgressHook, user uintptr) error) error {
	if ctx == nil {
		return argument("ctx is nil, must be a context.Context")
	}
	if err := ctx.Err(); err != nil {
		return &Error{Status: ErrCancelled, Message: "not begun", Cause: err}
	}
	w := &watch{ctx: ctx, progress: progress, hooks: hooks}
	handle := cgo.NewHandle(w)
	defer handle.Delete()
	err := run(raw.ProgressCallback(), uintptr(handle))
	if w.panicked != nil {
		panic(w.panicked)
	}
	var failed *Error
	if errors.As(err, &failed) && failed.Status == ErrCancelled {
		failed.Cause = w.cause
	}
	return err
}
