#pragma once

#include <cstdint>
#include <limits>

namespace kvq {

/// Until no single flip helps, or rounding errors alone are left to gain.
inline constexpr int32_t kFlipsUnlimited = std::numeric_limits<int32_t>::max();

/// How long to look for good codes. Pages decode the same whatever it was.
struct CodingEffort {
  int32_t beam = 1;                 // sums of centres kept from stage to stage of a key, 1 to KeyEncoder::kMaxBeam
  int32_t flips = kFlipsUnlimited;  // of bits of a value's code, at most, each stage
};

}  // namespace kvq
