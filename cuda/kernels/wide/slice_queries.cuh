// Queries of a block whose warps divide the channels of a head. Loops are short: instructions that run once come from
// memory.
#pragma once

#include "kernels/wide/channels.cuh"
#include "kernels/wide/slices.cuh"

namespace kvq::cuda {

/// Rows that a warp reads.
template <typename S>
inline constexpr int32_t kReadRows = S::kRows / S::kWarps;

/// What a warp sums over its rows.
template <typename S>
struct ReadSums {
  float squares[kReadRows<S>] = {};
  float of_offsets[kReadRows<S>] = {};  // products with offsets of a latent's common channels
};

/// Reads a warp's rows of the key side, or of a latent's common channels, as keys meet them: turned to their positions
/// and in the scale of what pages hold.
template <bool kCommon, typename S>
__device__ __forceinline__ void read_slice_rows(const SliceBlock<S>& block, const FloatRows& rows, ReadSums<S>& sums) {
  constexpr int32_t kMine = kReadRows<S>;
  constexpr int32_t kAtOnce = kCommon ? 4 : 2;  // loads of a row in flight
  const AttendArguments& arguments = block.arguments;
  const HeadShape head = arguments.head;
  const LayerScales scales = scales_of(arguments, block.unit);
  const float* factors = scales.find(kCommon ? ScaleArray::kOutputs : ScaleArray::kQueries, block.unit.head, head);
  const float* offsets = kCommon ? scales.find(ScaleArray::kOffsets, block.unit.head, head) : nullptr;
  const int32_t before = kCommon || !head.is_latent ? 0 : head.values;
  const int32_t dtype = arguments.q_dtype;
  const int32_t shift = element_shift(dtype);
  const int32_t first_row = kMine * block.lane.warp;
  const uint8_t* elements[kMine];
#pragma unroll
  for (int32_t r = 0; r < kMine; ++r) {
    const RowPlace place = row_place(arguments, block.unit, min(first_row + r, block.rows - 1));
    elements[r] =
        static_cast<const uint8_t*>(arguments.q) + ((row_offset(arguments.q_strides, place) + before) << shift);
  }
#pragma unroll 1
  for (int32_t first = block.lane.index; first < rows.dim(); first += 32 * kAtOnce) {
    uint32_t bits[kAtOnce][kMine];
    uint32_t others[kAtOnce][kMine];
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      const int32_t channel = first + 32 * i;
      const Turn turn = kCommon ? Turn{} : turn_of(arguments, channel);
#pragma unroll
      for (int32_t r = 0; r < kMine; ++r) {
        const bool exists = first_row + r < block.rows && channel < rows.dim();
        bits[i][r] = read_bits(elements[r] + (channel << shift), dtype, exists);
        if (!kCommon) others[i][r] = read_bits(elements[r] + (turn.partner << shift), dtype, turn.turns && exists);
      }
    }
#pragma unroll
    for (int32_t i = 0; i < kAtOnce; ++i) {
      const int32_t channel = first + 32 * i;
      if (channel >= rows.dim()) break;
      const Turn turn = kCommon ? Turn{} : turn_of(arguments, channel);
      const float inv_freq = turn.turns ? __ldg(arguments.inv_freq + turn.pair) : 0.0F;
      const float factor = factors != nullptr ? __ldg(factors + channel) : 1.0F;
      const float offset = offsets != nullptr ? __ldg(offsets + channel) : 0.0F;
#pragma unroll
      for (int32_t r = 0; r < kMine; ++r) {
        float x = to_float(bits[i][r], dtype);
        if (turn.turns) {
          const int32_t position = block.header().row_position[first_row + r];
          const float2 rotation = cos_sin_fast(static_cast<double>(position) * static_cast<double>(inv_freq));
          x = fmaf(x, rotation.x, turn.sign * to_float(others[i][r], dtype) * rotation.y);
        }
        sums.of_offsets[r] = fmaf(x, offset, sums.of_offsets[r]);
        x *= factor;
        sums.squares[r] = fmaf(x, x, sums.squares[r]);
        rows.row(first_row + r)[transform_place(channel)] = x;
      }
    }
  }
}

/// Scales of a warp's rows.
template <typename S>
__device__ __forceinline__ void scale_slice_rows(const SliceBlock<S>& block, const ReadSums<S>& sums) {
  constexpr int32_t kMine = kReadRows<S>;
  const int32_t first_row = kMine * block.lane.warp;
#pragma unroll
  for (int32_t r = 0; r < kMine; ++r) {
    // No rotation makes a channel larger than the row's norm, which becomes less than 8.
    const float norm = sqrtf(sum_of_lanes(sums.squares[r]));
    const float of_row = sum_of_lanes(sums.of_offsets[r]);
    const int32_t exponent = min(max(static_cast<int32_t>(__float_as_uint(norm) >> 23U), 64), 250) - 129;
    if (block.lane.index != 0) continue;
    const int32_t row = first_row + r;
    block.header().row_down[row] = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23U);
    block.header().row_scale[row] =
        __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23U) * block.arguments.scale;
    block.header().row_bias[row] = of_row * block.arguments.scale;
  }
}

/// Rounds rows to FP16, `turned` or not, zeros behind their channels. `stride`: of FP16 rows.
template <typename S>
__device__ __forceinline__ void round_rows(const SliceBlock<S>& block, const FloatRows& rows, bool turned,
                                           __half* halves, int32_t stride) {
#pragma unroll 1
  for (int32_t i = block.lane.warp; i < S::kRows; i += S::kWarps) {
    const float down = block.header().row_down[i];
    __half* row = halves + i * stride;
    deliver_row(rows.row(i), rows.mix, turned, block.lane,
                [row, down](int32_t channel, float x) { row[channel] = __float2half_rn(x * down); });
    for (int32_t channel = rows.dim() + block.lane.index; channel < stride - 8; channel += 32) {
      row[channel] = __float2half_rn(0.0F);
    }
  }
}

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
  const HeadShape head = block.arguments.head;
  const SliceQueries at = SliceQueries::of<S>(head);
  const FloatRows common(block.memory, head.values);
  const FloatRows keys(block.memory + at.keys, head.keys);
  ReadSums<S> of_rows;
  if constexpr (S::kLatent) read_slice_rows<true>(block, common, of_rows);
  read_slice_rows<false>(block, keys, of_rows);
  scale_slice_rows(block, of_rows);
  __syncthreads();
  auto* common_halves = reinterpret_cast<__half*>(block.memory + at.halves);
  auto* key_halves = reinterpret_cast<__half*>(block.memory + (S::kLatent ? block.at.key_rows : at.key_halves));
  if constexpr (S::kLatent) round_rows(block, common, turned_common, common_halves, at.common_stride);
  round_rows(block, keys, turned_keys, key_halves, at.key_stride);
  __syncthreads();
  if (!S::kLatent || !sums) return;
  sum_common(block, common_halves, at.common_stride);
  __syncthreads();
}

}  // namespace kvq::cuda
