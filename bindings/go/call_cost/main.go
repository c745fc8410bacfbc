// Call_cost measures the cost of a call through this package: the medians of blocks of 32 calls on the smallest cache,
// in nanoseconds per call. bindings/c/call_cost.c is the same in C.
package main

import (
	"fmt"
	"log"
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

// median returns the median time of a call in nanoseconds; prepare is not timed.
func median(prepare, block func() error) (float64, error) {
	var times []float64
	for i := 0; i < warmUp+blocks; i++ {
		if err := prepare(); err != nil {
			return 0, err
		}
		begin := time.Now()
		if err := block(); err != nil {
			return 0, err
		}
		if passed := time.Since(begin); i >= warmUp {
			times = append(times, float64(passed.Nanoseconds())/calls)
		}
	}
	sort.Float64s(times)
	return (times[blocks/2-1] + times[blocks/2]) / 2, nil
}

func run() error {
	context, err := kvq.NewContext(nil)
	if err != nil {
		return err
	}
	defer context.Close()
	policy, err := context.LoadPolicy("fp16")
	if err != nil {
		return err
	}
	defer policy.Close()
	cache, err := context.NewCache(kvq.NewCacheOptions(1, 1, 1, headDim), policy)
	if err != nil {
		return err
	}
	defer cache.Close()
	sequence, err := cache.NewSequence()
	if err != nil {
		return err
	}
	defer sequence.Close()

	numbers := []float32{0.5, -0.25, 0.125, 1, -1, 0.75, -0.5, 0.25}
	token, output := kvq.Of(numbers), kvq.Of(make([]float32, headDim))
	fill := func() error {
		for i := 0; i < calls; i++ {
			if err := sequence.Append(0, token, token); err != nil {
				return err
			}
		}
		return nil
	}
	attend := func() error {
		for i := 0; i < calls; i++ {
			if err := sequence.Attend(0, token, output); err != nil {
				return err
			}
		}
		return nil
	}
	appendTime, err := median(func() error { return sequence.Truncate(0) }, fill)
	if err != nil {
		return err
	}
	attendTime, err := median(func() error { return nil }, attend)
	if err != nil {
		return err
	}
	fmt.Printf("append %.0f attend %.0f\n", appendTime, attendTime)
	return nil
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
