// Query rows in shared memory, in the order of decoded keys: those channels that meet a latent's common ones, then
// those of the key side.
#pragma once

#include "kernels/wide/channels.cuh"
#include "kernels/wide/memory.cuh"

namespace kvq::cuda {

/// Channels of queries that meet one side of pages.
struct QueryPart {
  int32_t channel;  // the first one, in queries as they are given
  int32_t dim;
  int32_t width;   // in shared memory
  int32_t at;      // first channel in shared memory
  bool is_common;  // of a latent
};

template <typename S>
__device__ __forceinline__ QueryPart key_part(const WideBlock<S>& block) {
  const HeadShape& head = block.arguments.head;
  return {head.is_latent ? head.values : 0, head.keys, block.launch.key_width, block.launch.common_width, false};
}
template <typename S>
__device__ __forceinline__ QueryPart common_part(const WideBlock<S>& block) {
  return {0, block.arguments.head.values, block.launch.common_width, 0, true};
}

/// A lane's share, channels lane + 32 · i, of kRotatedRows rows.
using QueryShares = RowShares<kMaxChannels>;

/// Reads rows as keys meet them: turned to their positions and in the scale of what pages hold. Rows and channels that
/// do not exist are zeros. Adds to `squares`, and to `of_offsets` products with offsets of a latent's common channels.
/// Loads do not wait for each other.
template <typename S>
__device__ __forceinline__ void read_rows(const WideBlock<S>& block, const QueryPart& part, int32_t first_row,
                                          QueryShares& x, float (&squares)[kRotatedRows],
                                          float (&of_offsets)[kRotatedRows]) {
  constexpr int32_t kShare = kMaxChannels / 32;
  const AttendArguments& arguments = block.arguments;
  const LayerScales scales = scales_of(arguments, block.unit);
  const ScaleArray array = part.is_common ? ScaleArray::kOutputs : ScaleArray::kQueries;
  const float* factors = scales.find(array, block.unit.head, arguments.head);
  const float* offsets = part.is_common ? scales.find(ScaleArray::kOffsets, block.unit.head, arguments.head) : nullptr;
  const int32_t dtype = arguments.q_dtype;
  const int32_t shift = element_shift(dtype);
  const uint8_t* elements[kRotatedRows];
  uint32_t bits[kRotatedRows][kShare];
  uint32_t others[kRotatedRows][kShare];
#pragma unroll
  for (int32_t r = 0; r < kRotatedRows; ++r) {
    const int32_t row = min(first_row + r, block.rows - 1);
    const int64_t at = row_offset(arguments.q_strides, row_place(arguments, block.unit, row)) + part.channel;
    elements[r] = static_cast<const uint8_t*>(arguments.q) + (at << shift);
  }
#pragma unroll
  for (int32_t i = 0; i < kShare; ++i) {
    if (32 * i >= part.dim) break;
    const int32_t channel = block.lane.index + 32 * i;
    const bool inside = channel < part.dim;
#pragma unroll
    for (int32_t r = 0; r < kRotatedRows; ++r) {
      bits[r][i] = read_bits(elements[r] + (channel << shift), dtype, inside && first_row + r < block.rows);
    }
    if (part.is_common) continue;
    const Turn turn = turn_of(arguments, channel);
#pragma unroll
    for (int32_t r = 0; r < kRotatedRows; ++r) {
      others[r][i] = read_bits(elements[r] + (turn.partner << shift), dtype, turn.turns && first_row + r < block.rows);
    }
  }
#pragma unroll
  for (int32_t i = 0; i < kShare; ++i) {
#pragma unroll
    for (int32_t r = 0; r < kRotatedRows; ++r) x[r][i] = 0.0F;
    if (32 * i >= part.dim) continue;
    const int32_t channel = block.lane.index + 32 * i;
    const bool inside = channel < part.dim;
    const Turn turn = part.is_common ? Turn{} : turn_of(arguments, channel);
    const float inv_freq = turn.turns ? __ldg(arguments.inv_freq + turn.pair) : 0.0F;
    const float factor = inside && factors != nullptr ? __ldg(factors + channel) : 1.0F;
    const float offset = inside && offsets != nullptr ? __ldg(offsets + channel) : 0.0F;
#pragma unroll
    for (int32_t r = 0; r < kRotatedRows; ++r) {
      float number = to_float(bits[r][i], dtype);
      if (turn.turns) {
        const int32_t position = block.header().row_position[first_row + r];
        const float2 at = cos_sin_fast(static_cast<double>(position) * static_cast<double>(inv_freq));
        number = fmaf(number, at.x, turn.sign * to_float(others[r][i], dtype) * at.y);
      }
      of_offsets[r] = fmaf(number, offset, of_offsets[r]);
      x[r][i] = number * factor;
      squares[r] = fmaf(x[r][i], x[r][i], squares[r]);
    }
  }
}

template <typename S>
__device__ __forceinline__ void store_rows(const WideBlock<S>& block, const QueryPart& part, bool rotated,
                                           int32_t first_row, const float (&down)[kRotatedRows], QueryShares& x) {
  if (rotated) {
    float* scratch = block.row_memory() + block.lane.warp * kRotatedRows * kMaxChannels;
    RowRotation<kMaxChannels>(part.dim).apply(scratch, x);
  }
  uint8_t* queries = block.memory;
#pragma unroll
  for (int32_t r = 0; r < kRotatedRows; ++r) {
#pragma unroll
    for (int32_t i = 0; i < kMaxChannels / 32; ++i) {
      const int32_t channel = block.lane.index + 32 * i;
      if (32 * i >= part.width) break;
      uint8_t* chunk = queries + plane_chunk_at(64, S::kRows, first_row + r, part.at + channel);
      reinterpret_cast<__half*>(chunk)[channel % 8] = __float2half_rn(channel < part.dim ? x[r][i] * down[r] : 0.0F);
    }
  }
}

/// Loads the block's queries, with the rotations that pages have. Not inlined, since it is called a few times alone and
/// needs many registers. It takes a copy of the block's places: where their address is known to others, the compiler
/// would read them from memory and forget that it is shared. The memory of tiles and pages is free.
template <typename S>
__device__ __noinline__ void load_wide_queries(const WideBlock<S> block, bool rotated_keys, bool rotated_common) {
  const AttendArguments& arguments = block.arguments;
  // The common channels of a latent are read for the rows' norms, then those of the key side, then the former again.
  const int32_t first = arguments.head.is_latent ? 0 : 1;
  const int32_t end = arguments.head.is_latent ? 3 : 2;
#pragma unroll 1
  for (int32_t row = kRotatedRows * block.lane.warp; row < S::kRows; row += kRotatedRows * S::kWarps) {
    QueryShares x;
    float squares[kRotatedRows] = {};
    float bias[kRotatedRows] = {};
    float down[kRotatedRows];
#pragma unroll 1
    for (int32_t pass = first; pass < end; ++pass) {
      const QueryPart part = pass == 1 ? key_part(block) : common_part(block);
      read_rows(block, part, row, x, squares, bias);
      if (pass == 0) continue;
      if (pass == 1) {
#pragma unroll
        for (int32_t r = 0; r < kRotatedRows; ++r) {
          // No rotation makes a channel larger than the row's norm.
          const RowRange range = range_of_row(sqrtf(sum_of_lanes(squares[r])), arguments.scale);
          const float of_offsets = sum_of_lanes(bias[r]);
          down[r] = range.down;
          if (block.lane.index != 0) continue;
          block.header().row_scale[row + r] = range.up * fabsf(arguments.scale);
          block.header().row_bias[row + r] = of_offsets * arguments.scale;
        }
      }
      store_rows(block, part, part.is_common ? rotated_common : rotated_keys, row, down, x);
    }
  }
}

}  // namespace kvq::cuda
