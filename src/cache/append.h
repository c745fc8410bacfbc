#pragma once

#include "cache/sequence.h"

#include <span>

namespace kvq {

/// Tokens of a batch that arrive at one sequence.
struct SequenceTokens {
  Sequence* sequence;
  int32_t count;
};

/// Tokens for a layer of some sequences of a cache.
struct AppendRequest {
  std::span<const SequenceTokens> sequences;  // each once
  TokenBatch tokens;                          // of all in their order, without positions
  const int32_t* positions;                   // [tokens.n]; null: those that follow each sequence's newest token
  bool is_batch;                              // arguments are called after a kvq_append_batch
};

/// Append to all sequences or to none. While the backend records, that is only recorded.
void append(Cache& cache, int32_t layer, const AppendRequest& request);

/// The same for one sequence and dense tensors.
void append(Sequence& sequence, int32_t layer, const void* k, const void* v, kvq_dtype dtype, int32_t n,
            const int32_t* positions);

}  // namespace kvq
