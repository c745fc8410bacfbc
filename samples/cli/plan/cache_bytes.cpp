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

CacheUsage usage_of_layers(kvq_context* context, const CacheShape& shape, const std::string& policy,
                           int32_t n_layers) {
  const auto loaded = kvq::Policy::load(context, policy);
  const kvq::Cache cache(context, cache_options(shape.config, n_layers), loaded);
  kvq::Sequence sequence(cache);
  sequence.reserve(shape.tokens);
  const kvq_usage usage = sequence.usage();
  const uint64_t bytes = kv_bytes(usage) * static_cast<uint64_t>(shape.sequences);
  const double scalars = 2.0 * shape.config.head_dim * shape.config.kv_heads * n_layers * shape.tokens * shape.sequences;
  return {bytes, 8.0 * static_cast<double>(bytes) / scalars};
}

}  // namespace

CacheUsage cache_usage(kvq_context* context, const CacheShape& shape, const std::string& policy) {
  return usage_of_layers(context, shape, policy, shape.config.n_layers);
}

double layer_bytes(kvq_context* context, const CacheShape& shape, const std::string& keys,
                   const std::string& values) {
  const std::string policy = "{version: 1, sink: 1, keys: " + keys + ", values: " + values + "}";
  return static_cast<double>(usage_of_layers(context, shape, policy, 2).bytes) -
         static_cast<double>(usage_of_layers(context, shape, policy, 1).bytes);
}

uint64_t packed_bytes(const std::string& scheme, const llama::LinearLayer& layer) {
  const auto rows = static_cast<uint64_t>((layer.out + 15) / 16 * 16);
  const auto codes = static_cast<uint64_t>(qp_scheme_bits(scheme.c_str()) * static_cast<double>(rows) *
                                           static_cast<double>(layer.in) / 8.0);
  const auto out = static_cast<uint64_t>(layer.out);
  const uint64_t scales = scheme == "fp16" ? 0 : 2 * out + sizeof(float) + static_cast<uint64_t>(layer.in) / 8;
  return codes + scales + (layer.bias ? out * sizeof(float) : 0);
}

}  // namespace cli
