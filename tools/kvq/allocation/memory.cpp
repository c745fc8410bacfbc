#include "allocation/memory.h"

#include "kvq.h"
#include "llama/model.h"
#include "terminal/output.h"

namespace cli {
namespace {

kvq_usage usage_of_layers(kvq_context* context, const CacheShape& shape, const std::string& policy, int32_t n_layers) {
  const auto loaded = kvq::Policy::load(context, policy);
  const llama::ModelConfig& config = shape.config;
  const auto options = llama::cache_options(n_layers, config.q_heads, config.kv_heads, config.head_dim);
  const kvq::Cache cache(context, options, loaded);
  return cache.predict_usage(shape.sequences, shape.tokens, shape.queries);
}

}  // namespace

kvq_usage cache_usage(kvq_context* context, const CacheShape& shape, const std::string& policy) {
  return usage_of_layers(context, shape, policy, shape.config.n_layers);
}

double layer_bytes(kvq_context* context, const CacheShape& shape, const std::string& keys, const std::string& values,
                   bool calibrates) {
  const std::string policy = std::string("{version: 1, sink: 1, calibrate: ") + (calibrates ? "first" : "none") +
                             ", keys: " + keys + ", values: " + values + "}";
  return static_cast<double>(kv_bytes(usage_of_layers(context, shape, policy, 2))) -
         static_cast<double>(kv_bytes(usage_of_layers(context, shape, policy, 1)));
}

uint64_t packed_bytes(const std::string& scheme, const llama::LinearLayer& layer) {
  return kvq::Matrix::predict_bytes(scheme, layer.out, layer.in, layer.bias ? 1 : 0);
}

uint64_t other_tensor_bytes(const llama::ModelConfig& config, int32_t bytes_of_number) {
  const auto hidden = static_cast<uint64_t>(config.hidden_size);
  const auto embedding = static_cast<uint64_t>(config.vocab_size) * hidden;
  uint64_t of_layer = 2 * hidden;
  if (config.qk_norm) of_layer += 2 * static_cast<uint64_t>(config.head_dim);
  const uint64_t numbers =
      embedding * (config.tied_embeddings ? 1 : 2) + hidden + static_cast<uint64_t>(config.n_layers) * of_layer;
  return numbers * static_cast<uint64_t>(bytes_of_number);
}

uint64_t packed_bytes(const std::string& scheme, const llama::ModelConfig& config) {
  uint64_t bytes = 0;
  for (const llama::LinearLayer& layer : llama::linear_layers(config, 0)) bytes += packed_bytes(scheme, layer);
  return bytes * static_cast<uint64_t>(config.n_layers);
}

}  // namespace cli
