// Products of matrices whose elements are computed as they are read, for training. The order of sums depends on the
// sizes alone.
//
// An operand is a function of a line (a row of the left one, a column of the right one) and of the depth that is summed
// over. kAlongDepth: neighbours in memory are neighbours in depth, otherwise neighbouring lines.
#pragma once

#include "kernels/train/sum_parts.h"

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

inline constexpr int32_t kTileDepth = 16;
inline constexpr int32_t kTileSquare = 4;
inline constexpr int32_t kTileSide = kTile / kTileSquare;
inline constexpr int32_t kTileThreads = kTileSide * kTileSide;

/// Operands of a block in shared memory; four extra floats per row keep rows aligned and in different banks.
struct alignas(16) TileMemory {
  float left[kTileDepth][kTile + 4];
  float right[kTileDepth][kTile + 4];
};

/// data[line · stride + depth]
struct Rows {
  static constexpr bool kAlongDepth = true;
  const float* data;
  int32_t stride;

  __device__ float operator()(int32_t line, int32_t depth) const { return data[int64_t{line} * stride + depth]; }
};

/// data[depth · stride + line]
struct Columns {
  static constexpr bool kAlongDepth = false;
  const float* data;
  int32_t stride;

  __device__ float operator()(int32_t line, int32_t depth) const { return data[int64_t{depth} * stride + line]; }
};

/// Stores products to data[row · stride + column].
struct Store {
  float* data;
  int32_t stride;

  __device__ void operator()(int32_t row, int32_t column, float sum) const {
    data[int64_t{row} * stride + column] = sum;
  }
};

template <typename Operand>
__device__ void load_tile(const Operand& operand, int32_t first, int32_t lines, int32_t begin, int32_t end,
                          float (&tile)[kTileDepth][kTile + 4]) {
#pragma unroll
  for (int32_t j = 0; j < kTile * kTileDepth / kTileThreads; ++j) {
    const int32_t i = static_cast<int32_t>(threadIdx.x) + j * kTileThreads;
    const int32_t line = Operand::kAlongDepth ? i / kTileDepth : i % kTile;
    const int32_t depth = Operand::kAlongDepth ? i % kTileDepth : i / kTile;
    const bool inside = first + line < lines && begin + depth < end;
    tile[depth][line] = inside ? operand(first + line, begin + depth) : 0.0F;
  }
}

/// Adds the products of depths [begin, end) to the thread's sums, of rows from first_row + kTileSquare · (thread /
/// kTileSide) on and columns from first_column + kTileSquare · (thread % kTileSide) on.
template <typename Left, typename Right>
__device__ void add_products(const Left& left, const Right& right, int32_t first_row, int32_t rows,
                             int32_t first_column, int32_t columns, int32_t begin, int32_t end, TileMemory& memory,
                             float (&sums)[kTileSquare][kTileSquare]) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t row = kTileSquare * (thread / kTileSide);
  const int32_t column = kTileSquare * (thread % kTileSide);
  for (int32_t at = begin; at < end; at += kTileDepth) {
    load_tile(left, first_row, rows, at, end, memory.left);
    load_tile(right, first_column, columns, at, end, memory.right);
    __syncthreads();
#pragma unroll
    for (int32_t depth = 0; depth < kTileDepth; ++depth) {
      const float4 x = *reinterpret_cast<const float4*>(&memory.left[depth][row]);
      const float4 y = *reinterpret_cast<const float4*>(&memory.right[depth][column]);
      const float of_row[kTileSquare] = {x.x, x.y, x.z, x.w};
      const float of_column[kTileSquare] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int32_t i = 0; i < kTileSquare; ++i) {
#pragma unroll
        for (int32_t j = 0; j < kTileSquare; ++j) sums[i][j] = fmaf(of_row[i], of_column[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
}

/// Calls use(row, column, sum) for each of the thread's sums inside the matrix.
template <typename Sum, typename Use>
__device__ void for_each_sum(const Sum (&sums)[kTileSquare][kTileSquare], int32_t first_row, int32_t rows,
                             int32_t first_column, int32_t columns, const Use& use) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t row = first_row + kTileSquare * (thread / kTileSide);
  const int32_t column = first_column + kTileSquare * (thread % kTileSide);
#pragma unroll
  for (int32_t i = 0; i < kTileSquare; ++i) {
#pragma unroll
    for (int32_t j = 0; j < kTileSquare; ++j) {
      if (row + i < rows && column + j < columns) use(row + i, column + j, sums[i][j]);
    }
  }
}

template <typename Left, typename Right, typename Use>
__global__ void __launch_bounds__(kTileThreads)
    multiply_kernel(Left left, Right right, int32_t rows, int32_t columns, int32_t depth, Use use) {
  __shared__ TileMemory memory;
  const int32_t first_row = static_cast<int32_t>(blockIdx.x) * kTile;
  const int32_t first_column = static_cast<int32_t>(blockIdx.y) * kTile;
  float sums[kTileSquare][kTileSquare] = {};
  add_products(left, right, first_row, rows, first_column, columns, 0, depth, memory, sums);
  for_each_sum(sums, first_row, rows, first_column, columns, use);
}

/// Calls use(row, column, Σ over depth of left(row, depth) · right(column, depth)) for all rows and columns, at most 4
/// million columns.
template <typename Left, typename Right, typename Use>
cudaError_t multiply(const Left& left, const Right& right, int32_t rows, int32_t columns, int32_t depth, const Use& use,
                     cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>(tiles(rows)), static_cast<uint32_t>(tiles(columns)));
  multiply_kernel<Left, Right, Use><<<grid, kTileThreads, 0, stream>>>(left, right, rows, columns, depth, use);
  return cudaGetLastError();
}

// Sums over many tokens, in double.

/// Computes one part's sums; kLower: only tiles on and below the diagonal, zeros elsewhere.
template <bool kLower, typename Left, typename Right>
__global__ void __launch_bounds__(kTileThreads)
    sum_products_kernel(Left left, Right right, int32_t rows, int32_t columns, int32_t depth, int32_t part_tokens,
                        double* parts) {
  __shared__ TileMemory memory;
  const int32_t first_row = static_cast<int32_t>(blockIdx.x) * kTile;
  const int32_t first_column = static_cast<int32_t>(blockIdx.y) * kTile;
  const int32_t begin = static_cast<int32_t>(blockIdx.z) * part_tokens;
  int32_t end = min(begin + part_tokens, depth);
  if (kLower && first_column > first_row) end = begin;
  double totals[kTileSquare][kTileSquare] = {};
  for (int32_t at = begin; at < end; at += kSumChunk) {
    float sums[kTileSquare][kTileSquare] = {};
    add_products(left, right, first_row, rows, first_column, columns, at, min(at + kSumChunk, end), memory, sums);
#pragma unroll
    for (int32_t i = 0; i < kTileSquare; ++i) {
#pragma unroll
      for (int32_t j = 0; j < kTileSquare; ++j) totals[i][j] += static_cast<double>(sums[i][j]);
    }
  }
  double* part = parts + static_cast<int64_t>(blockIdx.z) * rows * columns;
  for_each_sum(totals, first_row, rows, first_column, columns,
               [&](int32_t row, int32_t column, double sum) { part[int64_t{row} * columns + column] = sum; });
}

/// sums[i] = Σ of parts, in order.
cudaError_t launch_add_parts(const double* parts, int32_t count, int64_t n, double* sums, cudaStream_t stream);

/// sums[row][column] = Σ over depth of left(row, depth) · right(column, depth). `parts` has room for SumParts::count
/// times as many; it may be `sums` itself if that is 1.
template <bool kLower, typename Left, typename Right>
cudaError_t sum_products(const Left& left, const Right& right, int32_t rows, int32_t columns, int32_t depth,
                         double* parts, double* sums, cudaStream_t stream) {
  const SumParts split(rows, columns, depth);
  const dim3 grid(static_cast<uint32_t>(tiles(rows)), static_cast<uint32_t>(tiles(columns)),
                  static_cast<uint32_t>(split.count));
  sum_products_kernel<kLower, Left, Right>
      <<<grid, kTileThreads, 0, stream>>>(left, right, rows, columns, depth, split.tokens, parts);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess || parts == sums) return status;
  return launch_add_parts(parts, split.count, int64_t{rows} * columns, sums, stream);
}

}  // namespace kvq::cuda
