package kvq_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"kvq"
)

// ends runs what might wait for itself forever.
func ends(t *testing.T, run func()) {
	t.Helper()
	over := make(chan struct{})
	go func() {
		defer close(over)
		run()
	}()
	select {
	case <-over:
	case <-time.After(10 * time.Second):
		t.Fatal("waits for itself")
	}
}

func TestAHookThatUsesItsContextIsRefused(t *testing.T) {
	var use func()
	m, attend := loops(t, &kvq.ContextOptions{ParallelFor: func(int, func(int)) {
		if use != nil {
			use()
		}
	}})
	other := newModel(t, "fp16", nil, kvq.NewCacheOptions(1, 1, 1, 8))
	row, eight := kvq.Of(make([]float32, 8*64)), kvq.Of(make([]float32, 8))
	var errs []error
	use = func() {
		errs = append(errs, m.sequence.Append(0, row, row), m.sequence.Attend(0, row, row), errorOf(m.sequence.Length(0)),
			errorOf(m.cache.Usage()), errorOf(m.cache.NewSequence()), errorOf(m.context.Describe()), m.sequence.Close(),
			m.cache.Close(), m.context.Close(),
			m.cache.Append(0, &kvq.AppendBatch{Sequences: []*kvq.Sequence{m.sequence}, K: row, V: row}))
		if err := other.sequence.Append(0, eight, eight); err != nil {
			t.Error(err)
		}
	}
	ends(t, func() { attend() })
	use = nil
	if len(errs) == 0 {
		t.Fatal("no loop came to the hook")
	}
	for _, err := range errs {
		requireError(t, err, kvq.ErrState, "a hook may not use its own context")
	}
	require(t, m.sequence.Append(0, row, row))
	if n := must(m.sequence.Length(0))(t); n != 2049 {
		t.Fatalf("the sequence has %d tokens", n)
	}
}

func TestProgressMayNotUseItsContext(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	options := kvq.NewQuantizeOptions()
	options.Progress = func(float64) error {
		requireError(t, x.Close(), kvq.ErrState, "a hook may not")
		return errorOf(x.Describe())
	}
	ends(t, func() {
		err := errorOf(x.Quantize(context.Background(), kvq.Of(make([]float32, 64*64)), 64, 64, options))
		if !errors.Is(err, kvq.ErrCancelled) || !errors.Is(err, kvq.ErrState) {
			t.Errorf("the error is %v", err)
		}
	})
	must(x.Describe())(t)
	require(t, x.Close())
}

// A hook's panic leaves the call that ran it, even if another call returns before.
func TestAPanicLeavesItsOwnCall(t *testing.T) {
	p := pages{blocks: map[unsafe.Pointer][]byte{}}
	var other *kvq.Sequence
	cutting, freed := false, 0
	x := must(kvq.NewContext(&kvq.ContextOptions{Allocate: p.allocate, Free: func(memory unsafe.Pointer, bytes, alignment uintptr) {
		p.free(memory, bytes, alignment)
		if !cutting {
			return
		}
		if freed++; freed == 1 {
			panic("too slow")
		}
		if freed == 2 {
			over := make(chan struct{})
			go func() {
				defer close(over)
				defer func() {
					if value := recover(); value != nil {
						t.Errorf("another call panics with %v", value)
					}
				}()
				if n, err := other.Length(0); n != 0 || err != nil {
					t.Errorf("another call returns %d, %v", n, err)
				}
			}()
			<-over
		}
	}}))(t)
	cache := must(x.NewCache(kvq.NewCacheOptions(2, 1, 1, 16), nil))(t)
	s := must(cache.NewSequence())(t)
	other = must(cache.NewSequence())(t)
	k := kvq.Of(make([]float32, 16*100))
	require(t, s.Append(0, k, k))
	require(t, s.Append(1, k, k))
	cutting = true
	requirePanic(t, "Free", "too slow", func() { s.Truncate(0) })
	cutting = false
	if freed < 2 {
		t.Fatal("memory was freed once")
	}
	for _, it := range []interface{ Close() error }{s, other, cache, x} {
		require(t, it.Close())
	}
}

func TestAHookThatEndsItsGoroutineBreaksItsContextAlone(t *testing.T) {
	for _, hook := range []string{"Allocate", "Free", "Log", "ParallelFor", "Progress"} {
		exit := ""
		at := func(name string) {
			if name == exit {
				runtime.Goexit()
			}
		}
		p := pages{blocks: map[unsafe.Pointer][]byte{}}
		options := kvq.ContextOptions{
			Allocate: func(bytes, alignment uintptr) unsafe.Pointer {
				at("Allocate")
				return p.allocate(bytes, alignment)
			},
			Free: func(memory unsafe.Pointer, bytes, alignment uintptr) {
				at("Free")
				p.free(memory, bytes, alignment)
			},
			Log: func(kvq.LogLevel, string) { at("Log") },
			ParallelFor: func(n int, body func(int)) {
				at("ParallelFor")
				for i := 0; i < n; i++ {
					body(i)
				}
			},
		}
		if hook == "Log" { // of a context that is never made
			exit = hook
			ends(t, func() { kvq.NewContext(&options) })
			require(t, must(kvq.NewContext(nil))(t).Close())
			continue
		}
		x := must(kvq.NewContext(&options))(t)
		cache := must(x.NewCache(kvq.NewCacheOptions(1, 8, 8, 64), nil))(t)
		s := must(cache.NewSequence())(t)
		k, q := kvq.Of(make([]float32, 2048*512)), kvq.Of(make([]float32, 512))
		require(t, s.Append(0, k, k))
		batch := &kvq.AttendBatch{Sequences: []*kvq.Sequence{s}, Q: q, Output: kvq.Of(make([]float32, 512))}
		exit = hook
		ends(t, func() {
			switch hook {
			case "Allocate":
				s.Append(0, k, k)
			case "Free":
				s.Truncate(0)
			case "ParallelFor":
				cache.Attend(0, batch)
			case "Progress":
				options := kvq.NewQuantizeOptions()
				options.Progress = func(float64) error { at("Progress"); return nil }
				x.Quantize(context.Background(), kvq.Of(make([]float32, 64*64)), 64, 64, options)
			}
			t.Errorf("%s has not ended the goroutine", hook)
		})
		ends(t, func() {
			for _, err := range []error{s.Append(0, q, q), cache.Attend(0, batch), errorOf(s.Length(0)), errorOf(cache.Usage()),
				errorOf(x.Describe()), errorOf(x.LoadPolicy("fp16")), s.Close(), cache.Close(), x.Close()} {
				requireError(t, err, kvq.ErrState, "a hook ended its goroutine")
			}
		})
	}
	other := newModel(t, "fp16", nil, kvq.NewCacheOptions(1, 1, 1, 8))
	require(t, other.sequence.Append(0, kvq.Of(make([]float32, 8)), kvq.Of(make([]float32, 8))))
}

func TestAPanicWithNilIsOne(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	options := kvq.NewQuantizeOptions()
	options.Progress = func(float64) error { panic(nil) }
	func() {
		defer func() {
			if p, ok := recover().(*kvq.HookPanic); !ok || p.Hook != "Progress" {
				t.Errorf("the panic is %v", p)
			}
		}()
		x.Quantize(context.Background(), kvq.Of(make([]float32, 64*64)), 64, 64, options)
	}()
	must(x.Describe())(t)
	require(t, x.Close())
}

// patience is a context that ends when it has been asked often enough.
type patience struct {
	context.Context
	mu    sync.Mutex
	asked int
	limit int
}

func (p *patience) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked++; p.asked > p.limit {
		return context.DeadlineExceeded
	}
	return nil
}

func TestEveryCallOfTheProgressHookLooksAtTheContext(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	options := kvq.NewQuantizeOptions()
	options.Scheme = "tcx-3"
	told := 0
	options.Progress = func(float64) error { told++; return nil }
	r := random(2)
	const limit = 4 // once before the call
	p := &patience{Context: context.Background(), limit: limit}
	err := errorOf(x.Quantize(p, kvq.Of(r.floats(256*512)), 256, 512, options))
	requireError(t, err, context.DeadlineExceeded)
	requireError(t, err, kvq.ErrCancelled)
	if p.asked != limit+1 || told != limit-1 {
		t.Fatalf("the context was asked %d times, and progress told %d times", p.asked, told)
	}
	require(t, x.Close())
}
