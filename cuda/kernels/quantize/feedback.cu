#include "kernels/quantize/quantize.h"

namespace kvq::cuda {
namespace {

using weights::kTileColumns;
using weights::kTileRows;

constexpr int32_t kThreads = kTileRows * kTileColumns;
constexpr int32_t kTogether = 64;  // columns in shared memory at a time
constexpr int32_t kFour = 4;

struct Staged {
  float4 errors[kTileRows][kTogether / kFour];
  float4 numbers[kTileRows][kTogether / kFour];
  float factors[kTogether][kTileColumns];
};

/// Loads kTogether columns of a panel from `first` on. Columns past the end are zeros, which change no sum.
__device__ void stage(const TilesToCode& tiles, int64_t panel, int32_t first, Staged& to) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t row = thread / kTileColumns;
  const int32_t four = thread % kTileColumns;
  static_assert(kTogether == kFour * kTileColumns);
  const bool exists = first + kFour * four < tiles.in;
  const int64_t at = panel + int64_t{row} * tiles.in + first + kFour * four;
  const float4 zeros = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  to.errors[row][four] = exists ? *reinterpret_cast<const float4*>(tiles.errors + at) : zeros;
  to.numbers[row][four] = exists ? *reinterpret_cast<const float4*>(tiles.numbers + at) : zeros;
  const int32_t before = first - tiles.first_tile * kTileColumns;
  for (int32_t i = row; i < kTogether; i += kTileRows) {
    to.factors[i][four] = first + i < tiles.in ? tiles.factors[int64_t{before + i} * kTileColumns + four] : 0.0F;
  }
}

/// One panel per block, one column of a row per thread: sums follow the host's order.
__global__ void __launch_bounds__(kThreads) feedback_sums_kernel(TilesToCode tiles) {
  __shared__ Staged staged;
  const int64_t panel = int64_t{blockIdx.x} * kTileRows * tiles.in;
  const auto row = static_cast<int32_t>(threadIdx.x) / kTileColumns;
  const auto column = static_cast<int32_t>(threadIdx.x) % kTileColumns;
  float of_errors = 0.0F;
  float of_numbers = 0.0F;
  for (int32_t first = (tiles.first_tile + 1) * kTileColumns; first < tiles.in; first += kTogether) {
    __syncthreads();
    stage(tiles, panel, first, staged);
    __syncthreads();
#pragma unroll 4
    for (int32_t i = 0; i < kTogether / kFour; ++i) {
      const float4 errors = staged.errors[row][i];
      const float4 numbers = staged.numbers[row][i];
      const float factors[kFour] = {staged.factors[kFour * i][column], staged.factors[kFour * i + 1][column],
                                    staged.factors[kFour * i + 2][column], staged.factors[kFour * i + 3][column]};
      of_errors += errors.x * factors[0];
      of_errors += errors.y * factors[1];
      of_errors += errors.z * factors[2];
      of_errors += errors.w * factors[3];
      of_numbers += numbers.x * factors[0];
      of_numbers += numbers.y * factors[1];
      of_numbers += numbers.z * factors[2];
      of_numbers += numbers.w * factors[3];
    }
  }
  const int64_t at = panel + int64_t{row} * tiles.in + tiles.first_tile * kTileColumns + column;
  tiles.error_sums[at] = of_errors;
  tiles.number_sums[at] = of_numbers;
}

}  // namespace

cudaError_t launch_feedback_sums(const TilesToCode& tiles, cudaStream_t stream) {
  feedback_sums_kernel<<<static_cast<uint32_t>(tiles.panels), kThreads, 0, stream>>>(tiles);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
