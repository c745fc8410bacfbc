// Inputs of products, rotated and converted to FP16.
#pragma once

#include "kernels/device/hadamard.cuh"
#include "kernels/device/tensor.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/linear/linear.h"
#include "weights/rotation.h"

#include <cuda_fp16.h>

namespace kvq::cuda {

/// Hadamard transforms of a row: `whole` inputs in blocks of `width`, then one of the remaining 64.
struct Transforms {
  static constexpr int32_t kRest = 64;
  int32_t whole;
  int32_t width;

  explicit KVQ_HOST_DEVICE Transforms(int32_t in) : whole(weights::rotated_together(in)), width(whole & -whole) {}
  /// Maximum growth of magnitudes as a power of two: the square root of the width.
  __device__ int32_t growth() const { return (33 - __clz(max(width, kRest) - 1)) / 2; }
  __device__ float norm(int32_t i) const { return rsqrtf(static_cast<float>(i < whole ? width : kRest)); }
};

/// Reads eight neighbours of an input row and applies the rotation's signs.
__device__ __forceinline__ void read_signed(const InputRows& rows, const uint8_t* signs, int64_t index, int32_t column,
                                            float (&x)[8]) {
  read_eight(rows.x, rows.dtype, reinterpret_cast<uintptr_t>(rows.x) % 16 == 0, index, x);
  if (signs == nullptr) return;
  const uint32_t negative = signs[column / 8];
#pragma unroll
  for (int32_t k = 0; k < 8; ++k) {
    x[k] = __uint_as_float(__float_as_uint(x[k]) ^ (negative << static_cast<uint32_t>(31 - k) & 0x80000000U));
  }
}

/// Bits of a magnitude, as integers ordered like it with NaN above all.
__device__ __forceinline__ uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFU; }
__device__ __forceinline__ uint32_t largest_magnitude(const float (&x)[8]) {
  uint32_t largest = 0;
#pragma unroll
  for (int32_t k = 0; k < 8; ++k) largest = max(largest, magnitude(x[k]));
  return largest;
}

/// Maximum over eight adjacent lanes, which hold inputs of one row.
__device__ __forceinline__ uint32_t largest_of_eight_lanes(uint32_t number) {
  const uint32_t lanes = 0xFFU << (threadIdx.x % kWarpLanes / 8 * 8);
#pragma unroll
  for (int32_t distance = 4; distance > 0; distance /= 2)
    number = max(number, __shfl_xor_sync(lanes, number, distance));
  return number;
}

/// Scales a row to FP16 values below 2^15. \param largest  magnitude before the transform, which enlarges values by up
/// to 2^growth.
struct HalfScale {
  float down;
  float up;  // NaN if the row is not finite
  bool finite;

  explicit __device__ HalfScale(uint32_t largest, int32_t growth) : finite(largest < 0x7F800000U) {
    const int32_t exponent = max(static_cast<int32_t>(largest >> 23U) - 127 - 14 + growth, -126);
    down = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23U);
    up = finite ? __uint_as_float(static_cast<uint32_t>(max(127 + exponent, 1)) << 23U) : __uint_as_float(0x7FC00000U);
  }
  /// Converts eight neighbours to FP16 in the order of LinearInputs.
  __device__ __forceinline__ uint4 operator()(const float (&x)[8], float norm) const {
    const float factor = down * norm;
    const auto half = [&](float number) {
      return static_cast<uint32_t>(__half_as_ushort(__float2half_rn(finite ? number * factor : 0.0F)));
    };
    const auto pair = [&](int32_t i) { return half(x[i]) | half(x[i + 4]) << 16U; };
    return make_uint4(pair(0), pair(1), pair(2), pair(3));
  }
};

/// Stores eight neighbours of a row.
__device__ __forceinline__ void store(const LinearInputs& to, int32_t in, int32_t row, int32_t column,
                                      const uint4& halves) {
  if (to.tile_rows == 0) {
    *reinterpret_cast<uint4*>(to.halves + int64_t{row} * in + column) = halves;
    return;
  }
  const int32_t tile = row / to.tile_rows;
  const int32_t of_tile = row - tile * to.tile_rows;
  const int64_t plane = int64_t{tile} * (in / kPlaneInputs) + column / kPlaneInputs;
  uint16_t* at = to.halves + (plane * to.tile_rows + of_tile) * kPlaneInputs + column / 8 % 4 * 2;
  const uint32_t pairs[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t chunk = (column % kPlaneInputs / 32 * 4 + i) ^ (of_tile % 8);
    *reinterpret_cast<uint32_t*>(at + chunk * 8) = pairs[i];
  }
}

/// Copies the signs with all threads of a block.
template <int32_t kThreads>
__device__ __forceinline__ void copy_signs(const InputRows& rows, uint8_t* to) {
  if (rows.signs == nullptr) return;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < rows.in / 8; i += kThreads) to[i] = __ldg(rows.signs + i);
}

/// Shared memory for preparing a row.
struct ReadyShared {
  float* numbers;        // [transform_place(inputs of the chunk)]
  uint32_t* largest;     // must be zero
  const uint8_t* signs;  // null: the row is not rotated
};

/// Inputs of a row that a block prepares: all, or some whole transforms.
struct RowChunk {
  int32_t first;
  int32_t n;
};

/// Prepares a row's inputs. Loops are not unrolled: fetching instructions takes longer than executing them.
template <int32_t kThreads>
class ReadyRowMaker {
 public:
  /// Reads nothing that earlier kernels write. \param row  a single row.
  __device__ __forceinline__ ReadyRowMaker(const InputRows& row, const RowChunk& chunk, const ReadyShared& shared)
      : row_(row),
        chunk_(chunk),
        shared_(shared),
        transforms_(row.in),
        growth_(shared.signs != nullptr ? transforms_.growth() : 0),
        norm_(shared.signs != nullptr ? transforms_.norm(0) : 1.0F) {}

  /// Called by all threads of a block, after a barrier; ends with a barrier. \param row  index of the row in `to`.
  __device__ __forceinline__ void run(const LinearInputs& to, int32_t row) const {
    const int32_t first = 8 * static_cast<int32_t>(threadIdx.x);
#pragma unroll 1
    for (int32_t i = first; i < row_.in; i += 16 * kThreads) {  // two loads in flight, because latency dominates
      const int32_t next = i + 8 * kThreads;
      float x[8];
      float y[8];
      read_signed(row_, shared_.signs, i, i, x);
      if (next < row_.in) read_signed(row_, shared_.signs, next, next, y);
      keep(i, x);
      if (next < row_.in) keep(next, y);
    }
    __syncthreads();
    if (shared_.signs != nullptr) transform();
#pragma unroll 1
    for (int32_t i = first; i < chunk_.n; i += 8 * kThreads) round(i, to, row);
    __syncthreads();
  }

 private:
  /// \param i  within the chunk.
  __device__ __forceinline__ float4* place_of(int32_t i) const {
    return reinterpret_cast<float4*>(shared_.numbers + transform_place(i));
  }

  /// Updates the largest magnitude with every input, and keeps those of the chunk.
  __device__ __forceinline__ void keep(int32_t column, float (&x)[8]) const {
    const uint32_t largest = largest_of_eight_lanes(largest_magnitude(x));
    if (threadIdx.x % 8 == 0) atomicMax(shared_.largest, largest);
    const int32_t i = column - chunk_.first;
    if (static_cast<uint32_t>(i) >= static_cast<uint32_t>(chunk_.n)) return;
    if (shared_.signs != nullptr) add_and_subtract(x);
    place_of(i)[0] = make_float4(x[0], x[1], x[2], x[3]);
    place_of(i)[1] = make_float4(x[4], x[5], x[6], x[7]);
  }

  __device__ __forceinline__ void transform() const {
    if (transforms_.whole == row_.in) {
      return transform_from<kThreads>(8, shared_.numbers, chunk_.n, transforms_.width);
    }
    transform_step<8, kThreads>(shared_.numbers, row_.in, 8);
    transform_from<kThreads>(64, shared_.numbers, transforms_.whole, transforms_.width);
  }

  __device__ __forceinline__ void round(int32_t i, const LinearInputs& to, int32_t row) const {
    const int32_t column = chunk_.first + i;
    const HalfScale scale(*shared_.largest, growth_);
    const float4 a = place_of(i)[0];
    const float4 b = place_of(i)[1];
    const float x[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    const bool whole = shared_.signs == nullptr || column < transforms_.whole;
    store(to, row_.in, row, column, scale(x, whole ? norm_ : transforms_.norm(column)));
    if (column == 0) to.scales[row] = scale.up;
  }

  InputRows row_;
  RowChunk chunk_;
  ReadyShared shared_;
  Transforms transforms_;
  int32_t growth_;
  float norm_;
};

}  // namespace kvq::cuda
