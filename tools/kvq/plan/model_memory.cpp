#include "plan/model_memory.h"

#include "kvq.h"

namespace cli {

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

int32_t most_tokens(kvq_context* context, const llama::ModelConfig& config, int32_t sequences,
                    const std::string& formats, uint64_t bytes, int32_t most) {
  const auto fits = [&](int32_t pages) {
    const CacheShape shape{config, pages * KVQ_PAGE_SLOTS, sequences};
    return cache_usage(context, shape, formats).total_bytes <= bytes;
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
