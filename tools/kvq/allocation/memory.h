#pragma once

#include "kvq.hpp"
#include "llama/config.h"

namespace cli {

struct CacheShape {
  const llama::ModelConfig& config;
  int32_t tokens;  // of a sequence
  int32_t sequences;
  int32_t queries = 0;  // tokens of each sequence in one call of attention; 0: work space does not count
};

/// Memory of caches with a policy as YAML, whose sequences reserved their tokens and hold them.
kvq_usage cache_usage(kvq_context* context, const CacheShape& shape, const std::string& policy);

/// What one layer more adds to the bytes of keys and values, if pages have these formats.
double layer_bytes(kvq_context* context, const CacheShape& shape, const std::string& keys, const std::string& values,
                   bool calibrates);
uint64_t packed_bytes(const std::string& scheme, const llama::LinearLayer& layer);

/// Bytes of what is never packed: embeddings, an output projection of its own, norms.
uint64_t other_tensor_bytes(const llama::ModelConfig& config, int32_t bytes_of_number = 2);
uint64_t packed_bytes(const std::string& scheme, const llama::ModelConfig& config);

}  // namespace cli
