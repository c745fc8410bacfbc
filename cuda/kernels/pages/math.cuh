// Arithmetic of the attention kernel in few instructions.
#pragma once

#include "kernels/pages/geometry.cuh"

namespace kvq::cuda {

__device__ inline float minus_infinity() { return __int_as_float(static_cast<int>(0xFF800000U)); }

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// For normal numbers.
__device__ inline float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// Keeps the compiler from hoisting computations with `x` out of loops, once for every page format.
__device__ inline int32_t opaque(int32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// One step of a Hadamard rotation.
__device__ inline void butterfly(float& a, float& b) {
  const float sum = a + b;
  b = a - b;
  a = sum;
}

/// One step of a Hadamard rotation across lanes `distance` apart.
__device__ inline void butterfly(float& x, int32_t lane, int32_t distance) {
  const float other = __shfl_xor_sync(kAll, x, distance);
  x = (lane & distance) != 0 ? other - x : x + other;
}

__device__ inline uint32_t divide(uint32_t x, const Divisor& by) { return __umulhi(2 * x, by.reciprocal); }

}  // namespace kvq::cuda
