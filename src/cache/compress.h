#pragma once

#include "cache/sequence.h"

#include <span>

namespace kvq {

/// Evict tokens by the cache's policy, with `budget` instead of the policy's if it is not 0: all layers or none. The
/// remaining tokens are written to new pages; forks keep theirs.
///
/// \param kept  [n_layers, kv_heads] receives how many tokens each head holds afterwards, or empty
void compress(Sequence& sequence, int32_t budget, std::span<int32_t> kept);

}  // namespace kvq
