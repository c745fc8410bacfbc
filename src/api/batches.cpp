#include "api/batches.h"

#include "api/boundary.h"
#include "api/strides.h"
#include "core/sizes.h"

#include <algorithm>

namespace kvq::api {

Vector<SequenceTokens> checked_sequences(kvq_cache& cache, const GivenSequences& given, Allocator& scratch) {
  require_range(given.n, 1, INT32_MAX, "batch->n_sequences");
  require(given.sequences, "batch->sequences");
  Vector<SequenceTokens> sequences(scratch);
  sequences.reserve(static_cast<size_t>(given.n));
  for (int32_t i = 0; i < given.n; ++i) {
    kvq_sequence* sequence = given.sequences[i];
    require_owner_of_entry(cache, sequence, i);
    const int32_t count = given.token_counts != nullptr ? given.token_counts[i] : 1;
    if (count < given.least) {
      fail(KVQ_E_ARGUMENT, "batch->token_counts[%d] is %d, must be at least %d", i, count, given.least);
    }
    sequences.push_back({sequence, count});
  }
  const auto* end = given.sequences + given.n;
  Vector<const kvq_sequence*> sorted(given.sequences, end, scratch);
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    const auto* first = std::find(given.sequences, end, *twice);
    fail(KVQ_E_ARGUMENT, "batch->sequences[%d] is batch->sequences[%d] again",
         static_cast<int32_t>(std::find(first + 1, end, *twice) - given.sequences),
         static_cast<int32_t>(first - given.sequences));
  }
  return sequences;
}

Vector<SequenceTokens> checked_sequences(kvq_cache& cache, const kvq_append_batch& batch, Allocator& scratch) {
  require_range(batch.n_sequences, 1, INT32_MAX, "batch->n_sequences");
  require(batch.sequences, "batch->sequences");
  require(batch.k, "batch->k");
  require_range(batch.dtype, KVQ_F32, KVQ_BF16, "batch->dtype");
  return checked_sequences(cache, {batch.n_sequences, batch.sequences, batch.token_counts, 1}, scratch);
}

void check_values(const LayerShape& shape, const void* v, const char* argument) {
  if (!shape.head.is_latent) return require(v, argument);
  if (v == nullptr) return;
  fail(KVQ_E_ARGUMENT, "%s is given, must be NULL: values of layer %d are a prefix of its keys", argument,
       shape.number);
}

TokenBatch tokens_of(const kvq_cache& cache, int32_t layer, const kvq_append_batch& batch,
                     std::span<const SequenceTokens> sequences) {
  int64_t n = 0;
  for (const SequenceTokens& each : sequences) n += each.count;
  if (n > INT32_MAX) {
    fail(KVQ_E_ARGUMENT, "batch->token_counts add up to %lld, more than %d", static_cast<long long>(n), INT32_MAX);
  }
  return tokens_of(cache, layer, batch, static_cast<int32_t>(n));
}

TokenBatch tokens_of(const kvq_cache& cache, int32_t layer, const kvq_append_batch& batch, int32_t n) {
  const LayerShape& shape = cache.layer(layer);
  const CallerTensor k{"batch->k", n, shape.kv_heads, shape.head.whole_key(), batch.dtype};
  const CallerTensor v{"batch->v", n, shape.kv_heads, shape.head.values, batch.dtype};
  check_values(shape, batch.v, "batch->v");
  TokenBatch tokens = cache.no_tokens(layer);
  tokens.dtype = batch.dtype;
  tokens.k_strides = checked_strides(k, batch.k_token_stride, batch.k_head_stride);
  if (!shape.head.is_latent) tokens.v_strides = checked_strides(v, batch.v_token_stride, batch.v_head_stride);
  tokens.set_tensors(batch.k, batch.v);
  tokens.n = n;
  return tokens;
}

kvq_attend_batch checked_batch(const LayerShape& shape, const kvq_attend_batch& given) {
  require(given.q, "batch->q");
  require(given.output, "batch->output");
  require_range(given.q_dtype, KVQ_F32, KVQ_BF16, "batch->q_dtype");
  require_range(given.output_dtype, KVQ_F32, KVQ_BF16, "batch->output_dtype");
  require_range(given.sliding_window, 0, INT32_MAX, "batch->sliding_window");
  if (!(given.logit_softcap >= 0.0F && given.logit_softcap <= 1e30F)) {
    fail(KVQ_E_ARGUMENT, "batch->logit_softcap is %g, must be 0 or positive and finite",
         static_cast<double>(given.logit_softcap));
  }
  if (given.mask != nullptr) {
    require_range(given.mask_slots, 1, KVQ_MAX_MASK_SLOTS, "batch->mask_slots");
  } else if (given.mask_slots != 0) {
    fail(KVQ_E_ARGUMENT, "batch->mask_slots is %d, must be 0 without a mask", given.mask_slots);
  }
  kvq_attend_batch batch = given;
  int64_t queries = 0;
  for (int32_t i = 0; i < batch.n_sequences; ++i) {
    queries += batch.query_counts != nullptr ? std::max(batch.query_counts[i], 0) : 1;
  }
  if (queries > INT32_MAX) {
    fail(KVQ_E_ARGUMENT, "batch->query_counts add up to %lld, more than %d", static_cast<long long>(queries),
         INT32_MAX);
  }
  const CallerTensor q{"batch->q", queries, shape.q_heads, shape.head.whole_key(), batch.q_dtype};
  const CallerTensor out{"batch->output", queries, shape.q_heads, shape.head.values, batch.output_dtype};
  const HeadStrides q_strides = checked_strides(q, batch.q_token_stride, batch.q_head_stride);
  const HeadStrides out_strides = checked_strides(out, batch.output_token_stride, batch.output_head_stride);
  require_rows_apart(out, out_strides);
  const auto heads = static_cast<size_t>(shape.q_heads);
  const Extent of_q{"batch->q", batch.q, extent_bytes(q, q_strides)};
  const Extent of_out{"batch->output", batch.output, extent_bytes(out, out_strides)};
  const Extent of_lse{"batch->lse", batch.lse, size(queries, heads, sizeof(float))};
  const Extent of_sinks{"batch->sinks", batch.sinks, heads * sizeof(float)};
  const auto mask_words = (static_cast<size_t>(batch.mask_slots) + 31) / 32;
  const Extent of_mask{"batch->mask", batch.mask, size(queries, mask_words, sizeof(uint32_t))};
  for (const Extent& other : {of_q, of_sinks, of_mask}) require_apart(of_out, other);
  for (const Extent& other : {of_q, of_out, of_sinks, of_mask}) require_apart(of_lse, other);
  batch.q_token_stride = q_strides.token;
  batch.q_head_stride = q_strides.head;
  batch.output_token_stride = out_strides.token;
  batch.output_head_stride = out_strides.head;
  return batch;
}

}  // namespace kvq::api
