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

/// The tensors of new tokens in a batch that has queries, too.
template <typename Batch>
kvq_append_batch tokens_in(const Batch& batch) {
  kvq_append_batch tokens{};
  tokens.k = batch.k;
  tokens.v = batch.v;
  tokens.dtype = batch.dtype;
  tokens.k_token_stride = batch.k_token_stride;
  tokens.k_head_stride = batch.k_head_stride;
  tokens.v_token_stride = batch.v_token_stride;
  tokens.v_head_stride = batch.v_head_stride;
  return tokens;
}

/// Its queries, where results go, and what queries see.
template <typename Batch>
kvq_attend_batch queries_in(const Batch& batch) {
  kvq_attend_batch queries{};
  queries.q = batch.q;
  queries.q_dtype = batch.q_dtype;
  queries.output_dtype = batch.output_dtype;
  queries.output = batch.output;
  queries.sliding_window = batch.sliding_window;
  queries.logit_softcap = batch.logit_softcap;
  queries.q_token_stride = batch.q_token_stride;
  queries.q_head_stride = batch.q_head_stride;
  queries.output_token_stride = batch.output_token_stride;
  queries.output_head_stride = batch.output_head_stride;
  queries.lse = batch.lse;
  queries.sinks = batch.sinks;
  queries.mask = batch.mask;
  queries.mask_slots = batch.mask_slots;
  return queries;
}

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
