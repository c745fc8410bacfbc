#pragma once

#include <cstdint>
#include <string>

#include "kvq.hpp"
#include "llama/config.h"
#include "llama/linear_layers.h"

namespace cli {

/// How much is in the caches of a model.
struct CacheShape {
  const llama::ModelConfig& config;
  int32_t tokens;     // of a sequence
  int32_t sequences;
};

struct CacheUsage {
  uint64_t bytes = 0;  // of sequences that reserved their tokens and hold them
  double bits = 0.0;   // of a scalar
};

/// Of a policy as YAML.
CacheUsage cache_usage(kvq_context* context, const CacheShape& shape, const std::string& policy);

/// What one layer more adds to the caches, if pages have these formats.
double layer_bytes(kvq_context* context, const CacheShape& shape, const std::string& keys, const std::string& values);

/// Of a packed matrix, its bias included.
uint64_t packed_bytes(const std::string& scheme, const llama::LinearLayer& layer);

}  // namespace cli
