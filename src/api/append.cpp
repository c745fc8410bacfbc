#include "api/boundary.h"
#include "api/handles.h"
#include "api/strides.h"
#include "cache/invariants.h"
#include "cache/sequence.h"

#include <algorithm>

using namespace kvq;
using namespace kvq::api;

namespace {

/// Check a batch's sequences: all belong to this cache and occur once.
Vector<SequenceTokens> sequences_of(kvq_cache& cache, const kvq_append_batch& batch) {
  Vector<SequenceTokens> sequences(cache.allocator);
  sequences.reserve(static_cast<size_t>(batch.n_sequences));
  for (int32_t i = 0; i < batch.n_sequences; ++i) {
    kvq_sequence* sequence = batch.sequences[i];
    require_owner_of_entry(cache, sequence, i);
    const int32_t count = batch.token_counts != nullptr ? batch.token_counts[i] : 1;
    if (count < 1) fail(KVQ_E_ARGUMENT, "batch->token_counts[%d] is %d, must be at least 1", i, count);
    sequences.push_back({sequence, count});
  }
  Vector<const kvq_sequence*> sorted(batch.sequences, batch.sequences + batch.n_sequences, cache.allocator);
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    const auto* end = batch.sequences + batch.n_sequences;
    const auto* first = std::find(batch.sequences, end, *twice);
    fail(KVQ_E_ARGUMENT, "batch->sequences[%d] is batch->sequences[%d] again",
         static_cast<int32_t>(std::find(first + 1, end, *twice) - batch.sequences),
         static_cast<int32_t>(first - batch.sequences));
  }
  return sequences;
}

TokenBatch tokens_of(const kvq_cache& cache, int32_t layer, const kvq_append_batch& batch, int64_t n) {
  if (n > INT32_MAX) {
    fail(KVQ_E_ARGUMENT, "batch->token_counts add up to %lld, more than %d", static_cast<long long>(n), INT32_MAX);
  }
  const CallerTensor k{"batch->k", n, cache.kv_heads, cache.head_dim, batch.dtype};
  const CallerTensor v{"batch->v", n, cache.kv_heads, cache.head_dim, batch.dtype};
  TokenBatch tokens = cache.no_tokens(layer);
  tokens.k = batch.k;
  tokens.v = batch.v;
  tokens.k_strides = checked_strides(k, batch.k_token_stride, batch.k_head_stride);
  tokens.v_strides = checked_strides(v, batch.v_token_stride, batch.v_head_stride);
  tokens.dtype = batch.dtype;
  tokens.n = static_cast<int32_t>(n);
  return tokens;
}

}  // namespace

kvq_status kvq_append(kvq_cache* cache, kvq_sequence* sequence, int32_t layer, int32_t n, const void* k, const void* v,
                      kvq_dtype dtype, const int32_t* positions, kvq_error* error) {
  return guarded(error, [&] {
    require_current(cache, sequence);
    require_range(layer, 0, cache->n_layers - 1, "layer");
    require_range(n, 1, INT32_MAX, "n");
    require(k, "k");
    require(v, "v");
    require_range(dtype, KVQ_F32, KVQ_BF16, "dtype");
    checked(*sequence, [&] { append(*sequence, layer, k, v, dtype, n, positions); });
  });
}

void kvq_append_batch_init(kvq_append_batch* batch, size_t size) { init_struct(batch, size, kvq_append_batch{}); }

kvq_status kvq_append_sequences(kvq_cache* cache, int32_t layer, const kvq_append_batch* batch, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    const kvq_append_batch chosen = read_struct(batch, kvq_append_batch{}, "batch");
    require_range(layer, 0, cache->n_layers - 1, "layer");
    require_range(chosen.n_sequences, 1, INT32_MAX, "batch->n_sequences");
    require(chosen.sequences, "batch->sequences");
    require(chosen.k, "batch->k");
    require(chosen.v, "batch->v");
    require_range(chosen.dtype, KVQ_F32, KVQ_BF16, "batch->dtype");
    require_range(chosen.reserved, 0, 0, "batch->reserved");
    const Vector<SequenceTokens> sequences = sequences_of(*cache, chosen);
    int64_t n = 0;
    for (const SequenceTokens& each : sequences) n += each.count;
    const TokenBatch tokens = tokens_of(*cache, layer, chosen, n);
    for (const SequenceTokens& each : sequences) follow_replays(*each.sequence);
    checked(sequences, [&] { append(*cache, layer, {sequences, tokens, chosen.positions, true}); });
  });
}
