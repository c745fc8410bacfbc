// Merges partial outputs of blocks that shared a unit's tiles.
#include "kernels/prefill/rows.cuh"

namespace kvq::cuda {
namespace {

constexpr int32_t kWarps = 4;

/// Merges the partials of all parts into outputs, kRotatedRows rows per warp.
template <int kWidth, int kRows>
__global__ void __launch_bounds__(32 * kWarps)
    merge_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ Tiles tiles) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto index = static_cast<int32_t>(blockIdx.x);
  const Work work = work_of<kRows>(arguments, tiles, index * tiles.parts);
  const Unit& unit = work.unit;
  const int32_t rows = work.rows;
  const int32_t first_row = kRotatedRows * (static_cast<int32_t>(blockIdx.y) * kWarps + warp);
  if (work.tiles < 0 || first_row >= rows) return;
  const float* partials = tiles.partials + static_cast<size_t>(index * tiles.parts) * partial_floats(kRows, kWidth);
  RowSum seen[kRotatedRows];
  RowShares<kWidth> x = {};
#pragma unroll
  for (RowSum& each : seen) each = {minus_infinity(), 0.0F};
#pragma unroll 1
  for (int32_t part = 0; part < tiles.parts; ++part) {
    const float* from = partials + static_cast<size_t>(part) * partial_floats(kRows, kWidth);
#pragma unroll
    for (int32_t r = 0; r < kRotatedRows; ++r) {
      const int32_t row = min(first_row + r, rows - 1);
      const float2 both = __ldcg(reinterpret_cast<const float2*>(from) + row);
      if (both.x == minus_infinity()) continue;
      const float highest = fmaxf(seen[r].maximum, both.x);
      const float before = exp2_fast(seen[r].maximum - highest);
      const float weight = exp2_fast(both.x - highest);
      seen[r] = {highest, fmaf(both.y, weight, seen[r].sum * before)};
#pragma unroll
      for (int32_t i = 0; i < kWidth / 32; ++i) {
        x[r][i] = fmaf(__ldcg(from + 2 * kRows + row * kWidth + lane + 32 * i), weight, x[r][i] * before);
      }
    }
  }
  __shared__ float scratch[kWarps][kRotatedRows * kWidth];
  if (tiles.rotated_values != 0) RowRotation<kWidth>(arguments.head.values).apply(scratch[warp], x);
  write_shares<kWidth>(arguments, unit, rows, first_row, seen, x);
}

template <int kWidth>
cudaError_t launch(const AttendArguments& arguments, const Tiles& tiles, int32_t block_rows, cudaStream_t stream) {
  const auto units = static_cast<uint32_t>(tiles.row_blocks * tiles.heads);
  const dim3 blocks(units, static_cast<uint32_t>(block_rows / kRotatedRows / kWarps));
  if (block_rows == 64) {
    merge_kernel<kWidth, 64><<<blocks, 32 * kWarps, 0, stream>>>(arguments, tiles);
  } else {
    merge_kernel<kWidth, 128><<<blocks, 32 * kWarps, 0, stream>>>(arguments, tiles);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_merge(const AttendArguments& arguments, const Tiles& tiles, int32_t block_rows,
                         cudaStream_t stream) {
  switch (tiles.value_width) {
    case 64:
      return launch<64>(arguments, tiles, block_rows, stream);
    case 96:
      return launch<96>(arguments, tiles, block_rows, stream);
    case 128:
      return launch<128>(arguments, tiles, block_rows, stream);
    case 192:
      return launch<192>(arguments, tiles, block_rows, stream);
    default:
      return launch<256>(arguments, tiles, block_rows, stream);
  }
}

}  // namespace kvq::cuda
