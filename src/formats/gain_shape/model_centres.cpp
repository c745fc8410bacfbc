#include "formats/gain_shape/model_centres.h"

#include "core/checks.h"
#include "core/checksum.h"
#include "formats/codec.h"

#include <algorithm>
#include <span>
#include <type_traits>

namespace kvq {

int32_t ModelCentres::layers_present() const {
  return static_cast<int32_t>(
      std::count_if(layers.begin(), layers.end(), [](const Layer& layer) { return layer.numbers != nullptr; }));
}

uint64_t ModelCentres::bytes() const {
  uint64_t of_layer = 0;
  for_each_array(shape, [&](const CentresArray& array) { of_layer += array.shape.elements() * sizeof(float); });
  return of_layer * static_cast<uint64_t>(layers_present());
}

uint32_t ModelCentres::compute_checksum() const {
  // In another shape the same numbers have another meaning.
  static_assert(std::has_unique_object_representations_v<CentresShape>);
  uint64_t sum = kvq::checksum(std::as_bytes(std::span(&shape, 1)), kChecksumSeed);
  for (const Layer& layer : layers) {
    for_each_array(shape, [&](const CentresArray& array) {
      sum = kvq::checksum(std::as_bytes(std::span(layer.numbers->side(array.side))), sum);
    });
  }
  return static_cast<uint32_t>(sum);  // checksum() folded the upper half into these bits
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
  if (!centres.complete()) {
    fail(KVQ_E_ARGUMENT, "options->centres has %d of %d layers: finish its training", centres.layers_present(),
         shape.n_layers);
  }
  check_trained_for("centres", "n_layers", shape.n_layers, cache.n_layers);
  check_trained_for("centres", "kv_heads", shape.kv_heads, cache.kv_heads);
  check_trained_for("centres", "head_dim", shape.head_dim, cache.head_dim);
  check_trained_for_model("centres", centres.model_id, cache.model_id);
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
