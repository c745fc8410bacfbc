#pragma once

#include <string>

#include "llama/model_shape.h"

namespace cli {

/// "layers=48,q_heads=32,kv_heads=8,head_dim=128": layers that are all alike, of a model whose weights are not known. A
/// UsageError that names what is missing, unknown or wrong.
llama::ModelShape parse_cache_shape(const std::string& text);

/// What parse_cache_shape() takes, for `--help`.
inline constexpr const char* kCacheShapeForm =
    "layers=N,q_heads=N,kv_heads=N,head_dim=N, and with value_dim=N, latent=1 or context=N if need be";

}  // namespace cli
