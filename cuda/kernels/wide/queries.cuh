// Query rows in shared memory, in the order of decoded keys: those channels that meet a latent's common ones, then
// those of the key side.
#pragma once

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
using QueryShares = RowShares<kMostChannels>;

/// The angle by which RoPE turns a channel of the key side, and its pair's other channel.
struct Turn {
  float2 rotation;
  int32_t partner;
  float sign;  // of the partner's sine
};

__device__ __forceinline__ Turn turn_of(const AttendArguments& arguments, int32_t channel, int32_t position) {
  const int32_t of_rope = channel - arguments.rotary_begin;
  if (of_rope < 0 || of_rope >= arguments.rotary_dim) return {{1.0F, 0.0F}, channel, 0.0F};
  const int32_t half = arguments.rotary_dim / 2;
  const bool halves = arguments.rope_pairing == 1;
  const bool first = halves ? of_rope < half : of_rope % 2 == 0;
  const int32_t pair = halves ? (first ? of_rope : of_rope - half) : of_rope / 2;
  const int32_t distance = halves ? half : 1;
  const float inv_freq = __ldg(arguments.inv_freq + pair);
  return {cos_sin_fast(static_cast<double>(position) * static_cast<double>(inv_freq)),
          first ? channel + distance : channel - distance, first ? -1.0F : 1.0F};
}

/// Reads rows as keys meet them: turned to their positions and in the scale of what pages hold. Rows and channels that
/// do not exist are zeros. `of_offsets`: products with the offsets of a latent's common channels.
template <typename S>
__device__ __forceinline__ void read_rows(const WideBlock<S>& block, const QueryPart& part, int32_t first_row,
                                          QueryShares& x, float (&of_offsets)[kRotatedRows]) {
  const AttendArguments& arguments = block.arguments;
  const LayerScales scales = scales_of(arguments, block.unit);
  const ScaleArray array = part.is_common ? ScaleArray::kOutputs : ScaleArray::kQueries;
  const float* factors = scales.find(array, block.unit.head, arguments.head);
  const float* offsets = part.is_common ? scales.find(ScaleArray::kOffsets, block.unit.head, arguments.head) : nullptr;
  const int32_t shift = element_shift(arguments.q_dtype);
#pragma unroll 1
  for (int32_t r = 0; r < kRotatedRows; ++r) {
    const int32_t row = first_row + r;
    const bool exists = row < block.rows;
    const int64_t at =
        row_offset(arguments.q_strides, row_place(arguments, block.unit, exists ? row : 0)) + part.channel;
    const auto* elements = static_cast<const uint8_t*>(arguments.q) + (at << shift);
    const int32_t position = block.header().row_position[row];
    float sum = 0.0F;
    // `x` is indexed by constants alone: this loop is unrolled, and the one over rows selects.
#pragma unroll
    for (int32_t i = 0; i < kMostChannels / 32; ++i) {
      const int32_t channel = block.lane.index + 32 * i;
      const bool inside = exists && channel < part.dim;
      float number = to_float(read_bits(elements + (channel << shift), arguments.q_dtype, inside), arguments.q_dtype);
      if (inside && !part.is_common) {
        const Turn turn = turn_of(arguments, channel, position);
        const float other =
            to_float(read_bits(elements + (turn.partner << shift), arguments.q_dtype, true), arguments.q_dtype);
        number = fmaf(number, turn.rotation.x, turn.sign * other * turn.rotation.y);
      }
      if (inside && offsets != nullptr) sum = fmaf(number, __ldg(offsets + channel), sum);
      if (inside && factors != nullptr) number *= __ldg(factors + channel);
#pragma unroll
      for (int32_t to = 0; to < kRotatedRows; ++to) x[to][i] = to == r ? number : x[to][i];
    }
#pragma unroll
    for (int32_t d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
#pragma unroll
    for (int32_t to = 0; to < kRotatedRows; ++to) of_offsets[to] = to == r ? sum : of_offsets[to];
  }
}

template <typename S>
__device__ __forceinline__ void store_rows(const WideBlock<S>& block, const QueryPart& part, bool rotated,
                                           int32_t first_row, const float (&down)[kRotatedRows], QueryShares& x) {
  if (rotated) {
    float* scratch = block.row_memory() + block.lane.warp * kRotatedRows * kMostChannels;
    RowRotation<kMostChannels>(part.dim).apply(scratch, x);
  }
  uint8_t* queries = block.memory;
#pragma unroll
  for (int32_t r = 0; r < kRotatedRows; ++r) {
#pragma unroll
    for (int32_t i = 0; i < kMostChannels / 32; ++i) {
      const int32_t channel = block.lane.index + 32 * i;
      if (channel >= part.width) break;
      uint8_t* chunk = queries + plane_chunk_at(64, S::kRows, first_row + r, part.at + channel);
      reinterpret_cast<__half*>(chunk)[channel % 8] = __float2half_rn(channel < part.dim ? x[r][i] * down[r] : 0.0F);
    }
  }
}

/// Loads the block's queries, with the rotations that pages have. Not inlined, since it is called a few times alone and
/// needs many registers. The memory of tiles and pages is free.
template <typename S>
__device__ __noinline__ void load_wide_queries(const WideBlock<S>& block, bool rotated_keys, bool rotated_common) {
  const AttendArguments& arguments = block.arguments;
  const bool latent = arguments.head.is_latent;
#pragma unroll 1
  for (int32_t row = kRotatedRows * block.lane.warp; row < S::kRows; row += kRotatedRows * S::kWarps) {
    QueryShares x = {};
    float squares[kRotatedRows] = {};
    float bias[kRotatedRows] = {};
    float none[kRotatedRows] = {};
    const auto add_squares = [&] {
#pragma unroll
      for (int32_t i = 0; i < kRotatedRows * kMostChannels / 32; ++i) {
        const float each = x[i / (kMostChannels / 32)][i % (kMostChannels / 32)];
        squares[i / (kMostChannels / 32)] = fmaf(each, each, squares[i / (kMostChannels / 32)]);
      }
    };
    if (latent) {
      read_rows(block, common_part(block), row, x, bias);
      add_squares();
    }
    read_rows(block, key_part(block), row, x, none);
    add_squares();
    float down[kRotatedRows];
#pragma unroll
    for (int32_t r = 0; r < kRotatedRows; ++r) {
#pragma unroll
      for (int32_t d = 16; d > 0; d /= 2) squares[r] += __shfl_xor_sync(kAll, squares[r], d);
      // No rotation makes a channel larger than the row's norm.
      const RowRange range = range_of_row(sqrtf(squares[r]), arguments.scale);
      down[r] = range.down;
      if (block.lane.index == 0) {
        block.header().row_scale[row + r] = range.up * fabsf(arguments.scale);
        block.header().row_bias[row + r] = bias[r] * arguments.scale;
      }
    }
    store_rows(block, key_part(block), rotated_keys, row, down, x);
    if (latent) {
      read_rows(block, common_part(block), row, x, bias);
      store_rows(block, common_part(block), rotated_common, row, down, x);
    }
  }
}

}  // namespace kvq::cuda
