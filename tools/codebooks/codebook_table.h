#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

#include "core/splitmix.h"

namespace kvq::tools {

inline constexpr uint64_t kSeed = 20240925;
inline constexpr int32_t kMaxLevel = 127;

/// Standard normal number `index` of a stream.
inline double normal(uint64_t stream, uint64_t index) {
  const auto uniform = [&](uint64_t i) {
    return (static_cast<double>(splitmix64(kSeed + stream, i) >> 11U) + 0.5) * 0x1p-53;
  };
  return std::sqrt(-2.0 * std::log(uniform(2 * index))) * std::cos(2.0 * std::numbers::pi * uniform(2 * index + 1));
}

/// Levels as they are stored, and what they are worth for normal numbers.
struct Table {
  std::vector<int32_t> levels;
  double unit = 1.0;
  double error = std::numeric_limits<double>::max();
};

/// NUQ: the best levels that are multiples of the best unit.
Table scalar_table(int32_t bits);
/// VQ: the best points that are multiples of the best unit.
Table vector_table(int32_t quarters);
/// TCQ: 2^index_bits points, in a unit that lets the outermost be stored.
Table trellis_table(int32_t index_bits);
/// TCX: ascending levels above zero that normal numbers meet equally often, with tails that reach a little further,
/// which is what more than three bits want.
Table quantile_table();

}  // namespace kvq::tools
