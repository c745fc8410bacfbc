#pragma once

#include <cstdint>
#include <limits>

namespace kvq {

/// Flip until no single flip helps, or only rounding errors would be gained.
inline constexpr int32_t kFlipsUnlimited = std::numeric_limits<int32_t>::max();

/// Search effort for good codes; decoding does not depend on it.
struct CodingEffort {
  int32_t beam = 1;  // candidate sums of centres kept from stage to stage of a key, 1 to KeyEncoder::kMaxBeam
  int32_t flips = kFlipsUnlimited;  // limit of bit flips in a value's code per stage
};

}  // namespace kvq
