// Warp reductions.
#pragma once

#include <cstdint>

namespace kvq::cuda {

inline constexpr int32_t kWarpLanes = 32;

/// Returns the same sum in every lane, in a fixed order.
template <typename Number>
__device__ Number sum_of_lanes(Number number) {
#pragma unroll
  for (int32_t distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    number += __shfl_xor_sync(0xFFFFFFFFU, number, distance);
  }
  return number;
}

__device__ inline float largest_of_lanes(float number) {
#pragma unroll
  for (int32_t distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    number = fmaxf(number, __shfl_xor_sync(0xFFFFFFFFU, number, distance));
  }
  return number;
}

/// A value and its place, ordered by value, then by place.
struct Placed {
  float number;
  int32_t place;
};

__device__ inline bool comes_before(const Placed& a, const Placed& b) {
  return a.number < b.number || (a.number == b.number && a.place < b.place);
}

__device__ inline Placed first_of_lanes(Placed mine) {
#pragma unroll
  for (int32_t distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    const Placed other{__shfl_xor_sync(0xFFFFFFFFU, mine.number, distance),
                       __shfl_xor_sync(0xFFFFFFFFU, mine.place, distance)};
    if (comes_before(other, mine)) mine = other;
  }
  return mine;
}

}  // namespace kvq::cuda
