#include "kernels/linear.h"
#include "kernels/tensor.cuh"
#include "kernels/warp.cuh"
#include "weights/rotation.h"

#include <algorithm>
#include <cmath>

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kWarps = kThreads / kWarpLanes;
/// Inputs whose Hadamard transform a block does at a time.
constexpr int32_t kMostTogether = 8192;

/// The transforms of a row: `whole` inputs in blocks of `width`, then one of the rest.
struct Transforms {
  int32_t whole;
  int32_t width;

  explicit Transforms(int32_t in) : whole(weights::rotated_together(in)), width(whole & -whole) {}
  int32_t chunk() const { return std::min(width, kMostTogether); }
};

/// signs · x, transformed by chunks: a block a chunk of a row. The last chunk is the rest of a row.
__global__ void __launch_bounds__(kThreads) rotate_kernel(InputRows rows, int32_t whole, int32_t chunk, float norm) {
  extern __shared__ float numbers[];
  const auto index = static_cast<int32_t>(blockIdx.x);
  const int64_t row = int64_t{blockIdx.y} * rows.in;
  const int32_t first = index * chunk;
  const int32_t n = first < whole ? chunk : rows.in - whole;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < n; i += kThreads) {
    const int32_t input = first + i;
    const float x = read_float(rows.x, rows.dtype, row + input);
    numbers[i] = (rows.signs[input / 8] >> (input % 8) & 1) != 0 ? -x : x;
  }
  for (int32_t half = 1; half < n; half *= 2) {
    __syncthreads();
    for (auto i = static_cast<int32_t>(threadIdx.x); i < n / 2; i += kThreads) {
      const int32_t at = i / half * 2 * half + i % half;
      const float a = numbers[at];
      const float b = numbers[at + half];
      numbers[at] = a + b;
      numbers[at + half] = a - b;
    }
  }
  __syncthreads();
  const float by = first < whole ? norm : rsqrtf(static_cast<float>(n));
  for (auto i = static_cast<int32_t>(threadIdx.x); i < n; i += kThreads)
    rows.rotated[row + first + i] = numbers[i] * by;
}

/// A step of transforms that are wider than a chunk.
__global__ void __launch_bounds__(kThreads) combine_kernel(InputRows rows, int32_t whole, int32_t half) {
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (2 * i >= whole) return;
  float* at = rows.rotated + int64_t{blockIdx.y} * rows.in + i / half * 2 * half + i % half;
  const float a = at[0];
  const float b = at[half];
  at[0] = a + b;
  at[half] = a - b;
}

/// A block a row: halves, the largest of them between 2^14 and 2^15.
__global__ void __launch_bounds__(kThreads) halve_kernel(InputRows rows) {
  __shared__ uint32_t largest[kWarps];
  const int64_t row = int64_t{blockIdx.x} * rows.in;
  const auto at = [&](int32_t i) {
    return rows.signs != nullptr ? rows.rotated[row + i] : read_float(rows.x, rows.dtype, row + i);
  };
  uint32_t bits = 0;  // of magnitudes, of which NaN's are the highest
  for (auto i = static_cast<int32_t>(threadIdx.x); i < rows.in; i += kThreads) {
    bits = max(bits, __float_as_uint(at(i)) & 0x7FFFFFFFU);
  }
  bits = __reduce_max_sync(0xFFFFFFFFU, bits);
  if (threadIdx.x % kWarpLanes == 0) largest[threadIdx.x / kWarpLanes] = bits;
  __syncthreads();
#pragma unroll
  for (int32_t i = 0; i < kWarps; ++i) bits = max(bits, largest[i]);
  const bool finite = bits < 0x7F800000U;
  constexpr int32_t kExponent = 14;
  const int32_t exponent = max(static_cast<int32_t>(bits >> 23U) - 127 - kExponent, -126);
  const float down = ldexpf(1.0F, -exponent);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < rows.in; i += kThreads) {
    rows.to.halves[row + i] = __half_as_ushort(__float2half_rn(finite ? at(i) * down : 0.0F));
  }
  if (threadIdx.x == 0) {
    rows.to.scales[blockIdx.x] = finite ? ldexpf(1.0F, exponent) : __uint_as_float(0x7FC00000U);
  }
}

uint32_t blocks_for(int32_t n, int32_t each) { return static_cast<uint32_t>((n + each - 1) / each); }

}  // namespace

cudaError_t launch_linear_inputs(const InputRows& rows, cudaStream_t stream) {
  const auto n = static_cast<uint32_t>(rows.rows);
  if (rows.signs != nullptr) {
    const Transforms transforms(rows.in);
    const int32_t chunk = transforms.chunk();
    const auto chunks = static_cast<uint32_t>(transforms.whole / chunk + (transforms.whole < rows.in ? 1 : 0));
    const auto bytes = static_cast<size_t>(std::max(chunk, rows.in - transforms.whole)) * sizeof(float);
    const auto norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(transforms.width)));
    rotate_kernel<<<dim3(chunks, n), kThreads, bytes, stream>>>(rows, transforms.whole, chunk, norm);
    for (int32_t half = chunk; half < transforms.width; half *= 2) {
      combine_kernel<<<dim3(blocks_for(transforms.whole / 2, kThreads), n), kThreads, 0, stream>>>(
          rows, transforms.whole, half);
    }
  }
  halve_kernel<<<n, kThreads, 0, stream>>>(rows);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
