#include "cache/attend.h"
#include "api/boundary.h"
#include "api/handles.h"
#include "api/strides.h"

#include <algorithm>

using namespace kvq;
using namespace kvq::api;

namespace {

/// Memory of an argument, named as in messages.
struct Extent {
  const char* name;
  const void* begin;
  size_t bytes;
};

/// Refuse output that would be written while something else is still read or written.
void require_apart(const Extent& out, const Extent& other) {
  if (out.begin == nullptr || other.begin == nullptr) return;
  const auto a = reinterpret_cast<uintptr_t>(out.begin);
  const auto b = reinterpret_cast<uintptr_t>(other.begin);
  if (a - b < other.bytes || b - a < out.bytes) {
    fail(KVQ_E_ARGUMENT, "%s at %p overlaps %s at %p", out.name, out.begin, other.name, other.begin);
  }
}

/// The batch with all strides filled in, once its tensors are known to be usable.
kvq_attend_batch with_strides(const kvq_cache& cache, const kvq_attend_batch& given) {
  kvq_attend_batch batch = given;
  int64_t queries = 0;
  for (int32_t i = 0; i < batch.n_sequences; ++i) {
    queries += batch.query_counts != nullptr ? std::max(batch.query_counts[i], 0) : 1;
  }
  const CallerTensor q{"batch->q", queries, cache.q_heads, cache.head_dim, batch.q_dtype};
  const CallerTensor out{"batch->out", queries, cache.q_heads, cache.head_dim, batch.out_dtype};
  const HeadStrides q_strides = checked_strides(q, batch.q_token_stride, batch.q_head_stride);
  const HeadStrides out_strides = checked_strides(out, batch.out_token_stride, batch.out_head_stride);
  require_rows_apart(out, out_strides);
  const auto heads = static_cast<size_t>(cache.q_heads);
  const Extent of_q{"batch->q", batch.q, extent_bytes(q, q_strides)};
  const Extent of_out{"batch->out", batch.out, extent_bytes(out, out_strides)};
  const Extent of_lse{"batch->lse", batch.lse, static_cast<size_t>(queries) * heads * sizeof(float)};
  const Extent of_sinks{"batch->sinks", batch.sinks, heads * sizeof(float)};
  require_apart(of_out, of_q);
  require_apart(of_out, of_sinks);
  for (const Extent& other : {of_q, of_out, of_sinks}) require_apart(of_lse, other);
  batch.q_token_stride = q_strides.token;
  batch.q_head_stride = q_strides.head;
  batch.out_token_stride = out_strides.token;
  batch.out_head_stride = out_strides.head;
  return batch;
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
    attend(*cache, layer, with_strides(*cache, *batch),
           [batch](int32_t i) -> const Sequence& { return *batch->sequences[i]; });
  });
}
