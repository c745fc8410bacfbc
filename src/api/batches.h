// Checks of the batches of appending and attention, which several functions take.
#pragma once

#include "api/handles.h"

#include <span>

namespace kvq::api {

/// Sequences of a batch and how many tokens each has; null counts: one each.
struct GivenSequences {
  int32_t n;
  kvq_sequence* const* sequences;
  const int32_t* token_counts;
  int32_t least;  // count that is allowed
};

/// Check that all sequences belong to the cache and occur once, and their counts. The result is in memory of `scratch`.
Vector<SequenceTokens> checked_sequences(kvq_cache& cache, const GivenSequences& given, Allocator& scratch);
/// The same of an append, with what that has beside strides.
Vector<SequenceTokens> checked_sequences(kvq_cache& cache, const kvq_append_batch& batch, Allocator& scratch);

/// Throws unless there are values exactly if the layer's are no part of its keys.
void check_values(const LayerShape& shape, const void* v, const char* argument);

/// Keys and values of a batch, their strides completed.
TokenBatch tokens_of(const kvq_cache& cache, int32_t layer, const kvq_append_batch& batch,
                     std::span<const SequenceTokens> sequences);
/// The same of so many tokens.
TokenBatch tokens_of(const kvq_cache& cache, int32_t layer, const kvq_append_batch& batch, int32_t n);

/// Check what a batch has beside its sequences, and complete its strides.
kvq_attend_batch checked_batch(const LayerShape& shape, const kvq_attend_batch& given);

}  // namespace kvq::api
