// Queries of a block: turned, scaled, and rotated like the keys of pages.
#pragma once

#include "kernels/device/rope.cuh"
#include "kernels/device/tensor.cuh"
#include "kernels/wide/float_rows.cuh"

namespace kvq::cuda {

/// How RoPE turns a channel of the key side with another one.
struct Turn {
  bool turns = false;
  int32_t pair = 0;
  int32_t partner = 0;
  float sign = 0.0F;  // of the partner's sine
};

__device__ __forceinline__ Turn turn_of(const AttendArguments& arguments, int32_t channel) {
  const int32_t of_rope = channel - arguments.rotary_begin;
  if (of_rope < 0 || of_rope >= arguments.rotary_dim) return {};
  const int32_t half = arguments.rotary_dim / 2;
  const bool halves = arguments.rope_pairing == 1;
  const bool first = halves ? of_rope < half : of_rope % 2 == 0;
  const int32_t distance = halves ? half : 1;
  return {true, halves ? (first ? of_rope : of_rope - half) : of_rope / 2,
          first ? channel + distance : channel - distance, first ? -1.0F : 1.0F};
}

/// The sum of a warp's lanes, in all of them.
__device__ __forceinline__ float sum_of_lanes(float x) {
#pragma unroll
  for (int32_t d = 16; d > 0; d /= 2) x += __shfl_xor_sync(kAll, x, d);
  return x;
}

/// What queries are read for, and what is told of them: arrays of the block's rows in shared memory.
struct QueryBlock {
  const AttendArguments& arguments;
  const Unit& unit;
  int32_t rows;
  Lane lane;
  const int32_t* positions;
  float* scale;  // inverse of a row's scaling, times the scale of logits
  float* bias;   // added to the scores of latents, from offsets of their scales
};

/// What a warp sums over its rows.
template <int kMine>
struct ReadSums {
  float squares[kMine] = {};
  float of_offsets[kMine] = {};  // products with offsets of a latent's common channels
};

/// A warp reads rows from `first_row` on, of the key side or of a latent's common channels, as keys meet them: turned
/// to their positions and in the scale of what pages hold.
template <bool kCommon, int kMine>
__device__ __forceinline__ void read_query_rows(const QueryBlock& block, int32_t first_row, const FloatRows& rows,
                                                ReadSums<kMine>& sums) {
  constexpr int32_t kAtOnce = kCommon ? 4 : 2;  // loads of a row in flight
  const AttendArguments& arguments = block.arguments;
  const HeadShape head = arguments.head;
  const LayerScales scales = scales_of(arguments, block.unit);
  const float* factors = scales.find(kCommon ? ScaleArray::kOutputs : ScaleArray::kQueries, block.unit.head, head);
  const float* offsets = kCommon ? scales.find(ScaleArray::kOffsets, block.unit.head, head) : nullptr;
  const int32_t before = kCommon || !head.is_latent ? 0 : head.values;
  const int32_t dtype = arguments.q_dtype;
  const int32_t shift = element_shift(dtype);
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
          const int32_t position = block.positions[first_row + r];
          const float2 rotation = cos_sin_fast(static_cast<double>(position) * static_cast<double>(inv_freq));
          x = fmaf(x, rotation.x, turn.sign * to_float(others[i][r], dtype) * rotation.y);
        }
        sums.of_offsets[r] = fmaf(x, offset, sums.of_offsets[r]);
        x *= factor;
        sums.squares[r] = fmaf(x, x, sums.squares[r]);
        rows.row(r)[channel] = x;
      }
    }
  }
}

/// Writes the rows' scales, and returns what to multiply them by. Their signs make scales of logits positive, so that a
/// row's highest score can be found before scaling.
template <int kMine>
__device__ __forceinline__ void scale_query_rows(const QueryBlock& block, int32_t first_row,
                                                 const ReadSums<kMine>& sums, float (&down)[kMine]) {
  const float scale = block.arguments.scale;
#pragma unroll
  for (int32_t r = 0; r < kMine; ++r) {
    // No rotation makes a channel larger than the row's norm, which becomes less than 8.
    const float norm = sqrtf(sum_of_lanes(sums.squares[r]));
    const float of_offsets = sum_of_lanes(sums.of_offsets[r]);
    const int32_t exponent = min(max(static_cast<int32_t>(__float_as_uint(norm) >> 23U), 64), 250) - 129;
    down[r] = copysignf(__uint_as_float(static_cast<uint32_t>(127 - exponent) << 23U), scale);
    if (block.lane.index != 0) continue;
    block.scale[first_row + r] = __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23U) * fabsf(scale);
    block.bias[first_row + r] = of_offsets * scale;
  }
}

/// Floats of a warp's memory for kMine rows.
template <int kMine>
KVQ_HOST_DEVICE constexpr int32_t query_floats(const HeadShape& head) {
  return kMine * (head.keys + (head.is_latent ? head.values : 0));
}

/// Widths of rows as they are stored: zeros behind their channels.
struct QueryWidths {
  int32_t common;
  int32_t keys;
};

/// A warp loads kMine rows from `first_row` on: calls `store` with whether a channel is a latent's common one, the row,
/// the channel and its number. `memory`: query_floats of this warp.
template <int kMine, typename Store>
__device__ __forceinline__ void load_query_rows_of(const QueryBlock& block, int32_t first_row, bool turned_keys,
                                                   bool turned_common, const QueryWidths& widths, float* memory,
                                                   const Store& store) {
  const HeadShape head = block.arguments.head;
  const FloatRows keys(memory, head.keys, head.keys);
  const FloatRows common(memory + kMine * head.keys, head.values, head.values);
  ReadSums<kMine> sums;
  __syncwarp();
  if (head.is_latent) read_query_rows<true>(block, first_row, common, sums);
  read_query_rows<false>(block, first_row, keys, sums);
  float down[kMine];
  scale_query_rows(block, first_row, sums, down);
#pragma unroll 1
  for (int32_t i = 0; i < 2 * kMine; ++i) {
    const bool is_common = i >= kMine;
    if (is_common && !head.is_latent) break;
    const int32_t dim = is_common ? head.values : head.keys;
    const FloatRows side(memory + (is_common ? kMine * head.keys : 0), dim, dim);
    const int32_t r = i % kMine;
    float factor = down[0];
#pragma unroll
    for (int32_t j = 1; j < kMine; ++j) factor = r == j ? down[j] : factor;
    deliver_row(side.row(r), side.mix, is_common ? turned_common : turned_keys, block.lane,
                [&](int32_t channel, float x) { store(is_common, first_row + r, channel, x * factor); });
    const int32_t width = is_common ? widths.common : widths.keys;
    for (int32_t channel = side.dim() + block.lane.index; channel < width; channel += 32) {
      store(is_common, first_row + r, channel, 0.0F);
    }
  }
}

}  // namespace kvq::cuda
