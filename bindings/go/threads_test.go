package kvq_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvq"
)

// together runs n goroutines and waits for them.
func together(n int, run func(i int)) {
	var all sync.WaitGroup
	for i := 0; i < n; i++ {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			run(i)
		}(i)
	}
	all.Wait()
}

func TestAttendsRunBesideEachOther(t *testing.T) {
	// The hook of the first attend waits for that of the second: they meet, or this never ends.
	var mu sync.Mutex
	inside, meeting := 0, make(chan bool)
	isMeeting := false
	m, _ := loops(t, &kvq.ContextOptions{ParallelFor: func(n int, body func(int)) {
		mu.Lock()
		if isMeeting {
			if inside++; inside == 2 {
				close(meeting)
			}
			mu.Unlock()
			<-meeting
		} else {
			mu.Unlock()
		}
		for i := 0; i < n; i++ {
			body(i)
		}
	}})
	r := random(3)
	q := r.floats(8 * 64)
	isMeeting = true
	together(2, func(int) {
		if err := m.sequence.Attend(0, kvq.Of(q), kvq.Of(make([]float32, len(q)))); err != nil {
			t.Error(err)
		}
	})
}

func TestAttendsToWhatEvictsTakeTurns(t *testing.T) {
	var inside, most atomic.Int32
	x := must(kvq.NewContext(&kvq.ContextOptions{ParallelFor: func(n int, body func(int)) {
		if now := inside.Add(1); now > most.Load() {
			most.Store(now)
		}
		time.Sleep(time.Millisecond)
		for i := 0; i < n; i++ {
			body(i)
		}
		inside.Add(-1)
	}}))(t)
	defer x.Close()
	policy := must(x.LoadPolicy("fp16+h2o:64"))(t)
	defer policy.Close()
	m := model{context: x, cache: must(x.NewCache(kvq.NewCacheOptions(1, 8, 8, 64), policy))(t)}
	defer m.cache.Close()
	m.info, m.sequence = must(m.cache.Describe())(t), must(m.cache.NewSequence())(t)
	defer m.sequence.Close()
	r := random(4)
	m.append(t, m.sequence, 0, 2048, &r)
	q := kvq.Of(r.floats(8 * 64))
	for _, attend := range []func(output kvq.Tensor) error{
		func(output kvq.Tensor) error { return m.sequence.Attend(0, q, output) },
		func(output kvq.Tensor) error {
			return m.cache.Attend(0, &kvq.AttendBatch{Sequences: []*kvq.Sequence{m.sequence}, Q: q, Output: output})
		},
	} {
		together(4, func(int) {
			for round := 0; round < 5; round++ {
				if err := attend(kvq.Of(make([]float32, 8*64))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	if most.Load() != 1 {
		t.Fatalf("%d attends were inside at once", most.Load())
	}
}

// Everything at once on few objects: nothing deadlocks, crashes or races, and what is appended is counted.
func TestEveryMethodFromManyGoroutines(t *testing.T) {
	m := newModel(t, "int4+h2o:64", nil, kvq.NewCacheOptions(1, 1, 1, 16))
	a, b := must(m.cache.NewSequence())(t), must(m.cache.NewSequence())(t)
	k := make([]float32, 32)
	require(t, m.cache.Append(0, &kvq.AppendBatch{Sequences: []*kvq.Sequence{a, b}, K: kvq.Of(k), V: kvq.Of(k)}))
	const goroutines, rounds = 8, 60
	together(goroutines, func(i int) {
		output := make([]float32, 48)
		orders := [][]*kvq.Sequence{{a, b}, {b, a}}
		for round := 0; round < rounds; round++ {
			var err error
			switch (i + round) % 6 {
			case 0, 1:
				err = m.cache.Append(0, &kvq.AppendBatch{Sequences: orders[i%2], K: kvq.Of(k), V: kvq.Of(k)})
			case 2:
				err = m.cache.Attend(0, &kvq.AttendBatch{Sequences: append(orders[i%2], a), Q: kvq.Of(make([]float32, 48)), Output: kvq.Of(output)})
			case 3:
				_, err = m.cache.Usage()
			case 4:
				var fork *kvq.Sequence
				if fork, err = a.Fork(); err == nil {
					err = fork.Close()
				}
			case 5:
				if _, err = b.Save(); err == nil {
					_, err = m.cache.Save(orders[i%2])
				}
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	if n, expected := must(a.Length(0))(t), 1+goroutines*rounds/3; n != expected {
		t.Fatalf("there are %d tokens, expected %d", n, expected)
	}
	// Closing beside uses: each gets done or says so.
	together(goroutines, func(i int) {
		if i == 0 {
			a.Close()
			m.cache.Close()
			m.context.Close()
		}
		one := kvq.Of(make([]float32, 16))
		if err := a.Attend(0, one, kvq.Of(make([]float32, 16))); err != nil && !errors.Is(err, kvq.ErrClosed) {
			t.Error(err)
		}
		if _, err := m.cache.NewSequence(); err != nil && !errors.Is(err, kvq.ErrClosed) {
			t.Error(err)
		}
	})
	require(t, b.Close())
}
