// Queries in shared memory: rotated, scaled and rounded to FP16.
#pragma once

#include "kernels/attend/units.cuh"
#include "kernels/attend/visibility.cuh"
#include "kernels/device/copies.cuh"
#include "kernels/device/head_rotation.cuh"
#include "kernels/device/rope.cuh"

namespace kvq::cuda {

/// A query row in flight: stored pairs of channels lane + 32 · i, their frequencies and the query's position.
template <typename G>
struct QueryRow {
  static constexpr int32_t kPairs = G::kWidth / 64;

  uint32_t bits[kPairs][2];
  float inv_freq[kPairs];
  int32_t position;
};

/// Channel `which` of pair `pair`: RoPE pairs first, then neighbours.
__device__ __forceinline__ int32_t pair_channel(const AttendArguments& arguments, int32_t pair, int32_t which) {
  const bool half = arguments.rope_pairing == 1 && 2 * pair < arguments.rotary_dim;
  return half ? pair + which * (arguments.rotary_dim / 2) : 2 * pair + which;
}

/// Loads row `row` of the unit's `rows`; zeros if it does not exist.
template <typename G>
__device__ __forceinline__ void load_row(const Block<G>& block, const Unit& unit, int32_t rows, int32_t row,
                                         QueryRow<G>& to) {
  const AttendArguments& arguments = block.arguments;
  const bool exists = row < rows;
  const int32_t shift = element_shift(arguments.q_dtype);
  const int64_t at = row_offset(arguments.q_strides, row_place(arguments, unit, exists ? row : 0));
  const auto* elements = static_cast<const uint8_t*>(arguments.q) + (at << shift);
#pragma unroll
  for (int32_t i = 0; i < QueryRow<G>::kPairs; ++i) {
    const int32_t pair = block.lane.index + 32 * i;
    const bool inside = exists && block.geometry.has_channel(2 * pair);
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      to.bits[i][c] = read_bits(elements + (pair_channel(arguments, pair, c) << shift), arguments.q_dtype, inside);
    }
    to.inv_freq[i] = 2 * pair < arguments.rotary_dim ? __ldg(arguments.inv_freq + pair) : 0.0F;
  }
  const auto query = static_cast<int32_t>(divide(static_cast<uint32_t>(unit.first_row + row), arguments.group));
  to.position = exists ? query_position(arguments, unit, query) : 0;
}

/// Rotates a row of floats, which it overwrites, and rounds it to FP16.
template <typename G>
__device__ __forceinline__ void store_rotated(const G& geometry, const Lane& lane, float* row, __half* to) {
  constexpr int32_t kNeighbours = G::kWidth / 32;  // channels per lane
  __syncwarp();
  const int32_t block = geometry.hadamard_block();
  float x[kNeighbours];
#pragma unroll
  for (int32_t i = 0; i < kNeighbours; ++i) x[i] = row[kNeighbours * lane.index + i];
#pragma unroll
  for (int32_t d = 1; d < kNeighbours; d *= 2) {
#pragma unroll
    for (int32_t i = 0; i < kNeighbours; ++i) {
      if ((i & d) == 0 && d < block) butterfly(x[i], x[i + d]);
    }
  }
#pragma unroll
  for (int32_t d = 1; d < 32; d *= 2) {
    if (d * kNeighbours >= block) break;
#pragma unroll
    for (float& each : x) butterfly(each, lane.index, d);
  }
  const float norm = rsqrtf(static_cast<float>(block));
  if constexpr (!G::kExact) {
    const BlockMix mix(geometry.head_dim());
    if (mix.mixes()) {
#pragma unroll
      for (int32_t i = 0; i < kNeighbours; ++i) row[kNeighbours * lane.index + i] = x[i] * norm;
      __syncwarp();
#pragma unroll 1
      for (int32_t channel = lane.index; channel < G::kWidth; channel += 32) {
        to[channel] = __float2half_rn(geometry.has_channel(channel) ? mix.channel(row, channel) : 0.0F);
      }
      __syncwarp();
      return;
    }
  }
#pragma unroll
  for (int32_t i = 0; i < kNeighbours; ++i) to[kNeighbours * lane.index + i] = __float2half_rn(x[i] * norm);
  __syncwarp();
}

/// Rotates, scales and rounds the unit's queries, one row per warp; the first row has been loaded.
template <typename G>
__device__ __forceinline__ void load_queries(const Block<G>& block, const Unit& unit, int32_t rows,
                                             QueryRow<G>& loaded) {
  constexpr int32_t kPairs = QueryRow<G>::kPairs;
  const AttendArguments& arguments = block.arguments;
  const Lane& lane = block.lane;
  auto& queries = block.shared.queries;
  const LayerScales scales = scales_of(arguments, unit);
#pragma unroll 1
  for (int32_t row = lane.warp; row < G::kRows; row += lane.warps) {
    if (row != lane.warp) load_row(block, unit, rows, row, loaded);
    float2 x[kPairs];
    float largest = 0.0F;
#pragma unroll
    for (int32_t i = 0; i < kPairs; ++i) {
      const float2 pair{to_float(loaded.bits[i][0], arguments.q_dtype), to_float(loaded.bits[i][1], arguments.q_dtype)};
      const float2 rotation =
          cos_sin_fast(static_cast<double>(loaded.position) * static_cast<double>(loaded.inv_freq[i]));
      x[i] = {fmaf(pair.x, rotation.x, -(pair.y * rotation.y)), fmaf(pair.x, rotation.y, pair.y * rotation.x)};
      if (const int32_t at = lane.index + 32 * i; scales && block.geometry.has_channel(2 * at)) {
        x[i] = unscale_query(scales, unit.head, arguments.head, x[i], pair_channel(arguments, at, 0),
                             pair_channel(arguments, at, 1));
      }
      largest = fmaxf(largest, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
    }
    largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(largest)));
    // Divide by a power of two above the largest magnitude: products with a page's scales then stay within FP16.
    const int32_t exponent = min(max(static_cast<int32_t>(__float_as_uint(largest) >> 23U), 64), 250) - 126;
    const float up = __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23U);
    const float down = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23U);
    if (lane.index == 0) {
      queries.row_scale[row] = row < rows ? up * arguments.scale : 0.0F;
      queries.row_position[row] = loaded.position;
    }
    // The end of the ring holds no page yet.
    auto* scratch = reinterpret_cast<float*>(block.rings.of(lane.warp + 1)) - G::kWidth;
#pragma unroll
    for (int32_t i = 0; i < kPairs; ++i) {
      const int32_t first = pair_channel(arguments, lane.index + 32 * i, 0);
      const int32_t second = pair_channel(arguments, lane.index + 32 * i, 1);
      queries.plain[row][first] = __float2half_rn(x[i].x * down);
      queries.plain[row][second] = __float2half_rn(x[i].y * down);
      if constexpr (G::kCentre) {
        __half* pairs = shared_centres(block).queries[row];
        pairs[query_place(lane.index + 32 * i, 0)] = __float2half_rn(x[i].x * down);
        pairs[query_place(lane.index + 32 * i, 1)] = __float2half_rn(x[i].y * down);
      }
      if (arguments.hadamard_keys != 0) {
        scratch[first] = x[i].x * down;
        scratch[second] = x[i].y * down;
      }
    }
    if (arguments.hadamard_keys != 0) store_rotated(block.geometry, lane, scratch, queries.rotated[row]);
  }
  order_before_copies();
}

/// What the unit's queries, which are in shared memory, may see.
template <typename G>
__device__ __forceinline__ VisibleRange range_of(const Block<G>& block, const Unit& unit, int32_t rows) {
  const int32_t position = block.shared.queries.row_position[min(block.lane.index, rows - 1)];
  const QueryRange positions{__reduce_min_sync(kAll, position), __reduce_max_sync(kAll, position)};
  return {positions, first_masked(block.arguments, unit)};
}

}  // namespace kvq::cuda
