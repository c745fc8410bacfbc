#include "kernels/linear_inputs.cuh"

#include "kernels/warp.cuh"

#include <algorithm>
#include <cmath>

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 512;
constexpr int32_t kWarps = kThreads / kWarpLanes;
/// Inputs whose Hadamard transform a block does at a time.
constexpr int32_t kMostTogether = 8192;

/// signs · x, transformed by chunks: a block a chunk of a row. The last chunk is the rest of a row.
__global__ void __launch_bounds__(kThreads)
    rotate_kernel(InputRows rows, float* rotated, int32_t whole, int32_t chunk, float norm) {
  extern __shared__ float numbers[];
  const int64_t row = blockIdx.y;
  const int32_t first = static_cast<int32_t>(blockIdx.x) * chunk;
  const int32_t n = first < whole ? chunk : rows.in - whole;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < n; i += kThreads)
    numbers[i] = signed_input(rows, row, first + i);
  __syncthreads();
  transform<kThreads>(numbers, n, n);
  const float by = first < whole ? norm : rsqrtf(static_cast<float>(n));
  for (auto i = static_cast<int32_t>(threadIdx.x); i < n; i += kThreads) {
    rotated[row * rows.in + first + i] = numbers[i] * by;
  }
}

/// A step of transforms that are wider than a chunk.
__global__ void __launch_bounds__(kThreads)
    combine_kernel(InputRows rows, float* rotated, int32_t whole, int32_t half) {
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (2 * i >= whole) return;
  float* at = rotated + int64_t{blockIdx.y} * rows.in + i / half * 2 * half + i % half;
  const float a = at[0];
  const float b = at[half];
  at[0] = a + b;
  at[half] = a - b;
}

/// A block a row. \param rotated  null: inputs as they are.
__global__ void __launch_bounds__(kThreads) halve_kernel(InputRows rows, const float* rotated, LinearInputs to) {
  __shared__ uint32_t largest[kWarps];
  const int64_t row = blockIdx.x;
  const auto at = [&](int32_t i) {
    return rotated != nullptr ? rotated[row * rows.in + i] : signed_input(rows, row, i);
  };
  uint32_t bits = 0;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < rows.in; i += kThreads) {
    bits = max(bits, __float_as_uint(at(i)) & 0x7FFFFFFFU);
  }
  bits = __reduce_max_sync(0xFFFFFFFFU, bits);
  if (threadIdx.x % kWarpLanes == 0) largest[threadIdx.x / kWarpLanes] = bits;
  __syncthreads();
#pragma unroll
  for (int32_t i = 0; i < kWarps; ++i) bits = max(bits, largest[i]);
  const HalfScale scale(bits);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < rows.in; i += kThreads) {
    to.halves[row * rows.in + half_place(i)] = scale(at(i));
  }
  if (threadIdx.x == 0) to.scales[row] = scale.up;
}

uint32_t blocks_for(int32_t n, int32_t each) { return static_cast<uint32_t>((n + each - 1) / each); }

}  // namespace

cudaError_t launch_linear_inputs(const InputRows& rows, float* rotated, const LinearInputs& to, cudaStream_t stream) {
  const auto n = static_cast<uint32_t>(rows.rows);
  if (rows.signs != nullptr) {
    const Transforms transforms(rows.in);
    const int32_t chunk = std::min(transforms.width, kMostTogether);
    const auto chunks = static_cast<uint32_t>(transforms.whole / chunk + (transforms.whole < rows.in ? 1 : 0));
    const auto bytes = static_cast<size_t>(std::max(chunk, rows.in - transforms.whole)) * sizeof(float);
    const auto norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(transforms.width)));
    rotate_kernel<<<dim3(chunks, n), kThreads, bytes, stream>>>(rows, rotated, transforms.whole, chunk, norm);
    for (int32_t half = chunk; half < transforms.width; half *= 2) {
      combine_kernel<<<dim3(blocks_for(transforms.whole / 2, kThreads), n), kThreads, 0, stream>>>(
          rows, rotated, transforms.whole, half);
    }
  }
  halve_kernel<<<n, kThreads, 0, stream>>>(rows, rows.signs != nullptr ? rotated : nullptr, to);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
