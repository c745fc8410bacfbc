#include "cache/attend.h"
#include "api/batches.h"
#include "api/boundary.h"

using namespace kvq;
using namespace kvq::api;

void kvq_attend_batch_init(kvq_attend_batch* batch, size_t size) { init_struct(batch, size, kvq_attend_batch{}); }

kvq_status kvq_attend(kvq_cache* cache, int32_t layer, const kvq_attend_batch* batch, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    const kvq_attend_batch chosen = read_struct(batch, kvq_attend_batch{}, "batch");
    const LayerShape& shape = layer_of(*cache, layer);
    require_range(chosen.n_sequences, 1, INT32_MAX, "batch->n_sequences");
    require(chosen.sequences, "batch->sequences");
    require_range(chosen.reserved, 0, 0, "batch->reserved");
    const kvq_attend_batch complete = checked_batch(shape, chosen);
    for (int32_t i = 0; i < chosen.n_sequences; ++i) require_owner_of_entry(*cache, chosen.sequences[i], i);
    const CallSpaces::Lease space(cache->call_spaces);
    attend(
        *cache, shape, complete, *space, [&chosen](int32_t i) -> const Sequence& { return *chosen.sequences[i]; },
        [] {});
  });
}
