#include "cache/attend.h"
#include "api/boundary.h"
#include "api/handles.h"
#include "api/strides.h"

#include <algorithm>

using namespace kvq;
using namespace kvq::api;

namespace {

/// Check a batch's tensors and complete its strides.
kvq_attend_batch with_strides(const kvq_cache& cache, const kvq_attend_batch& given) {
  kvq_attend_batch batch = given;
  int64_t queries = 0;
  for (int32_t i = 0; i < batch.n_sequences; ++i) {
    queries += batch.query_counts != nullptr ? std::max(batch.query_counts[i], 0) : 1;
  }
  const CallerTensor q{"batch->q", queries, cache.q_heads, cache.head_dim, batch.q_dtype};
  const CallerTensor out{"batch->output", queries, cache.q_heads, cache.head_dim, batch.output_dtype};
  const HeadStrides q_strides = checked_strides(q, batch.q_token_stride, batch.q_head_stride);
  const HeadStrides out_strides = checked_strides(out, batch.output_token_stride, batch.output_head_stride);
  require_rows_apart(out, out_strides);
  const auto heads = static_cast<size_t>(cache.q_heads);
  const Extent of_q{"batch->q", batch.q, extent_bytes(q, q_strides)};
  const Extent of_out{"batch->output", batch.output, extent_bytes(out, out_strides)};
  const Extent of_lse{"batch->lse", batch.lse, static_cast<size_t>(queries) * heads * sizeof(float)};
  const Extent of_sinks{"batch->sinks", batch.sinks, heads * sizeof(float)};
  require_apart(of_out, of_q);
  require_apart(of_out, of_sinks);
  for (const Extent& other : {of_q, of_out, of_sinks}) require_apart(of_lse, other);
  batch.q_token_stride = q_strides.token;
  batch.q_head_stride = q_strides.head;
  batch.output_token_stride = out_strides.token;
  batch.output_head_stride = out_strides.head;
  return batch;
}

}  // namespace

void kvq_attend_batch_init(kvq_attend_batch* batch, size_t size) { init_struct(batch, size, kvq_attend_batch{}); }

kvq_status kvq_attend(kvq_cache* cache, int32_t layer, const kvq_attend_batch* batch, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    const kvq_attend_batch chosen = read_struct(batch, kvq_attend_batch{}, "batch");
    require_range(layer, 0, cache->n_layers - 1, "layer");
    require_range(chosen.n_sequences, 1, INT32_MAX, "batch->n_sequences");
    require(chosen.sequences, "batch->sequences");
    require(chosen.q, "batch->q");
    require(chosen.output, "batch->output");
    require_range(chosen.q_dtype, KVQ_F32, KVQ_BF16, "batch->q_dtype");
    require_range(chosen.output_dtype, KVQ_F32, KVQ_BF16, "batch->output_dtype");
    require_range(chosen.sliding_window, 0, INT32_MAX, "batch->sliding_window");
    if (!(chosen.logit_softcap >= 0.0F && chosen.logit_softcap <= 1e30F)) {
      fail(KVQ_E_ARGUMENT, "batch->logit_softcap is %g, must be 0 or positive and finite",
           static_cast<double>(chosen.logit_softcap));
    }
    for (int32_t i = 0; i < chosen.n_sequences; ++i) require_owner_of_entry(*cache, chosen.sequences[i], i);
    attend(*cache, layer, with_strides(*cache, chosen),
           [&chosen](int32_t i) -> const Sequence& { return *chosen.sequences[i]; });
  });
}
