#pragma once

#include "formats/gain_shape/trellis.h"

#include <cstdint>
#include <span>

namespace kvq::gain_shape {

/// Longest chain of a side.
inline constexpr int32_t kMaxChain = kMaxHeadDim;

// All costs are integers, so that every backend finds the same codes.
inline constexpr int32_t kFarthestTarget = 191;    // four times the root mean square
inline constexpr int32_t kFarthestDistance = 181;  // its square has 15 bits
inline constexpr int32_t kCostShift = 3;
inline constexpr int32_t kLargestCost = 1023;  // limit for a subset, relative to the best
inline constexpr int32_t kImpossible = 16383;  // cost of a forbidden start
inline constexpr int32_t kRestSteps = 16;      // interval of subtracting the least cost from all

/// A target's distance from a level.
KVQ_HOST_DEVICE constexpr int32_t distance(int32_t target, int32_t level) {
  const int32_t miss = target < level ? level - target : target - level;
  const int32_t seen = miss < kFarthestDistance ? miss : kFarthestDistance;
  return seen * seen >> kCostShift;
}

/// Codes of the closed path closest to the targets, in units of kLevelUnit to the root mean square; kNoTarget: padding.
/// Two passes: the first begins in the middle, free at both ends, and finds the register at the seam between the last
/// number and the first; the second starts and ends there. Ties go to the path with the older bit 0 and to the lower
/// level.
inline constexpr int16_t kNoTarget = 0x7FFF;
void search_trellis(int32_t bits, std::span<const int16_t> targets, std::span<uint8_t> codes);

}  // namespace kvq::gain_shape
