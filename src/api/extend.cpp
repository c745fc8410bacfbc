#include "api/batches.h"
#include "api/boundary.h"
#include "cache/invariants.h"
#include "cache/stream_positions.h"

using namespace kvq;
using namespace kvq::api;

void kvq_extend_batch_init(kvq_extend_batch* batch, size_t size) { init_struct(batch, size, kvq_extend_batch{}); }

kvq_status kvq_extend(kvq_cache* cache, int32_t layer, const kvq_extend_batch* batch, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    const kvq_extend_batch chosen = read_struct(batch, kvq_extend_batch{}, "batch");
    const int32_t index = appended_layer(*cache, layer);
    kvq_append_batch given = tokens_in(chosen);
    given.n_sequences = chosen.n_sequences;
    given.sequences = chosen.sequences;
    given.token_counts = chosen.token_counts;
    given.positions = chosen.positions;
    const CallSpaces::Lease space(cache->call_spaces);
    const Vector<SequenceTokens> sequences = checked_sequences(*cache, given, space->scratch);
    TokenBatch tokens = tokens_of(*cache, index, given, sequences);
    kvq_attend_batch given_queries = queries_in(chosen);
    given_queries.n_sequences = chosen.n_sequences;
    given_queries.query_counts = chosen.token_counts;
    given_queries.rope_positions = chosen.rope_positions;
    const kvq_attend_batch queries = checked_batch(cache->layer(index), given_queries);
    rotate_keys(*cache, cache->layer(index), chosen.k, chosen.v, chosen.rope_positions, *space->workspace, tokens);
    for (const SequenceTokens& each : sequences) follow_replays(*each.sequence);
    checked(sequences, [&] {
      extend(*cache, index, {sequences, tokens, chosen.positions, true, space->scratch}, queries, *space);
    });
  });
}
