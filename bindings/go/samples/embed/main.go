// Embed is a minimal embedding: one attention layer of an engine decodes on a cache compressed to about five bits per
// scalar. It prints the same line as samples/c/embed.c.
package main

import (
	"fmt"
	"log"
	"math"

	"kvq"
)

const (
	layers  = 1
	qHeads  = 8
	kvHeads = 2
	headDim = 64
	tokens  = 1000
)

// fill stands in for the engine's projections: numbers in [-1, 1).
func fill(x []float32, state *uint32) {
	for i := range x {
		*state = *state*1664525 + 1013904223
		x[i] = float32(*state>>8)/8388608 - 1
	}
}

// checksum hashes the bits of the attention outputs, to compare with the same program in another language.
func checksum(sum uint32, x []float32) uint32 {
	for _, value := range x {
		sum = (sum ^ math.Float32bits(value)) * 16777619
	}
	return sum
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	context := must(kvq.NewContext(nil))
	defer context.Close()
	policy := must(context.LoadPolicy("int4+hadamard")) // or a YAML policy: formats per layer, FP16 pages
	defer policy.Close()
	cache := must(context.NewCache(kvq.NewCacheOptions(layers, qHeads, kvHeads, headDim), policy))
	defer cache.Close()
	sequence := must(cache.NewSequence())
	defer sequence.Close()

	state, sum := uint32(1), uint32(2166136261)
	q, output := make([]float32, qHeads*headDim), make([]float32, qHeads*headDim)
	k, v := make([]float32, kvHeads*headDim), make([]float32, kvHeads*headDim)
	for token := 0; token < tokens; token++ {
		fill(q, &state) // before RoPE: the library rotates queries and keys
		fill(k, &state)
		fill(v, &state)
		must(0, sequence.Append(0, kvq.Of(k), kvq.Of(v)))
		must(0, sequence.Attend(0, kvq.Of(q), kvq.Of(output)))
		sum = checksum(sum, output)
	}
	usage := must(sequence.Usage())
	fmt.Printf("%d tokens at %.2f bits per scalar: %d bytes instead of %d, checksum %08x\n", tokens, usage.BitsPerScalar,
		usage.TotalBytes, usage.PlainFP16Bytes, sum)
}
