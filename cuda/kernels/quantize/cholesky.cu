#include "kernels/quantize/cholesky.h"

#include "weights/cholesky.h"

namespace kvq::cuda {
namespace {

constexpr int32_t kBlock = weights::kFactorBlock;
constexpr int32_t kThreads = 256;
constexpr int32_t kColumnThreads = 64;
constexpr int32_t kOwn = 4;  // a thread owns kOwn × kOwn sums of a product
constexpr int32_t kAcross = kBlock / kOwn;
static_assert(kAcross * kAcross == kThreads);

/// A matrix and the first row of the block being factorized.
struct Rows {
  float* u;  // [n][n]
  int32_t n;
  int32_t first;

  __device__ float* at(int32_t row, int32_t column) const { return u + int64_t{row} * n + column; }
};

/// Factorizes the block on the diagonal.
__global__ void __launch_bounds__(kThreads) diagonal_kernel(Rows rows, int32_t* failed) {
  __shared__ float block[kBlock][kBlock];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < kBlock * kBlock; i += kThreads) {
    block[i / kBlock][i % kBlock] = *rows.at(rows.first + i / kBlock, rows.first + i % kBlock);
  }
  __syncthreads();
  for (int32_t k = 0; k < kBlock; ++k) {
    const float square = block[k][k];
    __syncthreads();
    const float root = sqrtf(square);
    if (thread == 0 && !(square > 0.0F)) *failed = 1;
    if (thread >= k && thread < kBlock) block[k][thread] = thread == k ? root : block[k][thread] / root;
    __syncthreads();
    for (int32_t i = thread; i < kBlock * kBlock; i += kThreads) {
      const int32_t row = i / kBlock;
      const int32_t column = i % kBlock;
      if (row > k && column >= row) block[row][column] -= block[k][row] * block[k][column];
    }
    __syncthreads();
  }
  for (int32_t i = thread; i < kBlock * kBlock; i += kThreads) {
    *rows.at(rows.first + i / kBlock, rows.first + i % kBlock) = block[i / kBlock][i % kBlock];
  }
}

/// Solves for the columns right of the diagonal block, one per thread.
__global__ void __launch_bounds__(kColumnThreads) solve_kernel(Rows rows) {
  __shared__ float block[kBlock][kBlock];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < kBlock * kBlock; i += kColumnThreads) {
    block[i / kBlock][i % kBlock] = *rows.at(rows.first + i / kBlock, rows.first + i % kBlock);
  }
  __syncthreads();
  float* column = rows.at(rows.first, rows.first + kBlock + static_cast<int32_t>(blockIdx.x) * kColumnThreads + thread);
  float x[kBlock];
#pragma unroll
  for (int32_t i = 0; i < kBlock; ++i) x[i] = column[int64_t{i} * rows.n];
#pragma unroll
  for (int32_t k = 0; k < kBlock; ++k) {
    x[k] /= block[k][k];
#pragma unroll
    for (int32_t i = k + 1; i < kBlock; ++i) x[i] -= block[k][i] * x[k];
  }
#pragma unroll
  for (int32_t i = 0; i < kBlock; ++i) column[int64_t{i} * rows.n] = x[i];
}

/// Subtracts the products of the factorized rows from the rows below, one thread block per block of the matrix on or
/// right of the diagonal.
__global__ void __launch_bounds__(kThreads) subtract_kernel(Rows rows) {
  if (blockIdx.x < blockIdx.y) return;
  __shared__ float4 left[kBlock][kAcross];
  __shared__ float4 right[kBlock][kAcross];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t row = rows.first + kBlock * (1 + static_cast<int32_t>(blockIdx.y));
  const int32_t column = rows.first + kBlock * (1 + static_cast<int32_t>(blockIdx.x));
  for (int32_t i = thread; i < kBlock * kAcross; i += kThreads) {
    const int32_t k = rows.first + i / kAcross;
    left[i / kAcross][i % kAcross] = *reinterpret_cast<const float4*>(rows.at(k, row + kOwn * (i % kAcross)));
    right[i / kAcross][i % kAcross] = *reinterpret_cast<const float4*>(rows.at(k, column + kOwn * (i % kAcross)));
  }
  __syncthreads();
  const int32_t own_row = row + kOwn * (thread / kAcross);
  const int32_t own_column = column + kOwn * (thread % kAcross);
  float4 sums[kOwn];
#pragma unroll
  for (int32_t i = 0; i < kOwn; ++i) sums[i] = *reinterpret_cast<const float4*>(rows.at(own_row + i, own_column));
#pragma unroll 4
  for (int32_t k = 0; k < kBlock; ++k) {
    const float4 a = left[k][thread / kAcross];
    const float4 b = right[k][thread % kAcross];
    const float factors[kOwn] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int32_t i = 0; i < kOwn; ++i) {
      sums[i].x -= factors[i] * b.x;
      sums[i].y -= factors[i] * b.y;
      sums[i].z -= factors[i] * b.z;
      sums[i].w -= factors[i] * b.w;
    }
  }
#pragma unroll
  for (int32_t i = 0; i < kOwn; ++i) *reinterpret_cast<float4*>(rows.at(own_row + i, own_column)) = sums[i];
}

}  // namespace

cudaError_t launch_factorize(float* matrix, int32_t n, int32_t* failed, cudaStream_t stream) {
  for (int32_t first = 0; first < n; first += kBlock) {
    const Rows rows{matrix, n, first};
    const auto blocks = static_cast<uint32_t>((n - first) / kBlock - 1);
    diagonal_kernel<<<1, kThreads, 0, stream>>>(rows, failed);
    if (blocks == 0) break;
    solve_kernel<<<blocks, kColumnThreads, 0, stream>>>(rows);
    subtract_kernel<<<dim3(blocks, blocks), kThreads, 0, stream>>>(rows);
  }
  return cudaGetLastError();
}

}  // namespace kvq::cuda
