#include "kernels/linear/inputs.cuh"

#include "kernels/device/overlap.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 512;

/// Minimum inputs per block; a power of two, as widths of transforms are.
constexpr int32_t kLeastChunk = 2048;

constexpr size_t number_bytes(int32_t n) { return static_cast<size_t>(transform_place(n)) * sizeof(float); }

/// Zeros a padding row of a tile.
__device__ __forceinline__ void store_zeros(const LinearInputs& to, int32_t in, int32_t row) {
  for (int32_t i = 8 * static_cast<int32_t>(threadIdx.x); i < in; i += 8 * kThreads) {
    store(to, in, row, i, make_uint4(0, 0, 0, 0));
  }
}

/// One block per row and chunk of whole transforms; each block finds the largest magnitude of the whole row.
__global__ void __launch_bounds__(kThreads) ready_kernel(InputRows rows, LinearInputs to, int32_t chunk) {
  extern __shared__ __align__(16) float numbers[];
  __shared__ uint32_t largest;
  __shared__ uint8_t signs[kMostTransformed / 8];
  const int64_t row = blockIdx.x;
  const InputRows own{.x = static_cast<const std::byte*>(rows.x) + (row * rows.in << element_shift(rows.dtype)),
                      .dtype = rows.dtype,
                      .rows = 1,
                      .in = rows.in,
                      .signs = rows.signs};
  const int32_t first = static_cast<int32_t>(blockIdx.y) * chunk;
  if (threadIdx.x == 0) largest = 0;
  copy_signs<kThreads>(rows, signs);
  const ReadyRowMaker<kThreads> maker(own, {first, min(chunk, rows.in - first)},
                                      {numbers, &largest, rows.signs != nullptr ? signs : nullptr});
  __syncthreads();
  wait_for_earlier_kernels();
  let_next_kernel_begin();
  if (row >= rows.rows) return store_zeros(to, rows.in, static_cast<int32_t>(row));
  maker.run(to, static_cast<int32_t>(row));
}

/// First step for rows too wide for a block: signs · x, transformed in chunks, one block each. The last chunk is the
/// rest of a row.
__global__ void __launch_bounds__(kThreads)
    rotate_kernel(InputRows rows, float* rotated, int32_t whole, int32_t chunk) {
  extern __shared__ __align__(16) float numbers[];
  wait_for_earlier_kernels();
  const int32_t first = static_cast<int32_t>(blockIdx.x) * chunk;
  const int64_t row = int64_t{blockIdx.y} * rows.in + first;
  const int32_t n = first < whole ? chunk : rows.in - whole;
  for (int32_t i = 8 * static_cast<int32_t>(threadIdx.x); i < n; i += 8 * kThreads) {
    float x[8];
    read_signed(rows, rows.signs, row + i, first + i, x);
    add_and_subtract(x);
#pragma unroll
    for (int32_t k = 0; k < 8; ++k) numbers[transform_place(i) + k] = x[k];
  }
  __syncthreads();
  transform_from<kThreads>(8, numbers, n, n);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < n; i += kThreads) rotated[row + i] = numbers[transform_place(i)];
}

/// One step of transforms that are wider than a chunk.
__global__ void __launch_bounds__(kThreads)
    combine_kernel(InputRows rows, float* rotated, int32_t whole, int32_t half) {
  wait_for_earlier_kernels();
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (2 * i >= whole) return;
  float* at = rotated + int64_t{blockIdx.y} * rows.in + i / half * 2 * half + i % half;
  const float a = at[0];
  const float b = at[half];
  at[0] = a + b;
  at[half] = a - b;
}

/// Converts rows to FP16, one row per block. \param rotated  null: inputs are not rotated.
__global__ void __launch_bounds__(kThreads) to_float16_kernel(InputRows rows, const float* rotated, LinearInputs to) {
  __shared__ uint32_t largest;
  wait_for_earlier_kernels();
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  const auto number = static_cast<int32_t>(blockIdx.x);
  if (number >= rows.rows) return store_zeros(to, rows.in, number);
  const int64_t row = int64_t{number} * rows.in;
  const Transforms transforms(rows.in);
  const auto load = [&](int32_t i, float(&x)[8]) {
    if (rotated == nullptr) return read_signed(rows, rows.signs, row + i, i, x);
#pragma unroll
    for (int32_t k = 0; k < 8; ++k) x[k] = rotated[row + i + k] * transforms.norm(i);
  };
  uint32_t bits = 0;
  const int32_t first = 8 * static_cast<int32_t>(threadIdx.x);
  for (int32_t i = first; i < rows.in; i += 8 * kThreads) {
    float x[8];
    load(i, x);
    bits = max(bits, largest_magnitude(x));
  }
  atomicMax(&largest, bits);
  __syncthreads();
  const HalfScale scale(largest, 0);
  for (int32_t i = first; i < rows.in; i += 8 * kThreads) {
    float x[8];
    load(i, x);
    store(to, rows.in, number, i, scale(x, 1.0F));
  }
  if (threadIdx.x == 0) to.scales[number] = scale.up;
}

uint32_t blocks_for(int32_t n, int32_t each) { return static_cast<uint32_t>((n + each - 1) / each); }

/// Inputs of a row per block: all, or less where whole rows would leave multiprocessors idle.
int32_t chunk_of(const InputRows& rows, int32_t multiprocessors) {
  const Transforms transforms(rows.in);
  if (transforms.whole != rows.in) return rows.in;
  const int32_t chunk = std::max(transforms.width, kLeastChunk);
  const auto blocks = static_cast<int64_t>(blocks_for(rows.in, chunk)) * rows.rows;
  return blocks <= multiprocessors ? std::min(chunk, rows.in) : rows.in;
}

}  // namespace

cudaError_t prepare_linear_inputs() {
  const auto bytes = static_cast<int32_t>(number_bytes(kMostTransformed));
  const cudaError_t status = share_all_memory(ready_kernel, bytes);
  if (status != cudaSuccess) return status;
  return share_all_memory(rotate_kernel, bytes);
}

cudaError_t launch_linear_inputs(const InputRows& rows, float* rotated, const LinearInputs& to,
                                 const LinearDevice& device, cudaStream_t stream) {
  const auto n = static_cast<uint32_t>(rows.rows);
  const uint32_t all =
      to.tile_rows == 0 ? n : blocks_for(rows.rows, to.tile_rows) * static_cast<uint32_t>(to.tile_rows);
  if (rows.in <= kMostTransformed) {
    const int32_t chunk = chunk_of(rows, device.multiprocessors);
    const Launch launch{.grid = dim3(all, blocks_for(rows.in, chunk)),
                        .threads = kThreads,
                        .shared_bytes = number_bytes(chunk),
                        .overlaps = device.overlaps};
    return launch_early(launch, ready_kernel, stream, rows, to, chunk);
  }
  if (rows.signs != nullptr) {
    const Transforms transforms(rows.in);
    const int32_t chunk = std::min(transforms.width, kMostTransformed);
    const auto chunks = static_cast<uint32_t>(transforms.whole / chunk + (transforms.whole < rows.in ? 1 : 0));
    rotate_kernel<<<dim3(chunks, n), kThreads, number_bytes(std::max(chunk, rows.in - transforms.whole)), stream>>>(
        rows, rotated, transforms.whole, chunk);
    for (int32_t half = chunk; half < transforms.width; half *= 2) {
      combine_kernel<<<dim3(blocks_for(transforms.whole / 2, kThreads), n), kThreads, 0, stream>>>(
          rows, rotated, transforms.whole, half);
    }
  }
  to_float16_kernel<<<all, kThreads, 0, stream>>>(rows, rows.signs != nullptr ? rotated : nullptr, to);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
