// Searches in a plan's ascending starts.
#pragma once

#include <cstdint>

namespace kvq::cuda {

/// The last of `n` starts, of which the first is 0, that is at most `x`.
__device__ __forceinline__ int32_t last_not_above(const int32_t* starts, int32_t n, int32_t x) {
  int32_t low = 0;
  int32_t high = n - 1;
#pragma unroll 1
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (__ldg(starts + middle) <= x) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace kvq::cuda
