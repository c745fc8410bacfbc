// Inputs of products: rotated, then halves.
#pragma once

#include "kernels/hadamard.cuh"
#include "kernels/linear.h"
#include "kernels/tensor.cuh"
#include "weights/rotation.h"

#include <cuda_fp16.h>

namespace kvq::cuda {

/// The Hadamard transforms of a row: `whole` inputs in blocks of `width`, then one of the rest.
struct Transforms {
  int32_t whole;
  int32_t width;

  explicit KVQ_HOST_DEVICE Transforms(int32_t in) : whole(weights::rotated_together(in)), width(whole & -whole) {}
};

/// Before it is rotated.
__device__ __forceinline__ float signed_input(const InputRows& rows, int64_t row, int32_t i) {
  const float x = read_float(rows.x, rows.dtype, row * rows.in + i);
  return rows.signs != nullptr && (rows.signs[i / 8] >> (i % 8) & 1) != 0 ? -x : x;
}

/// How a row becomes halves, of which the largest is between 2^14 and 2^15.
struct HalfScale {
  float down;
  float up;  // NaN if the row is not finite
  bool finite;

  /// \param largest  bits of the largest magnitude, of which NaN's are the highest.
  explicit __device__ HalfScale(uint32_t largest) : finite(largest < 0x7F800000U) {
    constexpr int32_t kExponent = 14;
    const int32_t exponent = max(static_cast<int32_t>(largest >> 23U) - 127 - kExponent, -126);
    down = ldexpf(1.0F, -exponent);
    up = finite ? ldexpf(1.0F, exponent) : __uint_as_float(0x7FC00000U);
  }
  __device__ uint16_t operator()(float x) const { return __half_as_ushort(__float2half_rn(finite ? x * down : 0.0F)); }
};

/// Where input i is among the halves of its row.
__device__ __forceinline__ int32_t half_place(int32_t i) { return i - i % 8 + i % 4 * 2 + i % 8 / 4; }

}  // namespace kvq::cuda
