// Queries of a block whose warps divide the channels of a head.
#pragma once

#include "kernels/wide/queries.cuh"
#include "kernels/wide/slices.cuh"

namespace kvq::cuda {

/// Sums rows of common channels over blocks, with the rounding that products see.
template <typename S>
__device__ __forceinline__ void sum_common(const SliceBlock<S>& block, const __half* halves, int32_t stride) {
  const int32_t sums = S::kRows * (stride / 32);
#pragma unroll 1
  for (auto i = static_cast<int32_t>(threadIdx.x); i < sums; i += S::kThreads) {
    const auto* chunks = reinterpret_cast<const uint4*>(halves + i % S::kRows * stride + i / S::kRows * 32);
    float sum = 0.0F;
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      uint32_t pairs[4];
      to_array(chunks[j], pairs);
#pragma unroll
      for (const uint32_t pair : pairs) {
        const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pair));
        sum += two.x + two.y;
      }
    }
    block.header().common_sums[i / S::kRows][i % S::kRows] = sum;
  }
}

/// Loads the block's queries to rows of FP16, with the rotations that pages have. `sums`: of common channels as well.
/// The ring is empty. Ends with a barrier.
template <typename S>
__device__ __forceinline__ void load_slice_queries(const SliceBlock<S>& block, bool turned_keys, bool turned_common,
                                                   bool sums) {
  constexpr int32_t kMine = S::kReadRows;
  const HeadShape head = block.arguments.head;
  const SliceQueries at = SliceQueries::of<S>(head);
  SliceHeader<S>& header = block.header();
  const QueryBlock queries{block.arguments,     block.unit,       block.rows,     block.lane,
                           header.row_position, header.row_scale, header.row_bias};
  auto* common = reinterpret_cast<__half*>(block.memory + at.common);
  auto* keys = reinterpret_cast<__half*>(block.memory + (S::kLatent ? block.at.key_rows : at.keys));
  auto* mine = reinterpret_cast<float*>(block.memory) + block.lane.warp * query_floats<kMine>(head);
  load_query_rows_of<kMine>(queries, kMine * block.lane.warp, turned_keys, turned_common,
                            {at.common_stride - 8, at.key_stride - 8}, mine,
                            [&](bool is_common, int32_t row, int32_t channel, float x) {
                              __half* to = is_common ? common + row * at.common_stride : keys + row * at.key_stride;
                              to[channel] = __float2half_rn(x);
                            });
  __syncthreads();
  if (!S::kLatent || !sums) return;
  sum_common(block, common, at.common_stride);
  __syncthreads();
}

}  // namespace kvq::cuda
