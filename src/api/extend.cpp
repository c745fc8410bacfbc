#include "api/batches.h"
#include "api/boundary.h"
#include "cache/invariants.h"
#include "cache/stream_positions.h"

using namespace kvq;
using namespace kvq::api;

namespace {

kvq_append_batch tokens_in(const kvq_extend_batch& batch) {
  kvq_append_batch tokens{};
  tokens.n_sequences = batch.n_sequences;
  tokens.sequences = batch.sequences;
  tokens.token_counts = batch.token_counts;
  tokens.positions = batch.positions;
  tokens.k = batch.k;
  tokens.v = batch.v;
  tokens.dtype = batch.dtype;
  tokens.k_token_stride = batch.k_token_stride;
  tokens.k_head_stride = batch.k_head_stride;
  tokens.v_token_stride = batch.v_token_stride;
  tokens.v_head_stride = batch.v_head_stride;
  return tokens;
}

kvq_attend_batch queries_in(const kvq_extend_batch& batch) {
  kvq_attend_batch queries{};
  queries.n_sequences = batch.n_sequences;
  queries.query_counts = batch.token_counts;
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
  queries.rope_positions = batch.rope_positions;
  return queries;
}

}  // namespace

void kvq_extend_batch_init(kvq_extend_batch* batch, size_t size) { init_struct(batch, size, kvq_extend_batch{}); }

kvq_status kvq_extend(kvq_cache* cache, int32_t layer, const kvq_extend_batch* batch, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    const kvq_extend_batch chosen = read_struct(batch, kvq_extend_batch{}, "batch");
    const int32_t index = appended_layer(*cache, layer);
    const kvq_append_batch given = tokens_in(chosen);
    const CallSpaces::Lease space(cache->call_spaces);
    const Vector<SequenceTokens> sequences = checked_sequences(*cache, given, space->scratch);
    TokenBatch tokens = tokens_of(*cache, index, given, sequences);
    const kvq_attend_batch queries = checked_batch(cache->layer(index), queries_in(chosen));
    rotate_keys(*cache, cache->layer(index), chosen.k, chosen.v, chosen.rope_positions, *space->workspace, tokens);
    for (const SequenceTokens& each : sequences) follow_replays(*each.sequence);
    checked(sequences, [&] {
      extend(*cache, index, {sequences, tokens, chosen.positions, true, space->scratch}, queries, *space);
    });
  });
}
