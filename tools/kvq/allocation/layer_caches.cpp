#include "allocation/layer_caches.h"

#include <algorithm>

#include "llama/model.h"
#include "options/spec.h"

namespace cli {
namespace {

/// Whether the layers of a cache that says no more than these heads are like this.
bool is_usual(const llama::LayerShape& layer, const kvq_cache_options& options) {
  return !layer.is_latent && layer.window == 0 && layer.chunk == 0 && layer.key_dim == layer.value_dim &&
         layer.value_dim == options.head_dim && layer.q_heads == options.q_heads && layer.kv_heads == options.kv_heads;
}

kvq_layer_shape shape_of(const llama::LayerShape& layer, int32_t first, int32_t n) {
  auto shape = kvq::initialised<kvq_layer_shape>();
  shape.first_layer = first;
  shape.n_layers = n;
  shape.q_heads = layer.q_heads;
  shape.kv_heads = layer.kv_heads;
  shape.key_dim = layer.key_dim;
  shape.value_dim = layer.value_dim;
  shape.values_are_key_prefix = layer.is_latent ? 1 : 0;
  shape.sliding_window = layer.window;
  shape.attention_chunk = layer.chunk;
  return shape;
}

}  // namespace

LayerCaches::LayerCaches(kvq_context* context, const std::vector<llama::LayerShape>& layers) : context_(context) {
  std::ranges::copy_if(layers, std::back_inserter(layers_), &llama::LayerShape::has_cache);
  for (int32_t i = 0; i < n_layers(); ++i) {
    const llama::LayerShape& layer = layers_[static_cast<size_t>(i)];
    if (!runs_.empty() && runs_.back().shape.has_heads_of(layer)) {
      ++runs_.back().n;
    } else {
      runs_.push_back({.shape = layer, .first = i, .n = 1});
    }
  }
}

bool LayerCaches::are_all_latent() const { return std::ranges::all_of(layers_, &llama::LayerShape::is_latent); }

std::string LayerCaches::policy(const std::string& formats) const {
  const auto [keys, values] = split_formats(formats);
  std::string text =
      "{version: 1, sink: " + std::string(formats == "fp16" ? "0" : "1") + ", keys: " + keys + ", values: " + values;
  std::string latent;
  for (const Run& run : runs_) {
    if (!run.shape.is_latent || !is_gain_shape(keys.substr(0, 3))) continue;
    const std::string last = std::to_string(run.first + run.n - 1);
    latent += (latent.empty() ? "" : ", ") + std::string("{range: [") + std::to_string(run.first) + ", " + last +
              "], keys: int8}";
  }
  return text + (latent.empty() ? "}" : ", layers: [" + latent + "]}");
}

kvq_usage LayerCaches::usage(const std::string& formats, const CacheLoad& load) const {
  const auto loaded = kvq::Policy::load(context_, policy(formats));
  const llama::LayerShape& first = layers_.front();
  auto options = llama::cache_options(n_layers(), first.q_heads, first.kv_heads, first.value_dim);
  std::vector<kvq_layer_shape> shapes;
  for (const Run& run : runs_) {
    if (!is_usual(run.shape, options)) shapes.push_back(shape_of(run.shape, run.first, run.n));
  }
  options.shapes = shapes.data();
  options.n_shapes = static_cast<int32_t>(shapes.size());
  const kvq::Cache cache(context_, options, loaded);
  return cache.predict_usage(load.sequences, load.tokens, load.queries);
}

int32_t LayerCaches::most_tokens(const std::string& formats, int32_t sequences, uint64_t bytes, int32_t most) const {
  const auto fits = [&](int32_t pages) {
    return usage(formats, {.tokens = pages * KVQ_PAGE_SLOTS, .sequences = sequences}).total_bytes <= bytes;
  };
  int32_t low = 0;
  int32_t high = most / KVQ_PAGE_SLOTS + 1;  // does not count
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low * KVQ_PAGE_SLOTS;
}

}  // namespace cli
