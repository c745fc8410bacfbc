#pragma once

#include <cstdint>
#include <string>

#include "plan/cache_bytes.h"

namespace cli {

/// Bytes of what is never packed: embeddings, an output projection of its own, norms, at so many bytes a number.
uint64_t other_tensor_bytes(const llama::ModelConfig& config, int32_t bytes_of_number = 2);

/// Of all linear layers in one scheme.
uint64_t packed_bytes(const std::string& scheme, const llama::ModelConfig& config);

/// How many tokens each of some sequences can hold within `bytes`, if pages have one format: a multiple of a page's
/// slots and at most `most`. 0: none.
int32_t most_tokens(kvq_context* context, const llama::ModelConfig& config, int32_t sequences,
                    const std::string& formats, uint64_t bytes, int32_t most);

}  // namespace cli
