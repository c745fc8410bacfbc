// A warpgroup's 64 rows: queries in shared memory, softmax of scores, and outputs.
#pragma once

#include "kernels/attend/queries.cuh"
#include "kernels/prefill/tiles.cuh"

namespace kvq::cuda {

/// Loads the queries of the warp's 16 rows: rotated to their positions, scaled below 1 by a power of two, rounded to
/// FP16. Missing rows are zeros.
template <int D>
__device__ __forceinline__ void load_query_rows(const AttendArguments& arguments, const Unit& unit, int32_t rows,
                                                int32_t first_row, PrefillShared<D>& shared) {
  constexpr int32_t kPairs = D / 64;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t shift = element_shift(arguments.q_dtype);
  uint8_t* plane = shared.queries[first_row / kGroupRows];
  const LayerScales scales = scales_of(arguments, unit);
  float inv_freq[kPairs];
  float unscale[kPairs][2];
#pragma unroll
  for (int32_t i = 0; i < kPairs; ++i) {
    const int32_t pair = lane + 32 * i;
    inv_freq[i] = 2 * pair < arguments.rotary_dim ? __ldg(arguments.inv_freq + pair) : 0.0F;
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      const float* factors = scales.find(ScaleArray::kQueries, unit.head, D);
      unscale[i][c] = factors != nullptr ? __ldg(factors + pair_channel(arguments, pair, c)) : 1.0F;
    }
  }
#pragma unroll 4
  for (int32_t of_warp = 0; of_warp < 16; ++of_warp) {
    const int32_t row = first_row + of_warp;
    const bool exists = row < rows;
    const int64_t at = row_offset(arguments.q_strides, row_place(arguments, unit, exists ? row : 0));
    const auto* elements = static_cast<const uint8_t*>(arguments.q) + (at << shift);
    const int32_t position = shared.row_position[row];
    float2 x[kPairs];
    float largest = 0.0F;
#pragma unroll
    for (int32_t i = 0; i < kPairs; ++i) {
      const int32_t pair = lane + 32 * i;
      float of_pair[2];
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        of_pair[c] =
            to_float(read_bits(elements + (pair_channel(arguments, pair, c) << shift), arguments.q_dtype, exists),
                     arguments.q_dtype);
      }
      const float2 turn = cos_sin_fast(static_cast<double>(position) * static_cast<double>(inv_freq[i]));
      x[i] = {fmaf(of_pair[0], turn.x, -(of_pair[1] * turn.y)), fmaf(of_pair[0], turn.y, of_pair[1] * turn.x)};
      x[i] = {x[i].x * unscale[i][0], x[i].y * unscale[i][1]};
      largest = fmaxf(largest, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
    }
    largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(largest)));
    const int32_t exponent = min(max(static_cast<int32_t>(__float_as_uint(largest) >> 23U), 64), 250) - 126;
    const float up = __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23U);
    const float down = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23U);
    // Scales are positive, so a row's highest score can be found before scaling.
    const float down_signed = copysignf(down, arguments.scale);
    if (lane == 0) shared.row_scale[row] = up * fabsf(arguments.scale);
    const int32_t of_group = row % kGroupRows;
#pragma unroll
    for (int32_t i = 0; i < kPairs; ++i) {
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        const int32_t channel = pair_channel(arguments, lane + 32 * i, c);
        uint8_t* chunk =
            plane + (channel / 64 * kGroupRows + of_group) * 128 + ((channel / 8 % 8) ^ (of_group & 7)) * 16;
        reinterpret_cast<__half*>(chunk)[channel % 8] = __float2half_rn((c == 0 ? x[i].x : x[i].y) * down_signed);
      }
    }
  }
}

/// A lane's two rows, 8 apart.
struct RowPair {
  float scale[2];  // factor on scores
  int32_t position[2];
  float maximum[2] = {minus_infinity(), minus_infinity()};  // before scaling
  float sum[2] = {0.0F, 0.0F};                              // over this lane's columns
};

/// Scales the lane's scores and applies the soft cap.
__device__ __forceinline__ void cap_rows(float softcap, RowPair& rows, float (&scores)[64]) {
#pragma unroll
  for (int32_t i = 0; i < 64; ++i) scores[i] = softcap * tanhf(scores[i] * rows.scale[i / 2 % 2] / softcap);
}

/// Masks the tokens that a row does not see.
__device__ __forceinline__ void mask_rows(const TileTokens& tokens, int32_t window, const RowPair& rows, int32_t t,
                                          float (&scores)[64]) {
  int32_t lowest[2];
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    const int64_t after = static_cast<int64_t>(rows.position[h]) - window;
    lowest[h] = window > 0 && after > INT32_MIN ? static_cast<int32_t>(after) : INT32_MIN;
  }
#pragma unroll
  for (int32_t j = 0; j < 16; ++j) {
    const int2 two = __ldg(reinterpret_cast<const int2*>(tokens.positions + 8 * j + 2 * t));
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t position = i == 0 ? two.x : two.y;
        const bool seen = position <= rows.position[h] && position > lowest[h] && position != INT32_MAX;
        if (!seen) scores[4 * j + 2 * h + i] = minus_infinity();
      }
    }
  }
}

/// Turns scores into weights relative to the maxima so far; `factors`: rescaling of earlier sums.
__device__ __forceinline__ void weigh_rows(const float (&scale)[2], RowPair& rows, float (&scores)[64],
                                           float (&factors)[2]) {
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    float highest = scores[2 * h];
#pragma unroll
    for (int32_t j = 0; j < 16; ++j) highest = fmaxf(highest, fmaxf(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]));
    highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 2));
    highest = fmaxf(highest, rows.maximum[h]);
    const float reference = highest == minus_infinity() ? 0.0F : highest * scale[h];
    factors[h] = exp2_fast(fmaf(rows.maximum[h], scale[h], -reference));
    rows.maximum[h] = highest;
    float sum = rows.sum[h] * factors[h];
#pragma unroll
    for (int32_t j = 0; j < 16; ++j) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        float& each = scores[4 * j + 2 * h + i];
        each = exp2_fast(fmaf(each, scale[h], -reference));
        sum += each;
      }
    }
    rows.sum[h] = sum;
  }
}

/// Packs weights as first operands of the products with values.
__device__ __forceinline__ void pack_weights(const float (&weights)[64], uint32_t (&packed)[8][4]) {
#pragma unroll
  for (int32_t i = 0; i < 32; ++i) packed[i / 4][i % 4] = pack(weights[2 * i], weights[2 * i + 1]);
}

template <int N>
__device__ __forceinline__ void scale_rows(const float (&factors)[2], float (&outputs)[N]) {
#pragma unroll
  for (int32_t i = 0; i < N; ++i) outputs[i] *= factors[i / 2 % 2];
}

/// Scales of channels `channel`, which is even, and `channel` + 1.
__device__ __forceinline__ float2 pair_of_scales(const LayerScales& scales, ScaleArray array, int32_t head,
                                                 int32_t head_dim, int32_t channel) {
  return __ldg(reinterpret_cast<const float2*>(scales.of(array, head, head_dim) + channel));
}

/// Writes the lane's columns of its rows to the caller, or to a partial: maximum and sum [kBlockRows][2], outputs
/// [kBlockRows][D].
template <int D>
__device__ __forceinline__ void write_rows(const AttendArguments& arguments, const Unit& unit, int32_t rows,
                                           int32_t first_row, RowPair& pair, float (&outputs)[D / 2], float* partial) {
  const auto t = static_cast<int32_t>(threadIdx.x % 4);
  const LayerScales scales = scales_of(arguments, unit);
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    const int32_t row = first_row + 8 * h;
    float sum = pair.sum[h];
    sum += __shfl_xor_sync(kAll, sum, 1);
    sum += __shfl_xor_sync(kAll, sum, 2);
    if (row >= rows) continue;
    const float scale = arguments.softcap > 0.0F ? 1.0F : pair.scale[h];
    const float maximum = pair.maximum[h] == minus_infinity() ? minus_infinity() : pair.maximum[h] * scale;
    if (partial != nullptr) {
      if (t == 0) reinterpret_cast<float2*>(partial)[row] = {maximum, sum};
      float* to = partial + 2 * kBlockRows + row * D + 2 * t;
#pragma unroll
      for (int32_t j = 0; j < D / 8; ++j) {
        *reinterpret_cast<float2*>(to + 8 * j) = {outputs[4 * j + 2 * h], outputs[4 * j + 2 * h + 1]};
      }
      continue;
    }
    const RowPlace place = row_place(arguments, unit, row);
    float factor = sum > 0.0F ? 1.0F / sum : 0.0F;
    if (arguments.lse != nullptr || arguments.sinks != nullptr) {
      factor = finish_row(arguments, place, {maximum, sum}, t == 0);
    }
    if (scales) {  // before the first store: loads do not pass stores
      const float of_tokens = factor * sum;
#pragma unroll
      for (int32_t j = 0; j < D / 8; ++j) {
        const float2 factors = pair_of_scales(scales, ScaleArray::kOutputs, unit.head, D, 8 * j + 2 * t);
        const float2 offsets = pair_of_scales(scales, ScaleArray::kOffsets, unit.head, D, 8 * j + 2 * t);
        outputs[4 * j + 2 * h] = fmaf(outputs[4 * j + 2 * h] * factor, factors.x, of_tokens * offsets.x);
        outputs[4 * j + 2 * h + 1] = fmaf(outputs[4 * j + 2 * h + 1] * factor, factors.y, of_tokens * offsets.y);
      }
      factor = 1.0F;
    }
    const int64_t at = row_offset(arguments.out_strides, place) + 2 * t;
#pragma unroll
    for (int32_t j = 0; j < D / 8; ++j) {
      const float two[2] = {outputs[4 * j + 2 * h] * factor, outputs[4 * j + 2 * h + 1] * factor};
      write_float(arguments.out, arguments.out_dtype, at + 8 * j, two[0]);
      write_float(arguments.out, arguments.out_dtype, at + 8 * j + 1, two[1]);
    }
  }
}

}  // namespace kvq::cuda
