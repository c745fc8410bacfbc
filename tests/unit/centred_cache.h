// Caches with random trained centres.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "api/handles.h"
#include "core/float16.h"
#include "formats/codec.h"
#include "formats/gain_shape/model_centres.h"
#include "support/handles.h"
#include "support/random.h"

namespace kvq_test {

/// Numbers in FP16, as in files.
inline std::shared_ptr<const kvq::ModelCentres> random_centres(kvq_context* context, const kvq_cache_options& options,
                                                               CentreCounts counts, double size = 2.0) {
  kvq::CentresShape shape;
  shape.n_layers = options.n_layers;
  shape.kv_heads = options.kv_heads;
  shape.head_dim = options.head_dim;
  shape.rope = options.rope;
  shape.key_centres = counts.keys;
  shape.value_centres = counts.values;
  auto centres = std::make_shared<kvq::ModelCentres>(context->allocator, shape);
  Random random(17);
  for (auto& layer : centres->layers) {
    auto numbers = std::make_shared<kvq::LayerCentres>(context->allocator);
    for (const kvq::Side side : {kvq::Side::kKeys, kvq::Side::kValues}) {
      for (int32_t i = 0; i < shape.kv_heads * shape.centres(side) * shape.head_dim; ++i) {
        numbers->side(side).push_back(kvq::from_float16(kvq::to_float16(static_cast<float>(size * random.normal()))));
      }
    }
    layer.numbers = numbers;
  }
  return centres;
}

struct DestroyCache {
  void operator()(kvq_cache* cache) const { kvq_cache_destroy(cache); }
};
using OwnedCache = std::unique_ptr<kvq_cache, DestroyCache>;

inline OwnedCache make_centred_cache(kvq_context* context, const kvq_cache_options& options, const std::string& policy,
                                     const std::shared_ptr<const kvq::ModelCentres>& centres) {
  const Policy loaded = Policy::load(context, policy);
  const kvq::Codec& codec = kvq::gain_shape::kCodec;
  kvq::CacheTraining training;
  training.pages = centres;
  training.resident_pages = context->backend->pages().make_resident(context->allocator, codec, centres);
  return OwnedCache(
      kvq::make_owned<kvq_cache>(context->allocator, *context, options, loaded, std::move(training)).release());
}

}  // namespace kvq_test
