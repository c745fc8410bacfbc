// Call_cost measures the cost of a call through this package: the medians of blocks of 32 calls on the smallest cache,
// in nanoseconds per call. bindings/c/call_cost.c is the same in C.
package main

import (
	"fmt"
	"sort"
	"time"

	"kvq"
)

const (
	headDim = 8
	calls   = 32
	warmUp  = 200
	blocks  = 2000
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// median returns the median time of a call in nanoseconds; prepare is not timed.
func median(prepare, call func() error) float64 {
	var times []float64
	for i := 0; i < warmUp+blocks; i++ {
		must(0, prepare())
		begin := time.Now()
		for j := 0; j < calls; j++ {
			if err := call(); err != nil {
				panic(err)
			}
		}
		if passed := time.Since(begin); i >= warmUp {
			times = append(times, float64(passed.Nanoseconds())/calls)
		}
	}
	sort.Float64s(times)
	return (times[blocks/2-1] + times[blocks/2]) / 2
}

func main() {
	context := must(kvq.NewContext(nil))
	defer context.Close()
	cache := must(context.NewCache(kvq.NewCacheOptions(1, 1, 1, headDim), must(context.LoadPolicy("fp16"))))
	sequence := must(cache.NewSequence())
	token := kvq.Of([]float32{0.5, -0.25, 0.125, 1, -1, 0.75, -0.5, 0.25})
	output := kvq.Of(make([]float32, headDim))
	appendTime := median(func() error { return sequence.Truncate(0) }, func() error { return sequence.Append(0, token, token) })
	attendTime := median(func() error { return nil }, func() error { return sequence.Attend(0, token, output) })
	fmt.Printf("append %.0f attend %.0f\n", appendTime, attendTime)
}
