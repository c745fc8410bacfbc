// What a policy chooses for pages with codes.
#pragma once

#include <cstdint>
#include <limits>

namespace kvq {

/// Path of attention to pages with codes. Results are equal except for rounding.
enum class AttentionPath : int32_t {
  kAuto,     // the faster of the others for the shape
  kTables,   // products of each query with all codes first, then a sum of these for each key, as in the paper
  kRebuild,  // keys rebuilt from their codes, for all queries of a KV head
};

/// Flip until no single flip helps, or only rounding errors would be gained.
inline constexpr int32_t kFlipsUnlimited = std::numeric_limits<int32_t>::max();

/// Search effort for good codes; decoding does not depend on it.
struct CodingEffort {
  int32_t beam = 1;  // candidate sums of centres kept from stage to stage of a key, 1 to KeyEncoder::kMaxBeam
  int32_t flips = kFlipsUnlimited;  // limit of bit flips in a value's code per stage
};

}  // namespace kvq
