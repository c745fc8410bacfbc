#include "plan/cache_bytes.h"

#include "terminal/output.h"

namespace cli {
namespace {

kvq_cache_options cache_options(const llama::ModelConfig& config, int32_t n_layers) {
  auto options = kvq::initialised<kvq_cache_options>();
  options.n_layers = n_layers;
  options.q_heads = config.q_heads;
  options.kv_heads = config.kv_heads;
  options.head_dim = config.head_dim;
  return options;
}

kvq_usage usage_of_layers(kvq_context* context, const CacheShape& shape, const std::string& policy, int32_t n_layers) {
  const auto loaded = kvq::Policy::load(context, policy);
  const kvq::Cache cache(context, cache_options(shape.config, n_layers), loaded);
  return cache.predict_usage(shape.sequences, shape.tokens, shape.queries);
}

}  // namespace

kvq_usage cache_usage(kvq_context* context, const CacheShape& shape, const std::string& policy) {
  return usage_of_layers(context, shape, policy, shape.config.n_layers);
}

double layer_bytes(kvq_context* context, const CacheShape& shape, const std::string& keys, const std::string& values) {
  const std::string policy = "{version: 1, sink: 1, keys: " + keys + ", values: " + values + "}";
  return static_cast<double>(kv_bytes(usage_of_layers(context, shape, policy, 2))) -
         static_cast<double>(kv_bytes(usage_of_layers(context, shape, policy, 1)));
}

uint64_t packed_bytes(const std::string& scheme, const llama::LinearLayer& layer) {
  return kvq::Matrix::predict_bytes(scheme, layer.out, layer.in, layer.bias ? 1 : 0);
}

}  // namespace cli
