#include "cache/step.h"

#include "api/batches.h"
#include "api/boundary.h"
#include "cache/invariants.h"

using namespace kvq;
using namespace kvq::api;

namespace {

/// Calls change(sequences, has_counts) with the sequences of a batch.
template <bool kReadsCounts = true, typename Change>
kvq_status changed(kvq_cache* cache, const kvq_step_batch* batch, kvq_error* error, const Change& change) {
  return guarded(error, [&] {
    require(cache, "cache");
    kvq_step_batch chosen = read_struct(batch, kvq_step_batch{}, "batch");
    if (!kReadsCounts) chosen.token_counts = nullptr;
    const CallSpaces::Lease space(cache->call_spaces);
    const Vector<SequenceTokens> sequences =
        checked_sequences(*cache, {chosen.n_sequences, chosen.sequences, chosen.token_counts, 0}, space->scratch);
    for (const SequenceTokens& each : sequences) follow_replays(*each.sequence);
    checked(sequences, [&] { change(sequences, chosen.token_counts != nullptr); });
  });
}

}  // namespace

void kvq_step_batch_init(kvq_step_batch* batch, size_t size) { init_struct(batch, size, kvq_step_batch{}); }

kvq_status kvq_step_begin(kvq_cache* cache, const kvq_step_batch* batch, kvq_error* error) {
  return changed(cache, batch, error, [&](const auto& sequences, bool) { begin_step(*cache, sequences); });
}

kvq_status kvq_step_commit(kvq_cache* cache, const kvq_step_batch* batch, kvq_error* error) {
  return changed(cache, batch, error,
                 [](const auto& sequences, bool has_counts) { commit_step(sequences, !has_counts); });
}

kvq_status kvq_step_abort(kvq_cache* cache, const kvq_step_batch* batch, kvq_error* error) {
  return changed<false>(cache, batch, error, [](const auto& sequences, bool) { abort_step(sequences); });
}
