// Rows of a warp, in tensor-core fragments: queries in shared memory, softmax of scores, and outputs.
#pragma once

#include "kernels/attend/queries.cuh"
#include "kernels/prefill/rotation.cuh"
#include "kernels/prefill/tiles.cuh"

namespace kvq::cuda {

/// Query rows in shared memory: planes of kPlaneRows rows, laid out like a tile's keys.
struct QueryRows {
  uint8_t* planes;
  float* scale;             // factor on scores, by row
  const int32_t* position;  // by row
  float* scratch;           // of the warp: [kRotatedRows][channels of a row]
};

/// Channel `which` of pair `pair`, RoPE pairs first, wherever they begin.
__device__ __forceinline__ int32_t turned_channel(const AttendArguments& arguments, int32_t pair, int32_t which) {
  const int32_t channel = pair_channel(arguments, pair, which);
  const int32_t begin = arguments.rotary_begin;
  if (channel < arguments.rotary_dim) return channel + begin;
  return channel < arguments.rotary_dim + begin ? channel - arguments.rotary_dim : channel;
}

/// A lane's share of the data that all query rows of a warp need: of the pairs of channels lane + 32 · i.
template <int kWidth>
struct QueryPairs {
  static constexpr int32_t kPairs = (kWidth + 63) / 64;

  float inv_freq[kPairs];
  float unscale[kPairs][2];
  int32_t channels[kPairs][2];  // kept, or each load would wait for the one before

  __device__ __forceinline__ QueryPairs(const AttendArguments& arguments, const Unit& unit) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t head_dim = arguments.head.keys;
    const float* factors = scales_of(arguments, unit).find(ScaleArray::kQueries, unit.head, arguments.head);
#pragma unroll
    for (int32_t i = 0; i < kPairs; ++i) {
      const int32_t pair = lane + 32 * i;
      inv_freq[i] = 2 * pair < arguments.rotary_dim ? __ldg(arguments.inv_freq + pair) : 0.0F;
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        const bool scaled = factors != nullptr && 2 * pair < head_dim;
        channels[i][c] = turned_channel(arguments, pair, c);
        unscale[i][c] = scaled ? __ldg(factors + channels[i][c]) : 1.0F;
      }
    }
  }

  /// Reads a row's pairs, rotated to its position; a missing row and missing channels are zeros.
  __device__ __forceinline__ void read(const AttendArguments& arguments, const Unit& unit, int32_t rows, int32_t row,
                                       int32_t position, float2 (&x)[kPairs]) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t shift = element_shift(arguments.q_dtype);
    const bool exists = row < rows;
    const int64_t at = row_offset(arguments.q_strides, row_place(arguments, unit, exists ? row : 0));
    const auto* elements = static_cast<const uint8_t*>(arguments.q) + (at << shift);
#pragma unroll
    for (int32_t i = 0; i < kPairs; ++i) {
      const int32_t pair = lane + 32 * i;
      float of_pair[2];
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        of_pair[c] = to_float(read_bits(elements + (channels[i][c] << shift), arguments.q_dtype,
                                        exists && 2 * pair < arguments.head.keys),
                              arguments.q_dtype);
      }
      const float2 turn = cos_sin_fast(static_cast<double>(position) * static_cast<double>(inv_freq[i]));
      x[i] = {fmaf(of_pair[0], turn.x, -(of_pair[1] * turn.y)), fmaf(of_pair[0], turn.y, of_pair[1] * turn.x)};
      x[i] = {x[i].x * unscale[i][0], x[i].y * unscale[i][1]};
    }
  }
};

/// A power of two above the largest magnitude of a row, and its inverse with the sign of the scale of logits: scales of
/// rows are positive, so that a row's highest score can be found before scaling.
struct RowRange {
  float up;
  float down;
};
__device__ __forceinline__ RowRange range_of_row(float largest, float scale) {
  largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(largest)));
  const int32_t exponent = min(max(static_cast<int32_t>(__float_as_uint(largest) >> 23U), 64), 250) - 126;
  return {__uint_as_float(static_cast<uint32_t>(127 + exponent) << 23U),
          copysignf(__uint_as_float(static_cast<uint32_t>(127 - exponent) << 23U), scale)};
}

template <int kWidth, int kPlaneRows>
__device__ __forceinline__ void store_query(const QueryRows& to, int32_t row, int32_t channel, float x) {
  uint8_t* chunk = to.planes + plane_chunk_at(plane_channels(kWidth), kPlaneRows, row % kPlaneRows, channel);
  reinterpret_cast<__half*>(chunk)[channel % 8] = __float2half_rn(x);
}

/// Loads 16 query rows of a warp, scaled below 1 by a power of two and rounded to FP16.
template <int kWidth, int kPlaneRows>
__device__ __forceinline__ void load_plain_rows(const AttendArguments& arguments, const Unit& unit, int32_t rows,
                                                int32_t first_row, const QueryRows& to) {
  constexpr int32_t kPairs = QueryPairs<kWidth>::kPairs;
  const QueryPairs<kWidth> pairs(arguments, unit);
#pragma unroll 4
  for (int32_t of_warp = 0; of_warp < 16; ++of_warp) {
    const int32_t row = first_row + of_warp;
    float2 x[kPairs];
    pairs.read(arguments, unit, rows, row, to.position[row], x);
    float largest = 0.0F;
#pragma unroll
    for (const float2& each : x) largest = fmaxf(largest, fmaxf(fabsf(each.x), fabsf(each.y)));
    const RowRange range = range_of_row(largest, arguments.scale);
    if (threadIdx.x % 32 == 0) to.scale[row] = range.up * fabsf(arguments.scale);
#pragma unroll
    for (int32_t i = 0; i < kPairs; ++i) {
      const int32_t pair = static_cast<int32_t>(threadIdx.x % 32) + 32 * i;
      if (kWidth % 64 != 0 && 2 * pair >= kWidth) break;
      store_query<kWidth, kPlaneRows>(to, row, pairs.channels[i][0], x[i].x * range.down);
      store_query<kWidth, kPlaneRows>(to, row, pairs.channels[i][1], x[i].y * range.down);
    }
  }
}

/// The same, rotated like keys.
template <int kWidth, int kPlaneRows>
__device__ __forceinline__ void load_rotated_rows(const AttendArguments& arguments, const Unit& unit, int32_t rows,
                                                  int32_t first_row, const QueryRows& to) {
  constexpr int32_t kPairs = QueryPairs<kWidth>::kPairs;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const QueryPairs<kWidth> pairs(arguments, unit);
  const RowRotation<kWidth> rotation(arguments.head.keys);
#pragma unroll 1
  for (int32_t row = first_row; row < first_row + 16; row += kRotatedRows) {
    __syncwarp();
#pragma unroll
    for (int32_t r = 0; r < kRotatedRows; ++r) {
      float2 x[kPairs];
      pairs.read(arguments, unit, rows, row + r, to.position[row + r], x);
#pragma unroll
      for (int32_t i = 0; i < kPairs; ++i) {
        const int32_t pair = lane + 32 * i;
        if (kWidth % 64 != 0 && 2 * pair >= kWidth) break;
        to.scratch[r * kWidth + pairs.channels[i][0]] = x[i].x;
        to.scratch[r * kWidth + pairs.channels[i][1]] = x[i].y;
      }
    }
    __syncwarp();
    RowShares<kWidth> x;
#pragma unroll
    for (int32_t r = 0; r < kRotatedRows; ++r) {
#pragma unroll
      for (int32_t i = 0; i < kWidth / 32; ++i) x[r][i] = to.scratch[r * kWidth + lane + 32 * i];
    }
    rotation.apply(to.scratch, x);
#pragma unroll
    for (int32_t r = 0; r < kRotatedRows; ++r) {
      float largest = 0.0F;
#pragma unroll
      for (const float each : x[r]) largest = fmaxf(largest, fabsf(each));
      const RowRange range = range_of_row(largest, arguments.scale);
      if (lane == 0) to.scale[row + r] = range.up * fabsf(arguments.scale);
#pragma unroll
      for (int32_t i = 0; i < kWidth / 32; ++i) {
        store_query<kWidth, kPlaneRows>(to, row + r, lane + 32 * i, x[r][i] * range.down);
      }
    }
  }
}

/// Loads the queries of 16 rows of a warp. Missing rows and channels are zeros.
template <int kWidth, int kPlaneRows, bool kRotated>
__device__ __forceinline__ void load_query_rows(const AttendArguments& arguments, const Unit& unit, int32_t rows,
                                                int32_t first_row, const QueryRows& to) {
  if constexpr (kRotated) {
    load_rotated_rows<kWidth, kPlaneRows>(arguments, unit, rows, first_row, to);
  } else {
    load_plain_rows<kWidth, kPlaneRows>(arguments, unit, rows, first_row, to);
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
template <int N>
__device__ __forceinline__ void cap_rows(float softcap, const RowPair& rows, float (&scores)[N]) {
#pragma unroll
  for (int32_t i = 0; i < N; ++i) scores[i] = softcap * tanhf(scores[i] * rows.scale[i / 2 % 2] / softcap);
}

/// Rows of a unit under a mask of the newest slots.
struct MaskedRows {
  const AttendArguments& arguments;
  const Work& work;
  int32_t row;        // the lane's first one; the other is 8 further
  int32_t first_bit;  // of the columns, negative before the mask
};

/// Masks the tokens that a row does not see, by bits where the mask covers them. Rare, and apart from what is not.
template <int N>
__device__ __forceinline__ void mask_slots(const MaskedRows& of, const int32_t* positions, const RowPair& rows,
                                           int32_t t, float (&scores)[N]) {
#pragma unroll 1
  for (int32_t h = 0; h < 2; ++h) {
    const uint32_t* bits = mask_of_row(of.arguments, of.work.unit, min(of.row + 8 * h, of.work.rows - 1));
    const int32_t row = h == 0 ? rows.position[0] : rows.position[1];
    const int64_t hidden = newest_hidden(row, of.arguments.window);
#pragma unroll
    for (int32_t j = 0; j < N / 4; ++j) {
      const int2 two = __ldg(reinterpret_cast<const int2*>(positions + 8 * j + 2 * t));
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t position = i == 0 ? two.x : two.y;
        const int32_t bit = of.first_bit + 8 * j + 2 * t + i;
        bool seen = position != INT32_MAX && position > hidden;
        if (seen) seen = bit < 0 ? position <= row : has_bit(bits, bit);
        if (!seen && h == 0) scores[4 * j + i] = minus_infinity();
        if (!seen && h == 1) scores[4 * j + 2 + i] = minus_infinity();
      }
    }
  }
}

/// Masks the tokens that a row does not see. `positions`: of the columns.
template <int N>
__device__ __forceinline__ void mask_rows(const int32_t* positions, int32_t window, const RowPair& rows, int32_t t,
                                          float (&scores)[N]) {
  int32_t lowest[2];
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    const int64_t after = newest_hidden(rows.position[h], window);
    lowest[h] = after > INT32_MIN ? static_cast<int32_t>(after) : INT32_MIN;
  }
#pragma unroll
  for (int32_t j = 0; j < N / 4; ++j) {
    const int2 two = __ldg(reinterpret_cast<const int2*>(positions + 8 * j + 2 * t));
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
template <int N>
__device__ __forceinline__ void weigh_rows(const float (&scale)[2], RowPair& rows, float (&scores)[N],
                                           float (&factors)[2]) {
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    float highest = scores[2 * h];
#pragma unroll
    for (int32_t j = 0; j < N / 4; ++j)
      highest = fmaxf(highest, fmaxf(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]));
    highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 2));
    highest = fmaxf(highest, rows.maximum[h]);
    const float reference = highest == minus_infinity() ? 0.0F : highest * scale[h];
    factors[h] = exp2_fast(fmaf(rows.maximum[h], scale[h], -reference));
    rows.maximum[h] = highest;
    float sum = rows.sum[h] * factors[h];
#pragma unroll
    for (int32_t j = 0; j < N / 4; ++j) {
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
template <int N>
__device__ __forceinline__ void pack_weights(const float (&weights)[N], uint32_t (&packed)[N / 8][4]) {
#pragma unroll
  for (int32_t i = 0; i < N / 2; ++i) packed[i / 4][i % 4] = pack(weights[2 * i], weights[2 * i + 1]);
}

template <int N>
__device__ __forceinline__ void scale_rows(const float (&factors)[2], float (&outputs)[N]) {
#pragma unroll
  for (int32_t i = 0; i < N; ++i) outputs[i] *= factors[i / 2 % 2];
}

/// Scales of channels `channel`, which is even, and `channel` + 1.
__device__ __forceinline__ float2 pair_of_scales(const LayerScales& scales, ScaleArray array, int32_t head,
                                                 const HeadShape& shape, int32_t channel) {
  return __ldg(reinterpret_cast<const float2*>(scales.of(array, head, shape) + channel));
}

/// Writes the lane's columns of its rows to the caller, or to a partial: maximum and sum [kBlockRows][2], outputs
/// [kBlockRows][kWidth].
template <int kWidth, int kBlockRows>
__device__ __forceinline__ void write_rows(const AttendArguments& arguments, const Unit& unit, int32_t rows,
                                           int32_t first_row, RowPair& pair, float (&outputs)[kWidth / 2],
                                           float* partial) {
  const auto t = static_cast<int32_t>(threadIdx.x % 4);
  const int32_t head_dim = arguments.head.values;
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
      float* to = partial + 2 * kBlockRows + row * kWidth + 2 * t;
#pragma unroll
      for (int32_t j = 0; j < kWidth / 8; ++j) {
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
      for (int32_t j = 0; j < kWidth / 8; ++j) {
        if (8 * j >= head_dim) break;
        const float2 factors = pair_of_scales(scales, ScaleArray::kOutputs, unit.head, arguments.head, 8 * j + 2 * t);
        const float2 offsets = pair_of_scales(scales, ScaleArray::kOffsets, unit.head, arguments.head, 8 * j + 2 * t);
        outputs[4 * j + 2 * h] = fmaf(outputs[4 * j + 2 * h] * factor, factors.x, of_tokens * offsets.x);
        outputs[4 * j + 2 * h + 1] = fmaf(outputs[4 * j + 2 * h + 1] * factor, factors.y, of_tokens * offsets.y);
      }
      factor = 1.0F;
    }
    const int64_t at = row_offset(arguments.out_strides, place) + 2 * t;
#pragma unroll
    for (int32_t j = 0; j < kWidth / 8; ++j) {
      if (8 * j >= head_dim) break;
      const float two[2] = {outputs[4 * j + 2 * h] * factor, outputs[4 * j + 2 * h + 1] * factor};
      write_float(arguments.out, arguments.out_dtype, at + 8 * j, two[0]);
      write_float(arguments.out, arguments.out_dtype, at + 8 * j + 1, two[1]);
    }
  }
}

/// Writes the outputs of the rows that exist of those from `row` on.
template <int kWidth>
__device__ __forceinline__ void write_shares(const AttendArguments& arguments, const Unit& unit, int32_t rows,
                                             int32_t row, const RowSum (&seen)[kRotatedRows],
                                             const RowShares<kWidth>& x) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const LayerScales scales = scales_of(arguments, unit);
#pragma unroll
  for (int32_t r = 0; r < kRotatedRows; ++r) {
    if (row + r >= rows) break;
    const RowPlace place = row_place(arguments, unit, row + r);
    const float factor = finish_row(arguments, place, seen[r], lane == 0);
    const int64_t at = row_offset(arguments.out_strides, place) + lane;
#pragma unroll
    for (int32_t i = 0; i < kWidth / 32; ++i) {
      if (lane + 32 * i >= arguments.head.values) break;
      float output = x[r][i] * factor;
      if (scales) {
        output = unscale_output(scales, unit.head, arguments.head, lane + 32 * i, output, factor * seen[r].sum);
      }
      write_float(arguments.out, arguments.out_dtype, at + 32 * i, output);
    }
  }
}

/// Launches blocks of `threads` over all tiles, each with `shared` bytes of memory and `rows` rows, and merges their
/// parts.
inline cudaError_t launch_blocks(void (*kernel)(AttendArguments, Tiles), uint32_t threads, size_t shared, int32_t rows,
                                 const AttendArguments& arguments, const Tiles& tiles, cudaStream_t stream) {
  const auto blocks = static_cast<uint32_t>(tiles.row_blocks * tiles.heads * tiles.parts);
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  if (status != cudaSuccess) return status;
  kernel<<<blocks, threads, shared, stream>>>(arguments, tiles);
  if (tiles.merges()) return launch_merge(arguments, tiles, rows, stream);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
