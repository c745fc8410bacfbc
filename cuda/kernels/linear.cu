#include "kernels/linear.h"

#include "kernels/linear_tiles.cuh"
#include "kernels/tensor.cuh"
#include "kernels/warp.cuh"
#include "weights/codebook.h"

#include <array>
#include <utility>

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kWarps = kThreads / kWarpLanes;
constexpr int32_t kTileInputs = 8;  // rows of inputs that a product takes

/// A block multiplies a panel, 16 outputs, by up to 8 · kTiles rows of inputs; its warps share the columns.
template <int32_t kTiles>
struct LinearShared {
  float sums[kWarps][kTiles][4][kWarpLanes];
};

template <typename Code>
constexpr int32_t most_levels() {
  constexpr weights::Code kCode = Code::kCode;
  if constexpr (kCode.family == Family::kFloat16) {
    return 1;
  } else if constexpr (kCode.is_trellis()) {
    return 1 << weights::kMostIndexBits;
  } else {
    return 1 << kCode.window_bits();
  }
}

template <typename Code, int32_t kTiles>
__device__ __forceinline__ void add_segment(const LinearMatrix& matrix, const LinearSegment& segment,
                                            const uint16_t* inputs, int32_t rows, float (&total)[kTiles][4]) {
  __shared__ typename Code::Level levels[most_levels<Code>()];
  constexpr int32_t kDims = Code::kCode.dims();
  for (auto i = static_cast<int32_t>(threadIdx.x); i < segment.n_levels / kDims; i += kThreads) {
    levels[i] = Code::level(segment, i);
  }
  __syncthreads();
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / kWarpLanes;
  const int32_t g = lane / 4;
  const int32_t t = lane % 4;
  const uint8_t* panel = matrix.codes + int64_t{blockIdx.x} * matrix.panel_bytes + segment.begin;
  constexpr auto kTileBytes = static_cast<int32_t>(Code::kCode.tile_bytes());
  float sums[kTiles][4] = {};
#pragma unroll 2
  for (int32_t tile = warp; tile < segment.columns / weights::kTileColumns; tile += kWarps) {
    const TileOperand a = Code::decode(panel + int64_t{tile} * kTileBytes, g, t, levels, segment);
    const int32_t column = segment.first_column + tile * weights::kTileColumns;
#pragma unroll
    for (int32_t n = 0; n < kTiles; ++n) {
      const int32_t row = min(8 * n + g, rows - 1);  // what lies beyond is not stored
      uint32_t b[2];
      Code::load_inputs(inputs + int64_t{row} * matrix.in + column, t, b);
      mma(sums[n], a.of[0], a.of[1], a.of[2], a.of[3], b[0], b[1]);
    }
  }
#pragma unroll
  for (int32_t n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) total[n][i] += segment.unit * sums[n][i];
  }
}

template <Family kFamily, int32_t kQuarters, int32_t kTiles>
__global__ void __launch_bounds__(kThreads)
    linear_kernel(const __grid_constant__ LinearMatrix matrix, LinearInputs inputs, LinearOutputs outputs) {
  __shared__ LinearShared<kTiles> shared;
  const int32_t first_row = static_cast<int32_t>(blockIdx.y) * kTileInputs * kTiles;
  const int32_t rows = min(outputs.rows - first_row, kTileInputs * kTiles);
  const uint16_t* x = inputs.halves + int64_t{first_row} * matrix.in;
  float total[kTiles][4] = {};
  if constexpr (weights::Scheme{kFamily, kQuarters}.has_halves()) {
    add_segment<TileCode<kFamily, kQuarters - 1>>(matrix, matrix.segments[0], x, rows, total);
    add_segment<TileCode<kFamily, kQuarters + 1>>(matrix, matrix.segments[1], x, rows, total);
  } else {
    add_segment<TileCode<kFamily, kQuarters>>(matrix, matrix.segments[0], x, rows, total);
  }
  const auto thread = static_cast<int32_t>(threadIdx.x);
#pragma unroll
  for (int32_t n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) shared.sums[thread / kWarpLanes][n][i][thread % kWarpLanes] = total[n][i];
  }
  __syncthreads();
  constexpr int32_t kSums = kTiles * 4 * kWarpLanes;
  for (int32_t at = thread; at < kSums; at += kThreads) {
    const int32_t lane = at % kWarpLanes;
    const int32_t i = at / kWarpLanes % 4;
    const int32_t n = at / kWarpLanes / 4;
    const int32_t out = static_cast<int32_t>(blockIdx.x) * weights::kTileRows + lane / 4 + 8 * (i / 2);
    const int32_t row = kTileInputs * n + 2 * (lane % 4) + i % 2;
    if (out >= matrix.out || row >= rows) continue;
    float sum = 0.0F;
#pragma unroll
    for (int32_t warp = 0; warp < kWarps; ++warp) sum += shared.sums[warp][n][i][lane];
    sum *= inputs.scales[first_row + row];
    if (matrix.row_scales != nullptr) {
      sum *= matrix.scale * __half2float(__ushort_as_half(__ldg(matrix.row_scales + out)));
    }
    if (matrix.bias != nullptr) sum += __ldg(matrix.bias + out);
    write_float(outputs.y, outputs.dtype, int64_t{first_row + row} * matrix.out + out, sum);
  }
}

using Launch = void (*)(const LinearMatrix&, const LinearInputs&, const LinearOutputs&, cudaStream_t);

template <Family kFamily, int32_t kQuarters, int32_t kTiles>
void launch(const LinearMatrix& matrix, const LinearInputs& inputs, const LinearOutputs& outputs, cudaStream_t stream) {
  const dim3 grid(static_cast<uint32_t>((matrix.out + weights::kTileRows - 1) / weights::kTileRows),
                  static_cast<uint32_t>((outputs.rows + kTileInputs * kTiles - 1) / (kTileInputs * kTiles)));
  linear_kernel<kFamily, kQuarters, kTiles><<<grid, kThreads, 0, stream>>>(matrix, inputs, outputs);
}

/// Kernels of every scheme, in the order of weights::index_of.
template <int32_t kTiles, size_t... i>
constexpr std::array<Launch, sizeof...(i)> launches(std::index_sequence<i...> /*each*/) {
  return {launch<weights::kSchemes[i].family, weights::kSchemes[i].quarters, kTiles>...};
}

}  // namespace

cudaError_t launch_linear(const LinearMatrix& matrix, const LinearInputs& inputs, const LinearOutputs& outputs,
                          cudaStream_t stream) {
  static constexpr auto kFew = launches<1>(std::make_index_sequence<weights::kSchemeCount>());
  static constexpr auto kMany = launches<4>(std::make_index_sequence<weights::kSchemeCount>());
  const auto index = static_cast<size_t>(weights::index_of(matrix.scheme));
  (outputs.rows <= kTileInputs ? kFew : kMany)[index](matrix, inputs, outputs, stream);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
