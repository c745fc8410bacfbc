#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace cli {

/// Stages of 64 codes for keys in `bits` bits a scalar, with one group a head: 11 and 21 for heads of 128.
inline int32_t key_stages(int32_t bits, int32_t head_dim) {
  constexpr double kIndexBits = 6.0;
  return std::max(static_cast<int32_t>(std::lround(bits * (head_dim / 2) / kIndexBits)), 1);
}

}  // namespace cli
