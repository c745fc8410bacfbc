// Hadamard transforms in shared memory.
#pragma once

#include <cstdint>

namespace kvq::cuda {

/// A step of kRadix butterflies: numbers that are `half`, 2 · half, … apart.
template <int32_t kRadix, int32_t kThreads>
__device__ __forceinline__ void add_and_subtract(float* numbers, int32_t n, int32_t half) {
  for (auto i = static_cast<int32_t>(threadIdx.x); i < n / kRadix; i += kThreads) {
    float* first = numbers + i / half * (kRadix * half) + i % half;
    float x[kRadix];
#pragma unroll
    for (int32_t k = 0; k < kRadix; ++k) x[k] = first[k * half];
#pragma unroll
    for (int32_t apart = 1; apart < kRadix; apart *= 2) {
#pragma unroll
      for (int32_t k = 0; k < kRadix; ++k) {
        if ((k & apart) != 0) continue;
        const float a = x[k];
        const float b = x[k + apart];
        x[k] = a + b;
        x[k + apart] = a - b;
      }
    }
#pragma unroll
    for (int32_t k = 0; k < kRadix; ++k) first[k * half] = x[k];
  }
  __syncthreads();
}

/// Transforms, not normalized, of blocks of `width` of `n` numbers, both powers of two times one another; all threads
/// of a block of kThreads, which have waited for each other before and have afterwards. Sums are of the same order
/// however many steps are done at once.
template <int32_t kThreads>
__device__ __forceinline__ void transform(float* numbers, int32_t n, int32_t width) {
  int32_t half = 1;
  for (; 8 * half <= width; half *= 8) add_and_subtract<8, kThreads>(numbers, n, half);
  if (4 * half <= width) {
    add_and_subtract<4, kThreads>(numbers, n, half);
  } else if (2 * half <= width) {
    add_and_subtract<2, kThreads>(numbers, n, half);
  }
}

}  // namespace kvq::cuda
