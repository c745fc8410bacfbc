#include "formats/gain_shape/model_centres.h"

#include "core/checks.h"
#include "formats/layer_scales.h"

#include <algorithm>

namespace kvq {

namespace {

void check_range_of_numbers(std::span<const float> numbers, float low, float high, const char* name, int32_t index,
                            kvq_status status) {
  const auto fits = [=](float number) { return number >= low && number <= high; };
  const auto bad = std::ranges::find_if_not(numbers, fits);
  if (bad == numbers.end()) return;
  fail(status, "layers.%d.%s: number %zu is %g, must be in [%g, %g]", index, name,
       static_cast<size_t>(bad - numbers.begin()), static_cast<double>(*bad), static_cast<double>(low),
       static_cast<double>(high));
}

}  // namespace

uint32_t ModelCentres::compute_checksum() const {
  return static_cast<uint32_t>(checksum_of_numbers());  // checksum() folded the upper half into these bits
}

void check_centres_shape(const CentresShape& shape, kvq_status status, const char* prefix) {
  check_model_shape(shape.n_layers, shape.kv_heads, shape.head_dim, status, prefix);
  check_range(shape.rope, KVQ_ROPE_NONE, KVQ_ROPE_INTERLEAVED, status, prefix, "rope");
  check_range(shape.key_centres, 0, kMaxCentres, status, prefix, "key_centres");
  check_range(shape.value_centres, 0, kMaxCentres, status, prefix, "value_centres");
  check_range(shape.key_scales, 0, 1, status, prefix, "key_scales");
  check_range(shape.value_scales, 0, 1, status, prefix, "value_scales");
  if (shape.has_centres() || shape.has_scales()) return;
  fail(status, "%skey_centres, value_centres, key_scales and value_scales are all 0: there is nothing to find", prefix);
}

void check_layer_centres(const CentresShape& shape, const LayerCentres& layer, int32_t index, kvq_status status) {
  for_each_array(shape, [&](const CentresArray& array) {
    check_numbers(array.numbers_of(layer), array.shape.elements(), KVQ_F16, status, "layers", index, array.name);
  });
  check_range_of_numbers(layer.key_scales, kLeastScale, 1.0F, "keys.scales", index, status);
  check_range_of_numbers(layer.value_scales, kLeastScale, 1.0F, "values.scales", index, status);
  check_range_of_numbers(layer.value_offsets, -kMaxValueOffset, kMaxValueOffset, "values.offsets", index, status);
}

void check_scales(const ModelCentres& centres, const CacheShape& cache, const char* option) {
  centres.check_for(cache, option);
  // Those of RoPE pairs suit keys that arrive rotated as well.
  const bool any_rope = centres.shape.key_scales == 0 || cache.rope == KVQ_ROPE_NONE;
  if (!any_rope) check_trained_for(option, "rope", centres.shape.rope, cache.rope);
}

void check_scaled_pairs(const ModelCentres& centres, const Rope& rope, const char* option) {
  if (centres.shape.key_scales == 0) return;
  for (int32_t layer = 0; layer < centres.shape.n_layers; ++layer) {
    const Vector<float>& scales = centres.layers[static_cast<size_t>(layer)].numbers->key_scales;
    for (int32_t head = 0; head < centres.shape.kv_heads; ++head) {
      const float* of_head = scales.data() + static_cast<ptrdiff_t>(head) * centres.shape.head_dim;
      for (int32_t pair = 0; pair < rope.pairs(); ++pair) {
        const int32_t first = rope.first_channel(pair);
        const int32_t second = rope.second_channel(pair);
        if (of_head[first] == of_head[second]) continue;
        fail(KVQ_E_MISMATCH,
             "options->%s scales channels %d and %d of head %d in layer %d by %g and %g, but the cache rotates them as "
             "a pair: find scales with its rotary_dim, %d",
             option, first, second, head, layer, static_cast<double>(of_head[first]),
             static_cast<double>(of_head[second]), rope.rotary_dim);
      }
    }
  }
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
