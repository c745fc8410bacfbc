// Gain–shape pages: codes are multiplied directly; a token's gain multiplies its score, or its weight before values are
// summed. A type `K` of these pages adds to those of codes.cuh:
//
//   kMiddle             codes represent code − kMiddle
//   kValueUnit          factor on weights
//   ValueCodes          of a page: codes(m) are words of the lane's four channels of block m
#pragma once

#include "formats/gain_shape/layout.h"
#include "kernels/pages/codes.cuh"
#include "kernels/pages/integer.cuh"

namespace kvq::cuda {

/// Gains of the lane's four tokens: unit · largest · 2^((code − 255)/32), and 0 for code 0.
__device__ __forceinline__ TokenGains load_gains(uint32_t gains, uint32_t largest, float unit, const Lane& lane) {
  const auto codes = load_shared<uint32_t>(gains + static_cast<uint32_t>(4 * lane.g));
  const auto half = __ushort_as_half(static_cast<uint16_t>(load_shared<uint32_t>(largest)));
  const float raise = log2_fast(__half2float(half) * unit) - (1024.0F + 255.0F / 32.0F);
  TokenGains gain;
#pragma unroll
  for (uint32_t tile = 0; tile < 4; ++tile) {
    // 1024 + code / 32
    const uint32_t bits = __byte_perm(codes, 0x44800000U, 0x7604U | tile << 4U);
    gain.of[tile] = exp2_fast(__uint_as_float(bits) + raise);
  }
  if (((codes - 0x01010101U) & ~codes & 0x80808080U) != 0) {
#pragma unroll
    for (uint32_t tile = 0; tile < 4; ++tile) {
      if ((codes >> (8 * tile) & 0xFFU) == 0) gain.of[tile] = 0.0F;
    }
  }
  return gain;
}

template <typename G>
__device__ __forceinline__ TokenGains load_key_gains(const PageSide<G>& keys) {
  static_assert(kKeyLargest == 0);
  return load_gains(keys.address + static_cast<uint32_t>(keys.layout.keys.gains),
                    keys.address + static_cast<uint32_t>(keys.layout.keys.numbers), 1.0F, keys.lane);
}

template <typename G>
__device__ __forceinline__ TokenGains load_value_gains(const PageSide<G>& values, CodeType kind) {
  return load_gains(values.address + static_cast<uint32_t>(values.layout.values.gains),
                    values.address + static_cast<uint32_t>(values.layout.values.numbers + 2 * kValueLargest),
                    kind.is_trellis() ? kTrellisWeight : 1.0F, values.lane);
}

/// Sums of products of keys and queries. A single query tile has two sums to shorten the dependency chains.
template <typename G>
struct KeySums {
  static constexpr int32_t kParts = G::kTiles == 1 ? 2 : 1;

  Scores<G::kTiles> parts[kParts];

  __device__ __forceinline__ KeySums() {
#pragma unroll
    for (int32_t i = 0; i < kParts; ++i) clear(parts[i]);
  }
  __device__ __forceinline__ float of(int32_t n, int32_t tile, int32_t c) const {
    const int32_t at = 2 * (tile % 2) + c;
    const float first = parts[0][n][tile / 2][at];
    return kParts == 1 ? first : first + parts[kParts - 1][n][tile / 2][at];
  }
};

/// Adds the products of fields kField and up of words `i`.
template <typename K, int32_t kField, typename G, typename Codes>
__device__ __forceinline__ void multiply_fields(int32_t i, const Codes& codes, const QueryFragments<G>& queries,
                                                KeySums<G>& sums) {
  if constexpr (kField < kKeyFields<K>) {
    const int32_t step = kKeyFields<K> * i + kField;
    uint32_t even[4];
    uint32_t odd[4];
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      even[j] = codes.template even<kField>(j);
      odd[j] = codes.template odd<kField>(j);
    }
    Scores<G::kTiles>& scores = sums.parts[kField % KeySums<G>::kParts];
#pragma unroll
    for (int32_t n = 0; n < G::kTiles; ++n) {
      const uint32_t q0 = queries.of_codes(n, step, 0);
      const uint32_t q1 = queries.of_codes(n, step, 1);
      mma(scores[n][0], even[0], even[1], odd[0], odd[1], q0, q1);
      mma(scores[n][1], even[2], even[3], odd[2], odd[3], q0, q1);
    }
    multiply_fields<K, kField + 1>(i, codes, queries, sums);
  }
}

/// Products of queries with their page's mean, per column of scores.
template <int NT>
using MeanScores = float[NT][2];

template <typename K, typename G>
__device__ __forceinline__ void score_mean(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                           MeanScores<G::kTiles>& scores) {
  constexpr int32_t kFields = kKeyFields<K>;
  float sums[G::kTiles][kFields][4];
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 4 * kFields; ++i) sums[n][i / 4][i % 4] = 0.0F;
  }
  const uint32_t mean =
      keys.address + static_cast<uint32_t>(keys.layout.keys.mean + keys.geometry.begin() + 4 * kFields * keys.lane.t);
#pragma unroll
  for (int32_t i = 0; i < G::kSteps / kFields; ++i) {
#pragma unroll
    for (int32_t f = 0; f < kFields; f += 2) {
      const auto words = load_shared<uint2>(mean + static_cast<uint32_t>(16 * kFields * i + 4 * f));
#pragma unroll
      for (int32_t j = 0; j < 2; ++j) {
        const uint32_t word = j == 0 ? words.x : words.y;
        const uint32_t even = __byte_perm(word, 0, 0x4240);  // bytes 0 and 2
        const uint32_t odd = __byte_perm(word, 0, 0x4341);
        const int32_t step = kFields * i + f + j;
#pragma unroll
        for (int32_t n = 0; n < G::kTiles; ++n) {
          // All rows are equal.
          mma(sums[n][f + j], even, 0, odd, 0, queries.of_codes(n, step, 0), queries.of_codes(n, step, 1));
        }
      }
    }
  }
  static_assert(kMeanScale == 1);
  const auto halves = load_shared<uint32_t>(keys.address + static_cast<uint32_t>(keys.layout.keys.numbers));
  const float scale = __half2float(__ushort_as_half(static_cast<uint16_t>(halves >> 16U)));
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      float sum = sums[n][0][c];
#pragma unroll
      for (int32_t f = 1; f < kFields; ++f) {
        sum = fmaf(sums[n][f][c], static_cast<float>(1 << (K::kOrder.shift * f)), sum);
      }
      const float of_codes = fmaf(sum, kSubnormalScale, -static_cast<float>(kMeanFlip) * queries.sums[n][c]);
      scores[n][c] = of_codes * scale * queries.row_scale[n][c];
    }
  }
}

template <typename K, typename G>
__device__ __forceinline__ void score_gains(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                            Scores<G::kTiles>& scores) {
  constexpr int32_t kFields = kKeyFields<K>;
  static_assert(G::kSteps % kFields == 0);
  const TokenGains gains = load_key_gains(keys);
  KeySums<G> sums;
#pragma unroll
  for (int32_t i = 0; i < G::kSteps / kFields; ++i) {
    multiply_fields<K, 0>(i, K::load_keys(keys, first_word<K>(keys) + i), queries, sums);
  }
  MeanScores<G::kTiles> mean = {};
  if (keys.layout.format.page_mean()) score_mean<K>(keys, queries, mean);
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      const float scale = queries.row_scale[n][c];
      const float middle = -K::kMiddle * queries.sums[n][c] * scale;
#pragma unroll
      for (int32_t tile = 0; tile < 4; ++tile) {
        const float of_codes = fmaf(sums.of(n, tile, c), kSubnormalScale * scale, middle);
        scores[n][tile / 2][2 * (tile % 2) + c] = fmaf(of_codes, gains.of[tile], mean[n][c]);
      }
    }
  }
}

/// Outputs of one channel block of a page.
template <int NT>
struct PageSums {
  float channels[NT][1][2][4] = {};
};

template <typename K, typename G>
__device__ __forceinline__ void add_gains(const PageSide<G>& values, const Weights<G::kTiles>& p, Outputs<G>& outputs) {
  if constexpr (K::kMiddle != 0.0F) {
    // −middle · Σ p, the same for every group of channels.
    const uint32_t middle = pack(-K::kMiddle / K::kValueUnit, -K::kMiddle / K::kValueUnit);
#pragma unroll
    for (int32_t n = 0; n < G::kTiles; ++n) {
      mma(outputs.bias[n], middle, 0, middle, 0, p[n][0], p[n][1]);
      mma(outputs.bias[n], middle, 0, middle, 0, p[n][2], p[n][3]);
    }
  }
  Weights<G::kTiles> lowered;
  lower_second<K>(p, lowered);
  typename K::template ValueCodes<G> page(values);
#pragma unroll
  for (int32_t m = 0; m < G::kChannels; ++m) {
    const int32_t block = values.geometry.begin() / 32 + m;
    if (!values.geometry.has_channel(32 * block)) break;
    const auto codes = page.codes(block);
    if constexpr (G::kCentres) {
      PageSums<G::kTiles> sums;
      add_products<0>(codes, lowered, 0, sums);
      add_products<1>(codes, lowered, 0, sums);
#pragma unroll
      for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
        for (int32_t i = 0; i < 8; ++i) {
          float& out = outputs.channels[n][m][i / 4][i % 4];
          out = fmaf(sums.channels[n][0][i / 4][i % 4], code_scale(K::kCode), out);
        }
      }
    } else {
      add_products<0>(codes, lowered, m, outputs);
      add_products<1>(codes, lowered, m, outputs);
    }
  }
}

/// Operations common to all kinds with gains.
template <typename K>
struct GainPage {
  template <typename G>
  __device__ __forceinline__ static void score(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                               Scores<G::kTiles>& scores) {
    score_gains<K>(keys, queries, scores);
  }
  template <typename G>
  __device__ __forceinline__ static TokenGains value_gains(const PageSide<G>& values) {
    return load_value_gains(values, K::kCode);
  }
  template <typename G>
  __device__ __forceinline__ static void add_values(const PageSide<G>& values, const Weights<G::kTiles>& p,
                                                    Outputs<G>& outputs) {
    add_gains<K>(values, p, outputs);
  }
};

/// Scalar codes have the layout of integer codes: `Words` loads them.
template <CodeType kScalar, typename Words>
struct ScalarPage : GainPage<ScalarPage<kScalar, Words>> {
  static constexpr CodeType kCode = kScalar;
  static constexpr KeyOrder kOrder = Words::kOrder;
  static constexpr float kMiddle = gain_shape::middle(kScalar.bits);
  static constexpr float kValueUnit = 1.0F;

  template <typename G>
  __device__ __forceinline__ static auto load_keys(const PageSide<G>& side, int32_t i) {
    return Words::load_keys(side, i);
  }

  template <typename G>
  struct ValueCodes {
    const PageSide<G>& side;

    __device__ __forceinline__ explicit ValueCodes(const PageSide<G>& of) : side(of) {}
    __device__ __forceinline__ auto codes(int32_t m) const { return Words::load_values(side, m); }
  };
};

/// Eight codes per byte; two lanes share words.
struct OneBit {
  static constexpr KeyOrder kOrder = {.fields = 4, .shift = 1, .codes = true};

  template <typename G>
  __device__ __forceinline__ static CodeWords<1> load_keys(const PageSide<G>& side, int32_t i) {
    CodeWords<1> codes;
    load_key_codes(side, 4 * (i / 2), 2 * (i % 2) + (side.lane.t >> 1), codes.words);
    for (uint32_t& each : codes.words) each >>= 4 * (side.lane.t & 1);
    return codes;
  }

  template <typename G>
  __device__ __forceinline__ static CodeWords<1> load_values(const PageSide<G>& side, int32_t m) {
    CodeWords<1> codes;
    load_value_codes(side, 0, 0, m, codes.words);
    for (uint32_t& each : codes.words) each >>= 2 * side.lane.t;
    return codes;
  }
};

template <>
struct PageTypeOf<CodeType::gain_scalar(4)> {
  using Type = ScalarPage<CodeType::gain_scalar(4), Int4Page>;
};
template <>
struct PageTypeOf<CodeType::gain_scalar(3)> {
  using Type = ScalarPage<CodeType::gain_scalar(3), Int3Page>;
};
template <>
struct PageTypeOf<CodeType::gain_scalar(2)> {
  using Type = ScalarPage<CodeType::gain_scalar(2), Int2Page>;
};
template <>
struct PageTypeOf<CodeType::gain_scalar(1)> {
  using Type = ScalarPage<CodeType::gain_scalar(1), OneBit>;
};

}  // namespace kvq::cuda
