#include "cache/attend.h"
#include "api/boundary.h"
#include "api/handles.h"
#include "core/tensor.h"

#include <algorithm>

using namespace kvq;
using namespace kvq::api;

namespace {

/// Refuse output that would be written while queries are still read.
void check_overlap(const kvq_cache& cache, const kvq_attend_batch& batch) {
  size_t queries = 0;
  for (int32_t i = 0; i < batch.n_sequences; ++i) {
    queries += batch.query_counts != nullptr ? static_cast<size_t>(std::max(batch.query_counts[i], 0)) : 1;
  }
  const size_t scalars = queries * static_cast<size_t>(cache.q_heads) * static_cast<size_t>(cache.head_dim);
  const auto q = reinterpret_cast<uintptr_t>(batch.q);
  const auto out = reinterpret_cast<uintptr_t>(batch.out);
  if (q < out + scalars * dtype_bytes(batch.out_dtype) && out < q + scalars * dtype_bytes(batch.q_dtype)) {
    fail(KVQ_E_ARGUMENT, "batch->out at %p overlaps batch->q at %p", batch.out, batch.q);
  }
}

}  // namespace

void kvq_attend_batch_init(kvq_attend_batch* batch) {
  if (batch == nullptr) return;
  *batch = kvq_attend_batch{};
  batch->struct_size = sizeof(kvq_attend_batch);
}

kvq_status kvq_attend(kvq_cache* cache, int32_t layer, const kvq_attend_batch* batch, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    require_struct(batch, "batch");
    require_range(layer, 0, cache->n_layers - 1, "layer");
    require_range(batch->n_sequences, 1, INT32_MAX, "batch->n_sequences");
    require(batch->sequences, "batch->sequences");
    require(batch->q, "batch->q");
    require(batch->out, "batch->out");
    require_range(batch->q_dtype, KVQ_F32, KVQ_BF16, "batch->q_dtype");
    require_range(batch->out_dtype, KVQ_F32, KVQ_BF16, "batch->out_dtype");
    require_range(batch->sliding_window, 0, INT32_MAX, "batch->sliding_window");
    if (!(batch->logit_softcap >= 0.0F && batch->logit_softcap <= 1e30F)) {
      fail(KVQ_E_ARGUMENT, "batch->logit_softcap is %g, must be 0 or positive and finite",
           static_cast<double>(batch->logit_softcap));
    }
    for (int32_t i = 0; i < batch->n_sequences; ++i) {
      if (batch->sequences[i] == nullptr) fail(KVQ_E_ARGUMENT, "batch->sequences[%d] is NULL", i);
      if (&batch->sequences[i]->cache != cache) {
        fail(KVQ_E_ARGUMENT, "batch->sequences[%d] belongs to another cache", i);
      }
    }
    check_overlap(*cache, *batch);
    attend(*cache, layer, *batch, [batch](int32_t i) -> const Sequence& { return *batch->sequences[i]; });
  });
}
