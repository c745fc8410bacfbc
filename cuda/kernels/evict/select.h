// Selection of the tokens that stay, the best of each head, in device memory.
#pragma once

#include "backend/eviction.h"

#include <cuda_runtime_api.h>
#include <cstddef>
#include <cstdint>

namespace kvq::cuda {

/// Candidates of one head.
struct SelectHead {
  const float* masses;
  int32_t n;
  int32_t begin;  // first of its scores, among all heads'
};

/// Buffers for sorting candidates. A candidate is an integer ordered like eviction: higher scores first, then lower
/// indices, then lower heads.
struct Candidates {
  int32_t total;
  int32_t index_bits;
  int32_t head_bits;
  uint64_t* sorted;  // [total]
  uint64_t* other;   // [total]
  void* scratch;
  size_t scratch_bytes;

  int32_t bits() const { return 32 + index_bits + head_bits; }
};

/// Bytes of scratch for sorting and numbering `total` candidates.
size_t select_scratch(int32_t total);

/// Computes scores of all tokens as `eviction` defines them; if joined, the first head gets the sums over all heads.
cudaError_t launch_scores(const Eviction& eviction, const SelectHead* heads, int32_t n_heads, int32_t longest,
                          bool joined, const Candidates& to, cudaStream_t stream);
/// Sorts the best first.
cudaError_t sort_candidates(Candidates& candidates, cudaStream_t stream);
/// Sorts stably by head.
cudaError_t sort_by_heads(Candidates& candidates, cudaStream_t stream);
/// Moves the first `reserved` of each head, sorted by head, to the end.
cudaError_t launch_reserve(const SelectHead* heads, int32_t reserved, Candidates& candidates, cudaStream_t stream);
/// Counts the candidates of each head among the first `best`. `counts`: [n_heads].
cudaError_t launch_count(const Candidates& candidates, int32_t best, int32_t* counts, int32_t n_heads,
                         cudaStream_t stream);
/// Writes the first counts[h] candidates of each head, sorted by head, as ascending indices. `numbers`: [2 · total],
/// scratch.
cudaError_t launch_slots(const SelectHead* heads, int32_t n_heads, int32_t longest, const int32_t* counts,
                         const Candidates& candidates, int32_t* numbers, int32_t* slots, cudaStream_t stream);

}  // namespace kvq::cuda
