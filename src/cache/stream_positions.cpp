#include "cache/stream_positions.h"

#include "core/error.h"

namespace kvq {
namespace {

/// Whether keys and queries of a layer are rotated by these positions.
bool has_streams(const Cache& cache, const LayerShape& shape, const int32_t* positions) {
  if (positions == nullptr) return false;
  if (!cache.has_streams) {
    fail(KVQ_E_ARGUMENT, "batch->rope_positions is given, but the cache was created without options->mrope_section");
  }
  return shape.rope->has_streams();
}

}  // namespace

void rotate_keys(Cache& cache, const LayerShape& shape, const void* k, const void* v, const int32_t* positions,
                 Workspace& workspace, TokenBatch& tokens) {
  if (!has_streams(cache, shape, positions)) return;
  Attention& attention = cache.backend.attention();
  StreamRotation keys{.tensor = StreamTensor::kKeys,
                      .x = k,
                      .strides = tokens.k_strides,
                      .dtype = tokens.dtype,
                      .n = tokens.n,
                      .heads = shape.kv_heads,
                      .channels = shape.head.whole_key(),
                      .rope = shape.rope,
                      .rope_channel = shape.head.before_keys(),
                      .positions = positions,
                      .recorded = cache.backend.recording()};
  const float* rotated = attention.rotate(keys, workspace);
  const void* values = v;
  if (tokens.dtype != KVQ_F32 && !shape.head.is_latent) {  // both have one type
    StreamRotation converted = keys;
    converted.tensor = StreamTensor::kValues;
    converted.x = v;
    converted.strides = tokens.v_strides;
    converted.channels = shape.head.values;
    converted.rope = nullptr;
    values = attention.rotate(converted, workspace);
    tokens.v_strides = HeadStrides::dense(shape.kv_heads, shape.head.values);
  }
  tokens.k_strides = HeadStrides::dense(shape.kv_heads, shape.head.whole_key());
  tokens.dtype = KVQ_F32;
  tokens.rope = &cache.no_rope;
  tokens.set_tensors(rotated, values);
}

void rotate_queries(Cache& cache, const LayerShape& shape, int32_t queries, const int32_t* positions,
                    Workspace& workspace, AttendBatch& batch) {
  if (!has_streams(cache, shape, positions)) return;
  batch.q = cache.backend.attention().rotate({.tensor = StreamTensor::kQueries,
                                              .x = batch.q,
                                              .strides = batch.q_strides,
                                              .dtype = batch.q_dtype,
                                              .n = queries,
                                              .heads = shape.q_heads,
                                              .channels = shape.head.whole_key(),
                                              .rope = shape.rope,
                                              .rope_channel = shape.head.before_keys(),
                                              .positions = positions,
                                              .recorded = batch.recorded},
                                             workspace);
  batch.q_strides = HeadStrides::dense(shape.q_heads, shape.head.whole_key());
  batch.q_dtype = KVQ_F32;
  batch.rope = &cache.no_rope;
}

}  // namespace kvq
