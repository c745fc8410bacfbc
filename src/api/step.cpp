#include "cache/step.h"

#include "api/batches.h"
#include "api/boundary.h"
#include "cache/invariants.h"
#include "cache/reserve.h"

using namespace kvq;
using namespace kvq::api;

namespace {

/// Sequences of a batch, which belong to the cache and occur once. They have caught up with replays.
Vector<SequenceTokens> sequences_of(kvq_cache& cache, const kvq_step_batch& batch, Allocator& scratch) {
  Vector<SequenceTokens> sequences =
      checked_sequences(cache, {batch.n_sequences, batch.sequences, batch.token_counts, 0}, scratch);
  for (const SequenceTokens& each : sequences) follow_replays(*each.sequence);
  return sequences;
}

}  // namespace

void kvq_step_batch_init(kvq_step_batch* batch, size_t size) { init_struct(batch, size, kvq_step_batch{}); }

kvq_status kvq_step_begin(kvq_cache* cache, const kvq_step_batch* batch, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    const kvq_step_batch chosen = read_struct(batch, kvq_step_batch{}, "batch");
    const CallSpaces::Lease space(cache->call_spaces);
    // Scratch memory may be made anew only while nothing is in it.
    const ExpectedBatch calls = check_step(*cache, sequences_of(*cache, chosen, space->scratch));
    make_call_room(*cache, *space, calls);
    const Vector<SequenceTokens> sequences = sequences_of(*cache, chosen, space->scratch);
    checked(sequences, [&] { begin_step(sequences, space->scratch); });
  });
}

kvq_status kvq_step_commit(kvq_cache* cache, const kvq_step_batch* batch, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    const kvq_step_batch chosen = read_struct(batch, kvq_step_batch{}, "batch");
    const CallSpaces::Lease space(cache->call_spaces);
    const Vector<SequenceTokens> sequences = sequences_of(*cache, chosen, space->scratch);
    if (chosen.kept_slots != nullptr) require(chosen.token_counts, "batch->token_counts");
    checked(sequences,
            [&] { commit_step(sequences, chosen.token_counts == nullptr, chosen.kept_slots, space->scratch); });
  });
}

kvq_status kvq_step_abort(kvq_cache* cache, const kvq_step_batch* batch, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    kvq_step_batch chosen = read_struct(batch, kvq_step_batch{}, "batch");
    chosen.token_counts = nullptr;
    const CallSpaces::Lease space(cache->call_spaces);
    const Vector<SequenceTokens> sequences = sequences_of(*cache, chosen, space->scratch);
    checked(sequences, [&] { abort_step(sequences, space->scratch); });
  });
}
