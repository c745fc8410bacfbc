#include "formats/gain_shape/model_centres.h"

#include "core/checks.h"

namespace kvq {

uint32_t ModelCentres::compute_checksum() const {
  return static_cast<uint32_t>(checksum_of_numbers());  // checksum() folded the upper half into these bits
}

void check_centres_shape(const CentresShape& shape, kvq_status status, const char* prefix) {
  check_model_shape(shape.n_layers, shape.kv_heads, shape.head_dim, status, prefix);
  check_range(shape.rope, KVQ_ROPE_NONE, KVQ_ROPE_INTERLEAVED, status, prefix, "rope");
  check_range(shape.key_centres, 0, kMaxCentres, status, prefix, "key_centres");
  check_range(shape.value_centres, 0, kMaxCentres, status, prefix, "value_centres");
  if (shape.key_centres > 0 || shape.value_centres > 0) return;
  fail(status, "%skey_centres and value_centres are both 0: there is nothing to store pages relative to", prefix);
}

void check_layer_centres(const CentresShape& shape, const LayerCentres& layer, int32_t index, kvq_status status) {
  for_each_array(shape, [&](const CentresArray& array) {
    check_numbers(layer.side(array.side), array.shape.elements(), KVQ_F16, status, "layers", index, array.name);
  });
}

void check_centres(const ModelCentres& centres, const CacheShape& cache, bool keys, bool values) {
  const CentresShape& shape = centres.shape;
  centres.check_for(cache, "centres");
  if (keys) {
    if (shape.key_centres == 0) {
      fail(KVQ_E_ARGUMENT, "policy stores keys relative to centres, but options->centres has none for keys");
    }
    check_trained_for("centres", "rope", shape.rope, cache.rope);
  }
  if (values && shape.value_centres == 0) {
    fail(KVQ_E_ARGUMENT, "policy stores values relative to centres, but options->centres has none for values");
  }
}

}  // namespace kvq
