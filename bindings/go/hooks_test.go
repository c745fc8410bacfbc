package kvq_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"kvq"
)

// pages is an allocator on memory that is not Go's.
type pages struct {
	mu     sync.Mutex
	blocks map[unsafe.Pointer][]byte
	bytes  uint64
	mode   atomic.Int32 // 0: allocate, 1: answer nil, 2: panic
}

func (p *pages) allocate(bytes, alignment uintptr) unsafe.Pointer {
	switch p.mode.Load() {
	case 1:
		return nil
	case 2:
		panic("no more")
	}
	block, err := syscall.Mmap(-1, 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil || alignment > 4096 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocks[unsafe.Pointer(&block[0])] = block
	p.bytes += uint64(bytes)
	return unsafe.Pointer(&block[0])
}

func (p *pages) free(memory unsafe.Pointer, bytes, _ uintptr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	block := p.blocks[memory]
	if uintptr(len(block)) != bytes || syscall.Munmap(block) != nil {
		panic("freed what was not allocated")
	}
	delete(p.blocks, memory)
	p.bytes -= uint64(bytes)
}

func TestTheAllocatorGivesAllMemoryAndGetsItBack(t *testing.T) {
	p := pages{blocks: map[unsafe.Pointer][]byte{}}
	released := 0
	x := must(kvq.NewContext(&kvq.ContextOptions{Allocate: p.allocate, Free: p.free, Released: func() { released++ }}))(t)
	cache := must(x.NewCache(kvq.NewCacheOptions(1, 1, 1, 16), nil))(t)
	s := must(cache.NewSequence())(t)
	k := kvq.Of(make([]float32, 16*100))
	require(t, s.Append(0, k, k))
	if bytes := must(x.Describe())(t).Bytes; bytes != p.bytes {
		t.Fatalf("the context says %d bytes, the hook %d", bytes, p.bytes)
	}
	p.mode.Store(1)
	requireError(t, s.Append(0, k, k), kvq.ErrMemory)
	p.mode.Store(2)
	requirePanic(t, "Allocate", "no more", func() { s.Append(0, k, k) })
	if n := must(s.Length(0))(t); n != 100 {
		t.Fatalf("an append that failed left %d tokens", n)
	}
	p.mode.Store(0)
	require(t, s.Append(0, k, k))
	for _, it := range []interface{ Close() error }{x, s, cache} {
		if released != 0 {
			t.Fatal("released too early")
		}
		require(t, it.Close())
	}
	if released != 1 || len(p.blocks) != 0 || p.bytes != 0 {
		t.Fatalf("released %d times with %d blocks left", released, len(p.blocks))
	}
	requireError(t, errorOf(kvq.NewContext(&kvq.ContextOptions{Allocate: p.allocate})), kvq.ErrArgument, "Allocate and Free")
}

func TestLogsArriveAndTheirPanicsComeBack(t *testing.T) {
	var lines []string
	x := must(kvq.NewContext(&kvq.ContextOptions{Log: func(level kvq.LogLevel, message string) {
		lines = append(lines, fmt.Sprint(level, " ", message))
	}}))(t)
	require(t, x.Close())
	if len(lines) == 0 || !strings.HasPrefix(lines[0], "KVQ_LOG_INFO ") || !strings.Contains(lines[0], "cpu") {
		t.Fatalf("the log is %q", lines)
	}
	cause := errors.New("full")
	requirePanic(t, "Log", cause, func() {
		kvq.NewContext(&kvq.ContextOptions{Log: func(kvq.LogLevel, string) { panic(cause) }})
	})
	defer func() {
		if p, ok := recover().(error); !ok || !errors.Is(p, cause) || !strings.Contains(p.Error(), "Log") {
			t.Fatalf("the panic %v does not lead to its cause", p)
		}
	}()
	kvq.NewContext(&kvq.ContextOptions{Log: func(kvq.LogLevel, string) { panic(cause) }})
}

// loops is a model whose attention is long enough to be shared.
func loops(t *testing.T, options *kvq.ContextOptions) (m model, attend func() []float32) {
	m = newModel(t, "fp16", options, kvq.NewCacheOptions(1, 8, 8, 64))
	r := random(1)
	m.append(t, m.sequence, 0, 2048, &r)
	q := r.floats(8 * 64)
	return m, func() []float32 {
		output := make([]float32, len(q))
		require(t, m.sequence.Attend(0, kvq.Of(q), kvq.Of(output)))
		return output
	}
}

func TestLoopsRunOnGoroutinesWithTheSameResult(t *testing.T) {
	_, alone := loops(t, nil)
	expected := fmt.Sprint(alone())
	var calls atomic.Int32
	m, shared := loops(t, &kvq.ContextOptions{ParallelFor: func(n int, body func(int)) {
		var all sync.WaitGroup
		for i := 0; i < n; i++ {
			all.Add(1)
			go func(i int) {
				defer all.Done()
				calls.Add(1)
				body(i)
			}(i)
		}
		all.Wait()
	}})
	if fmt.Sprint(shared()) != expected || calls.Load() < 2 {
		t.Fatalf("another result after %d calls", calls.Load())
	}
	if info := must(m.context.Describe())(t); info.Threads != 0 {
		t.Fatalf("the context has %d threads of its own", info.Threads)
	}
}

func TestALoopThatPanicsIsDoneByTheLibrary(t *testing.T) {
	_, alone := loops(t, nil)
	expected := fmt.Sprint(alone())
	mode := "run"
	var late func(int)
	options := kvq.ContextOptions{ParallelFor: func(n int, body func(int)) {
		switch mode {
		case "panic":
			body(0)
			late = body
			panic("no goroutines")
		case "lazy":
		default:
			for i := 0; i < n; i++ {
				body(i)
			}
		}
	}}
	m, _ := loops(t, &options)
	r := random(1)
	r.floats(2 * 2048 * 512)
	q, output := r.floats(8*64), make([]float32, 8*64)
	mode = "panic"
	requirePanic(t, "ParallelFor", "no goroutines", func() { m.sequence.Attend(0, kvq.Of(q), kvq.Of(output)) })
	if fmt.Sprint(output) != expected {
		t.Fatal("the library has not done what the hook left")
	}
	late(1) // the loop is over: this must do nothing
	mode = "lazy"
	require(t, m.sequence.Attend(0, kvq.Of(q), kvq.Of(output)))
	if fmt.Sprint(output) != expected {
		t.Fatal("the library has not done what the hook left")
	}
}

func TestReleasedMayPanic(t *testing.T) {
	x := must(kvq.NewContext(&kvq.ContextOptions{Released: func() { panic("late") }}))(t)
	requirePanic(t, "Released", "late", func() { x.Close() })
	require(t, x.Close())
}

func TestLongCallsCanBeStopped(t *testing.T) {
	x := must(kvq.NewContext(nil))(t)
	defer x.Close()
	r := random(2)
	const rows, columns = 256, 512
	weights := kvq.Of(r.floats(rows * columns))
	options := kvq.NewQuantizeOptions()
	options.Scheme = "tcx-3"
	quantize := func(ctx context.Context, progress kvq.Progress) error {
		options.Progress = progress
		m, err := x.Quantize(ctx, weights, rows, columns, options)
		if err == nil {
			m.Close()
		}
		return err
	}
	last := 0.0
	require(t, quantize(context.Background(), func(done float64) error {
		if done < last || done > 1 {
			t.Errorf("progress goes from %g to %g", last, done)
		}
		last = done
		return nil
	}))
	if last == 0 {
		t.Fatal("no progress was told")
	}
	enough := errors.New("enough")
	err := quantize(context.Background(), func(float64) error { return enough })
	requireError(t, err, kvq.ErrCancelled)
	requireError(t, err, enough, "enough")
	requirePanic(t, "Progress", "too long", func() { quantize(context.Background(), func(float64) error { panic("too long") }) })
	ctx, cancel := context.WithCancel(context.Background())
	err = quantize(ctx, func(float64) error { cancel(); return nil })
	requireError(t, err, context.Canceled)
	requireError(t, err, kvq.ErrCancelled)
	requireError(t, quantize(ctx, nil), context.Canceled, "not begun")
	timed, stop := context.WithTimeout(context.Background(), time.Nanosecond)
	defer stop()
	<-timed.Done()
	requireError(t, quantize(timed, nil), context.DeadlineExceeded)
}

func TestHooksAreForgottenOnceReleased(t *testing.T) {
	forgotten := make(chan bool, 1)
	func() {
		lines := new([64]string)
		runtime.SetFinalizer(lines, func(*[64]string) { forgotten <- true })
		x := must(kvq.NewContext(&kvq.ContextOptions{Log: func(_ kvq.LogLevel, message string) { lines[0] = message }}))(t)
		runtime.GC()
		require(t, x.Close())
		requireError(t, errorOf(kvq.NewContext(&kvq.ContextOptions{MaxBytes: 1, Log: func(_ kvq.LogLevel, message string) { lines[1] = message }})), kvq.ErrLimit)
	}()
	for i := 0; i < 1000; i++ {
		runtime.GC()
		select {
		case <-forgotten:
			return
		case <-time.After(time.Millisecond):
		}
	}
	t.Fatal("the hooks are still there")
}
