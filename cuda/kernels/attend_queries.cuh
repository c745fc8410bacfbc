// Queries: rotated, scaled and rounded to halves in shared memory.
#pragma once

#include "kernels/attend_block.cuh"

namespace kvq::cuda {

template <int DP, bool kFull, int NT>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::rows_of(const Unit& unit) const {
  return min(kRows, sequence_of(unit).query_count * static_cast<int32_t>(a_.group.number) - unit.first_row);
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::position_in_page(const Unit& unit, const DevicePage& page,
                                                                          int32_t index, int32_t slot) const {
  if (page.has_positions == 0) return page.first_position + slot;
  const SequenceView& view = sequence_of(unit).view;
  return view.positions[(static_cast<int64_t>(unit.head) * view.capacity + index) * kSlots + slot];
}

/// Position of query `query` of the unit's sequence.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::query_position(const Unit& unit, int32_t query) const {
  if (a_.query_positions != nullptr) return a_.query_positions[sequence_of(unit).query_begin + query];
  if (sequence_of(unit).last_position >= 0) {
    return sequence_of(unit).last_position - (sequence_of(unit).query_count - 1 - query);
  }
  const SequenceView& view = sequence_of(unit).view;
  if (sequence_of(unit).query_count == 1) return view.heads[unit.head].next_position - 1;
  const DevicePage* pages = view.pages + static_cast<int64_t>(unit.head) * view.capacity;
  int32_t back = sequence_of(unit).query_count - query;
  for (int32_t i = page_count(unit) - 1; i >= 0; --i) {
    const DevicePage page = pages[i];
    if (back <= page.count) return position_in_page(unit, page, i, page.count - back);
    back -= page.count;
  }
  return 0;
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::load_row(const Unit& unit, int32_t row, QueryRow& to) const {
  const bool exists = row < rows_;
  const int32_t shift = element_shift(a_.q_dtype);
  const auto* elements = static_cast<const uint8_t*>(a_.q) + (row_offset(unit, exists ? row : 0) << shift);
#pragma unroll
  for (int32_t i = 0; i < kPairs; ++i) {
    const int32_t pair = lane_ + 32 * i;
    const bool inside = exists && (kFull || 2 * pair < a_.head_dim);
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      to.bits[i][c] = read_bits(elements + (pair_channel(pair, c) << shift), a_.q_dtype, inside);
    }
    to.inv_freq[i] = 2 * pair < a_.rotary_dim ? __ldg(a_.inv_freq + pair) : 0.0F;
  }
  const auto query = static_cast<int32_t>(divide(static_cast<uint32_t>(unit.first_row + row), a_.group));
  to.position = exists ? query_position(unit, query) : 0;
}

/// Rotate, scale and round the unit's queries, a row a warp; the first has been loaded.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::load_queries(const Unit& unit, QueryRow& loaded) {
#pragma unroll 1
  for (int32_t row = warp_; row < kRows; row += warps_) {
    if (row != warp_) load_row(unit, row, loaded);
    float2 x[kPairs];
    float largest = 0.0F;
#pragma unroll
    for (int32_t i = 0; i < kPairs; ++i) {
      const float2 pair{to_float(loaded.bits[i][0], a_.q_dtype), to_float(loaded.bits[i][1], a_.q_dtype)};
      const float2 turn = cos_sin_fast(static_cast<double>(loaded.position) * static_cast<double>(loaded.inv_freq[i]));
      x[i] = {pair.x * turn.x - pair.y * turn.y, pair.x * turn.y + pair.y * turn.x};
      largest = fmaxf(largest, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
    }
    largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(largest)));
    // A power of two above the largest magnitude, so that queries times a page's scales stay within FP16.
    const int32_t exponent = min(max(static_cast<int32_t>(__float_as_uint(largest) >> 23U), 64), 250) - 126;
    const float up = __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23U);
    const float down = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23U);
    if (lane_ == 0) {
      s_.row_scale[row] = row < rows_ ? up * a_.scale : 0.0F;
      s_.row_position[row] = loaded.position;
    }
    // The end of the ring holds no page yet.
    auto* scratch = reinterpret_cast<float*>(rings_ + (warp_ + 1) * a_.ring_bytes) - DP;
#pragma unroll
    for (int32_t i = 0; i < kPairs; ++i) {
      const int32_t first = pair_channel(lane_ + 32 * i, 0);
      const int32_t second = pair_channel(lane_ + 32 * i, 1);
      s_.plain[row][first] = __float2half_rn(x[i].x * down);
      s_.plain[row][second] = __float2half_rn(x[i].y * down);
      if (a_.hadamard_keys != 0) {
        scratch[first] = x[i].x * down;
        scratch[second] = x[i].y * down;
      }
    }
    if (a_.hadamard_keys != 0) store_rotated(scratch, s_.rotated[row]);
  }
  order_before_copies();
}

/// The Hadamard rotation of a row of floats, as halves.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::store_rotated(const float* row, __half* to) const {
  __syncwarp();
  const int32_t block = hadamard_block();
  float x[kNeighbours];
#pragma unroll
  for (int32_t i = 0; i < kNeighbours; ++i) x[i] = row[kNeighbours * lane_ + i];
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
    for (float& each : x) butterfly(each, lane_, d);
  }
  const float norm = rsqrtf(static_cast<float>(block));
#pragma unroll
  for (int32_t i = 0; i < kNeighbours; ++i) to[kNeighbours * lane_ + i] = __float2half_rn(x[i] * norm);
  __syncwarp();
}

/// Channel `which` of pair `pair`: rotated pairs first, then neighbours.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::pair_channel(int32_t pair, int32_t which) const {
  const bool half = a_.rope_pairing == 1 && 2 * pair < a_.rotary_dim;
  return half ? pair + which * (a_.rotary_dim / 2) : 2 * pair + which;
}

}  // namespace kvq::cuda
