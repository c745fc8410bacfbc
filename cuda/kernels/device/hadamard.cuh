// Hadamard transforms in shared memory. A gap after each 64 values keeps values a power of two apart in different
// banks.
#pragma once

#include "core/host_device.h"

#include <cstdint>

namespace kvq::cuda {

KVQ_HOST_DEVICE constexpr int32_t transform_place(int32_t i) { return i + (i >> 6) * 8; }

/// Butterflies at distances 1, 2, 4, ….
template <int32_t kRadix>
__device__ __forceinline__ void add_and_subtract(float (&x)[kRadix]) {
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
}

/// The same of values in memory, `apart` from each other.
template <int32_t kRadix>
__device__ __forceinline__ void transform_values(float* first, int32_t apart) {
  float x[kRadix];
#pragma unroll
  for (int32_t k = 0; k < kRadix; ++k) x[k] = first[k * apart];
  add_and_subtract(x);
#pragma unroll
  for (int32_t k = 0; k < kRadix; ++k) first[k * apart] = x[k];
}

/// Butterflies of `n` values at distances `half`, 2 · half, …, where `half` is 8 or a multiple of 64. All threads of a
/// block take part; ends with a barrier.
template <int32_t kRadix, int32_t kThreads>
__device__ __forceinline__ void transform_step(float* numbers, int32_t n, int32_t half) {
  const int32_t shift = __ffs(half) - 1;
  const int32_t apart = half < 64 ? half : transform_place(half);
#pragma unroll 1
  for (auto i = static_cast<int32_t>(threadIdx.x); i < n / kRadix; i += kThreads) {
    float* place = numbers + transform_place((i >> shift) * (kRadix << shift) + (i & (half - 1)));
    transform_values<kRadix>(place, apart);
  }
  __syncthreads();
}

/// Remaining steps of transforms of `width` within `n` values after steps up to blocks of `done`. The order of sums
/// does not depend on the steps per pass.
template <int32_t kThreads>
__device__ __forceinline__ void transform_from(int32_t done, float* numbers, int32_t n, int32_t width) {
#pragma unroll 1
  for (; 8 * done <= width; done *= 8) transform_step<8, kThreads>(numbers, n, done);
  if (4 * done <= width) {
    transform_step<4, kThreads>(numbers, n, done);
  } else if (2 * done <= width) {
    transform_step<2, kThreads>(numbers, n, done);
  }
}

}  // namespace kvq::cuda
