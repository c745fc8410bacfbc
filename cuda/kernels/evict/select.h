// Which tokens stay: the best of each head, in device memory.
#pragma once

#include "backend/eviction.h"

#include <cuda_runtime_api.h>
#include <cstddef>
#include <cstdint>

namespace kvq::cuda {

/// One head's tokens that may go.
struct SelectHead {
  const float* masses;
  int32_t n;
  int32_t begin;  // of its scores, among all heads'
};

/// Where candidates are sorted. A candidate is a number whose order is that of eviction: the higher score first, of
/// equals the lower index, then the lower head.
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

/// Bytes of scratch that sorting and numbering so many candidates needs.
size_t select_scratch(int32_t total);

/// Scores of all tokens, as `eviction` wants them; joined: the sums over all heads, as those of the first.
cudaError_t launch_scores(const Eviction& eviction, const SelectHead* heads, int32_t n_heads, int32_t longest,
                          bool joined, const Candidates& to, cudaStream_t stream);
/// The best first.
cudaError_t sort_candidates(Candidates& candidates, cudaStream_t stream);
/// Head by head, otherwise in the order that they have.
cudaError_t sort_by_heads(Candidates& candidates, cudaStream_t stream);
/// Have the first `reserved` of each head, which are sorted by heads, come last.
cudaError_t launch_reserve(const SelectHead* heads, int32_t reserved, Candidates& candidates, cudaStream_t stream);
/// How many of the first `best` candidates each head has. `counts`: [n_heads].
cudaError_t launch_count(const Candidates& candidates, int32_t best, int32_t* counts, int32_t n_heads,
                         cudaStream_t stream);
/// The first counts[h] candidates of each head, which are sorted by heads, as rising indices, head after head.
/// `numbers`: [2 · total] that are used meanwhile.
cudaError_t launch_slots(const SelectHead* heads, int32_t n_heads, int32_t longest, const int32_t* counts,
                         const Candidates& candidates, int32_t* numbers, int32_t* slots, cudaStream_t stream);

}  // namespace kvq::cuda
