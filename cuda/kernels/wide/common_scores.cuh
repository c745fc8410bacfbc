// Scores of a latent's common channels, which pages store once, as values: the operands of products with weights are
// transposed in registers.
#pragma once

#include "kernels/pages/kinds.cuh"

namespace kvq::cuda {

/// Queries as second operands of products over a slice of common channels.
template <typename G>
struct CommonQueries {
  uint32_t words[G::kChannels][G::kTiles][2][2];  // [block][tile of rows][two of a lane's four channels of values]
  float sums[G::kTiles][2];                       // over the slice, of the lane's rows
};

/// `rows`: FP16, from the slice's first channel on.
template <typename G>
__device__ __forceinline__ void load_common_queries(const G& slice, const __half* rows, int32_t stride,
                                                    const Lane& lane, CommonQueries<G>& to) {
#pragma unroll
  for (int32_t m = 0; m < G::kChannels; ++m) {
#pragma unroll
    for (int32_t n = 0; n < G::kTiles; ++n) {
      uint32_t words[4] = {};
      if (slice.has_channel(slice.begin() + 32 * m)) {
        to_array(*reinterpret_cast<const uint4*>(rows + (8 * n + lane.g) * stride + 32 * m + 8 * lane.t), words);
      }
#pragma unroll
      for (int32_t p = 0; p < 2; ++p) {
        to.words[m][n][p][0] = low_halves(words[p], words[2 + p]);
        to.words[m][n][p][1] = high_halves(words[p], words[2 + p]);
      }
    }
  }
}

/// A block's words of FP16 values, with the interface of codes.
struct HalfWords {
  uint32_t first[2][4];  // [product over tokens][channel]
  uint32_t second[2][4];

  template <int kStep>
  __device__ __forceinline__ uint32_t even(int32_t i) const {
    return low_halves(first[kStep][i], second[kStep][i]);
  }
  template <int kStep>
  __device__ __forceinline__ uint32_t odd(int32_t i) const {
    return high_halves(first[kStep][i], second[kStep][i]);
  }
};

/// Words of a side of values, a block of 32 channels at a time.
template <typename K, typename G>
struct ValueBlocks {
  const PageSide<G>& side;
  __device__ __forceinline__ explicit ValueBlocks(const PageSide<G>& values) : side(values) {}
  __device__ __forceinline__ auto codes(int32_t m) const { return K::load_values(side, m); }
};
template <typename G>
struct ValueBlocks<Float16Page, G> {
  const PageSide<G>& side;
  __device__ __forceinline__ explicit ValueBlocks(const PageSide<G>& values) : side(values) {}
  __device__ __forceinline__ HalfWords codes(int32_t m) const {
    const int32_t t = side.lane.t;
    HalfWords words{};
    // Behind the last channel may be NaN, of which queries of 0 make no 0.
    if (!side.geometry.has_channel(32 * m + 4 * side.lane.g)) return words;
#pragma unroll
    for (int32_t step = 0; step < 2; ++step) {
      to_array(load_value_words(side, 4 * t + 2 * step, 2 * t, m), words.first[step]);
      to_array(load_value_words(side, 4 * t + 2 * step + 1, 2 * t, m), words.second[step]);
    }
    return words;
  }
};
template <typename K, typename G>
requires(K::kCode.has_gains()) struct ValueBlocks<K, G> : K::template ValueCodes<G> {
  using K::template ValueCodes<G>::ValueCodes;
};

/// Adds products of block m with tokens of tiles 2 · kStep and 2 · kStep + 1.
template <int32_t kStep, typename Codes, typename G>
__device__ __forceinline__ void score_block(const Codes& codes, const CommonQueries<G>& queries, int32_t m,
                                            Scores<G::kTiles>& sums) {
#pragma unroll
  for (int32_t p = 0; p < 2; ++p) {
    uint32_t a[4];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      a[2 * i] = transpose8x8(codes.template even<kStep>(2 * p + i));
      a[2 * i + 1] = transpose8x8(codes.template odd<kStep>(2 * p + i));
    }
#pragma unroll
    for (int32_t n = 0; n < G::kTiles; ++n) {
      mma(sums[n][kStep], a, queries.words[m][n][p][0], queries.words[m][n][p][1]);
    }
  }
}

/// Scale or minimum of the lane's tokens, one per tile, from a group's plane.
__device__ __forceinline__ void load_tokens(uint32_t plane, const Lane& lane, float (&of_tiles)[4]) {
  uint32_t pairs[4];
  load_eight(plane + static_cast<uint32_t>(16 * (lane.g >> 1)), pairs);
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    of_tiles[i] = __half2float(__ushort_as_half(static_cast<uint16_t>((lane.g & 1) != 0 ? pairs[i] >> 16U : pairs[i])));
  }
}

/// Adds the scores of a slice. `gains`: as of values; `row_scale`: of the lane's rows; `block_sums`: of queries,
/// [blocks][rows].
template <typename K, typename G>
__device__ __forceinline__ void score_common(const PageSide<G>& values, const TokenGains& gains,
                                             const CommonQueries<G>& queries, const float (&row_scale)[G::kTiles][2],
                                             const float* block_sums, Scores<G::kTiles>& scores) {
  constexpr bool kScales = K::kCode.is_integer();
  constexpr float kDown = 1.0F / static_cast<float>(1 << K::kOrder.shift);  // of codes of the second product
  const ValueBlocks<K, G> blocks(values);
  Scores<G::kTiles> sums;
  Scores<G::kTiles> whole;  // of integers
  clear(sums);
  if constexpr (kScales) clear(whole);
#pragma unroll
  for (int32_t m = 0; m < G::kChannels; ++m) {
    const int32_t block = values.geometry.begin() / 32 + m;
    if (!values.geometry.has_channel(32 * block)) break;
    const auto codes = blocks.codes(block);
    score_block<0>(codes, queries, m, sums);
    score_block<1>(codes, queries, m, sums);
    if constexpr (kScales) {
      const PageLayout& layout = values.layout;
      const uint32_t group = values.address + static_cast<uint32_t>(64 * (block >> layout.group_shift));
      float scale[4];
      float minimum[4];
      load_tokens(group + static_cast<uint32_t>(layout.values.codes), values.lane, scale);
      load_tokens(group + static_cast<uint32_t>(layout.values.minima()), values.lane, minimum);
#pragma unroll
      for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
        for (int32_t i = 0; i < 8; ++i) {
          const int32_t tile = i / 2;
          const float up = kSubnormalScale * (i < 4 ? 1.0F : kDown);
          const float of_row = block_sums[block * G::kRows + 8 * n + 2 * values.lane.t + i % 2];
          float& to = whole[n][i / 4][i % 4];
          to = fmaf(sums[n][i / 4][i % 4] * up, scale[tile], fmaf(minimum[tile], of_row, to));
        }
      }
      clear(sums);
    }
  }
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      float& to = scores[n][i / 4][i % 4];
      if constexpr (kScales) {
        to = fmaf(whole[n][i / 4][i % 4], row_scale[n][i % 2], to);
      } else if constexpr (K::kCode.has_gains()) {
        const float up =
            (K::kCode.is_trellis() ? kSubnormalScale / kTrellisWeight : kSubnormalScale) * (i < 4 ? 1.0F : kDown);
        const float of_codes = fmaf(sums[n][i / 4][i % 4], up, -K::kMiddle / K::kValueUnit * queries.sums[n][i % 2]);
        to = fmaf(of_codes * gains.of[i / 2], row_scale[n][i % 2], to);
      } else {
        to = fmaf(sums[n][i / 4][i % 4], row_scale[n][i % 2], to);
      }
    }
  }
}

}  // namespace kvq::cuda
