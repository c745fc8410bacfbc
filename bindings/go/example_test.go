package kvq_test

import (
	"context"
	"errors"
	"fmt"

	"kvq"
)

// One token of a conversation after another, at about five bits a scalar.
func Example() {
	x, _ := kvq.NewContext(nil)
	defer x.Close()
	policy, _ := x.LoadPolicy("int4+hadamard")
	cache, _ := x.NewCache(kvq.NewCacheOptions(1, 8, 2, 64), policy)
	sequence, _ := cache.NewSequence()
	q, k, v := make([]float32, 8*64), make([]float32, 2*64), make([]float32, 2*64) // of the engine
	output := make([]float32, 8*64)
	for token := 0; token < 100; token++ {
		if err := sequence.Append(0, kvq.Of(k), kvq.Of(v)); err != nil {
			panic(err)
		}
		if err := sequence.Attend(0, kvq.Of(q), kvq.Of(output)); err != nil {
			panic(err)
		}
	}
	length, _ := sequence.Length(0)
	fmt.Println(length, "tokens")
	// Output: 100 tokens
}

// Several answers to one prompt: each is a fork of it, and what was not accepted of a draft is taken back.
func ExampleSequence_Fork() {
	x, _ := kvq.NewContext(nil)
	defer x.Close()
	policy, _ := x.LoadPolicy("{version: 1, keys: int4, values: int4, recent: 2}")
	cache, _ := x.NewCache(kvq.NewCacheOptions(1, 2, 2, 64), policy)
	prompt, _ := cache.NewSequence()
	tokens := func(n int) kvq.Tensor { return kvq.Of(make([]float32, n*2*64)) }
	prompt.Append(0, tokens(1024), tokens(1024))
	for i := 0; i < 2; i++ {
		answer, _ := prompt.Fork()
		defer answer.Close()
		answer.Append(0, tokens(8), tokens(8))
		if err := answer.Truncate(1028); err != nil {
			panic(err)
		}
	}
	usage, _ := cache.Usage()
	// One of 32 pages a head left the two newest when the draft began, and each answer sealed its own.
	fmt.Println(usage.SharedPages, "pages are shared")
	// Output: 62 pages are shared
}

// Queries, keys and values of a token often lie in one row: strides reach them where they are.
func ExampleTensor_Strided() {
	const heads, headDim, tokens, row = 2, 16, 5, 3 * 2 * 16
	x, _ := kvq.NewContext(nil)
	defer x.Close()
	cache, _ := x.NewCache(kvq.NewCacheOptions(1, heads, heads, headDim), nil)
	sequence, _ := cache.NewSequence()
	qkv := make([]float32, tokens*row)
	err := cache.Append(0, &kvq.AppendBatch{
		Sequences:   []*kvq.Sequence{sequence},
		TokenCounts: []int32{tokens},
		K:           kvq.Of(qkv[heads*headDim:]).Strided(row, headDim),
		V:           kvq.Of(qkv[2*heads*headDim:]).Strided(row, headDim),
	})
	fmt.Println(err)
	// Output: <nil>
}

// A matrix of a linear layer in four bits a weight.
func ExampleMatrix_Linear() {
	x, _ := kvq.NewContext(nil)
	defer x.Close()
	weights := make([]float32, 32*64)
	matrix, err := x.Quantize(context.Background(), kvq.Of(weights), 32, 64, nil)
	if err != nil {
		panic(err)
	}
	defer matrix.Close()
	input, output := make([]float32, 64), make([]float32, 32)
	fmt.Println(matrix.Linear(kvq.Of(input), kvq.Of(output)))
	// Output: <nil>
}

// Errors have a status to compare with.
func ExampleError() {
	_, err := kvq.NewContext(&kvq.ContextOptions{MaxBytes: 1})
	fmt.Println(errors.Is(err, kvq.ErrLimit))
	// Output: true
}
