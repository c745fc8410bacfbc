#include "api/batches.h"
#include "api/boundary.h"
#include "api/handles.h"
#include "api/strides.h"
#include "cache/invariants.h"
#include "cache/sequence.h"
#include "cache/stream_positions.h"

using namespace kvq;
using namespace kvq::api;

kvq_status kvq_append(kvq_cache* cache, kvq_sequence* sequence, int32_t layer, int32_t n, const void* k, const void* v,
                      kvq_dtype dtype, const int32_t* positions, kvq_error* error) {
  return guarded(error, [&] {
    require_current(cache, sequence);
    const int32_t index = appended_layer(*cache, layer);
    require_range(n, 1, INT32_MAX, "n");
    require(k, "k");
    check_values(cache->layer(index), v, "v");
    require_range(dtype, KVQ_F32, KVQ_BF16, "dtype");
    const LayerShape& shape = cache->layer(index);
    require_countable({"k", n, shape.kv_heads, shape.head.whole_key(), dtype});
    require_countable({"v", n, shape.kv_heads, shape.head.values, dtype});
    checked(*sequence, [&] { append(*sequence, index, k, v, dtype, n, positions); });
  });
}

void kvq_append_batch_init(kvq_append_batch* batch, size_t size) { init_struct(batch, size, kvq_append_batch{}); }

kvq_status kvq_append_sequences(kvq_cache* cache, int32_t layer, const kvq_append_batch* batch, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    const kvq_append_batch chosen = read_struct(batch, kvq_append_batch{}, "batch");
    const int32_t index = appended_layer(*cache, layer);
    require_range(chosen.reserved, 0, 0, "batch->reserved");
    const CallSpaces::Lease space(cache->call_spaces);
    const Vector<SequenceTokens> sequences = checked_sequences(*cache, chosen, space->scratch);
    TokenBatch tokens = tokens_of(*cache, index, chosen, sequences);
    rotate_keys(*cache, cache->layer(index), chosen.k, chosen.v, chosen.rope_positions, *space->workspace, tokens);
    for (const SequenceTokens& each : sequences) follow_replays(*each.sequence);
    checked(sequences, [&] { append(*cache, index, {sequences, tokens, chosen.positions, true, space->scratch}); });
  });
}
