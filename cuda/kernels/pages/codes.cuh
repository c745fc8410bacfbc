// Scores and weighted sums of pages in codes. A type `K` describes a kind of codes:
//
//   kCode, kOrder       code type, and arrangement of queries for its keys
//   load_keys           words of a lane's four tokens with the channels of all fields
//   load_values         words of a lane's four channels of a block with the tokens of two products
//
// Loaded words extract codes: even<field>(i) and odd<field>(i) are pairs of codes of token or channel i.
#pragma once

#include "kernels/pages/layout.cuh"
#include "kernels/pages/math.cuh"
#include "kernels/pages/outputs.cuh"
#include "kernels/pages/query_fragments.cuh"
#include "kernels/pages/scores.cuh"
#include "kernels/pages/softmax.cuh"

namespace kvq::cuda {

/// Words of kBits-bit codes, adjacent fields.
template <int kBits>
struct CodeWords {
  uint32_t words[4];

  template <int kField>
  __device__ __forceinline__ uint32_t even(int32_t i) const {
    return code_pair<kBits, kField>(words[i]);
  }
  template <int kField>
  __device__ __forceinline__ uint32_t odd(int32_t i) const {
    return code_pair<kBits, kField>(words[i] >> 8U);
  }
};

/// Loads key words at row `within` of the rows from `first` on; each four rows share a permutation. Rows past the head
/// do not exist.
template <typename G>
__device__ __forceinline__ void load_key_codes(const PageSide<G>& side, int32_t first, int32_t within,
                                               uint32_t (&words)[4]) {
  if constexpr (G::kExact) {
    load_key_words(side, first + within, key_swizzle(within), words);
  } else {
    const int32_t row = min(first + within, side.layout.keys.codes / 128 - 1);
    load_key_words(side, row, key_swizzle(row), words);
  }
}

template <typename G>
__device__ __forceinline__ void load_value_codes(const PageSide<G>& side, int32_t row, int32_t swizzle, int32_t m,
                                                 uint32_t (&words)[4]) {
  const uint4 four = load_value_words(side, row, swizzle, m);
  words[0] = four.x;
  words[1] = four.y;
  words[2] = four.z;
  words[3] = four.w;
}

/// Loads scales or minima of a word's 4 · kFours channels, two registers per four: the stored pairs (0, 2) and (1, 3).
/// Zero past the head.
template <int kFours, typename G>
__device__ __forceinline__ void load_channels(const G& geometry, uint32_t plane, int32_t channel,
                                              uint32_t (&pairs)[2 * kFours]) {
  const uint32_t address = plane + static_cast<uint32_t>(2 * channel);
  if constexpr (kFours == 1) {
    const auto two = load_shared<uint2>(address);
    pairs[0] = two.x;
    pairs[1] = two.y;
  } else {
#pragma unroll
    for (int32_t i = 0; i < kFours / 2; ++i) {
      const auto four = load_shared<uint4>(address + static_cast<uint32_t>(16 * i));
      pairs[4 * i] = four.x;
      pairs[4 * i + 1] = four.y;
      pairs[4 * i + 2] = four.z;
      pairs[4 * i + 3] = four.w;
    }
  }
  if constexpr (!G::kExact) {
#pragma unroll
    for (int32_t i = 0; i < kFours; ++i) {
      if (!geometry.has_channel(channel + 4 * i)) pairs[2 * i] = pairs[2 * i + 1] = 0;
    }
  }
}

/// Products per key word and lane.
template <typename K>
inline constexpr int32_t kKeyFields = K::kOrder.fields;

/// Key word, of those that a lane loads at once, with a warp's first channels.
template <typename K, typename G>
__device__ __forceinline__ int32_t first_word(const PageSide<G>& keys) {
  return keys.geometry.begin() / (16 * kKeyFields<K>);
}

/// Σ q · min of a page, transposed: rows are queries, all columns are equal. Rows 8 to 15 belong to the second query
/// tile; with one tile, to the next product, so only every second product counts there. Fields have separate sums,
/// because queries lack a power of two that depends on the field; even and odd products have separate sums, too.
template <typename K>
struct KeyBias {
  static constexpr int32_t kSums = kKeyFields<K> == 1 ? 2 : kKeyFields<K>;

  float sums[kSums][4] = {};
};

/// Bias of query g of tile n.
template <typename K, typename G>
__device__ __forceinline__ float bias_of(const KeyBias<K>& bias, int32_t n) {
  float of_row = 0.0F;
#pragma unroll
  for (int32_t f = 0; f < KeyBias<K>::kSums; ++f) {
    const auto weight = static_cast<float>(1 << (K::kOrder.shift * f));
    of_row = fmaf(bias.sums[f][G::kTiles == 2 ? 2 * n : 2 * (f % 2)], weight, of_row);
  }
  return of_row;
}

/// Adds the bias to summed products and scales them.
template <typename K, typename G>
__device__ __forceinline__ void finish_scores(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                              const KeyBias<K>& bias, Scores<G::kTiles>& scores) {
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
    const float of_row = bias_of<K, G>(bias, n);
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      const float sum = __shfl_sync(kAll, of_row, 4 * (2 * keys.lane.t + c));
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        float& each = scores[n][i / 2][2 * (i % 2) + c];
        each = fmaf(each, kSubnormalScale, sum);
      }
    }
  }
  scale_scores(queries.row_scale, scores);
}

/// Adds the products of fields kField and up of words `i`.
template <typename K, int32_t kField, typename G, typename Codes>
__device__ __forceinline__ void score_fields(int32_t i, const Codes& codes, const uint32_t (&scale)[2 * kKeyFields<K>],
                                             const uint32_t (&minimum)[2 * kKeyFields<K>],
                                             const QueryFragments<G>& queries, Scores<G::kTiles>& scores,
                                             KeyBias<K>& bias) {
  if constexpr (kField < kKeyFields<K>) {
    const int32_t step = kKeyFields<K> * i + kField;
    uint32_t even[4];
    uint32_t odd[4];
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      even[j] = codes.template even<kField>(j);
      odd[j] = codes.template odd<kField>(j);
    }
#pragma unroll
    for (int32_t n = 0; n < G::kTiles; ++n) {
      const uint32_t q0 = multiply(queries.of_codes(n, step, 0), scale[2 * kField]);
      const uint32_t q1 = multiply(queries.of_codes(n, step, 1), scale[2 * kField + 1]);
      mma(scores[n][0], even[0], even[1], odd[0], odd[1], q0, q1);
      mma(scores[n][1], even[2], even[3], odd[2], odd[3], q0, q1);
    }
    const uint32_t(&quad)[4] = queries.quads[step * G::kTiles / 2];
    mma(bias.sums[kKeyFields<K> == 1 ? i % 2 : kField], quad[0], quad[1], quad[2], quad[3], minimum[2 * kField],
        minimum[2 * kField + 1]);
    score_fields<K, kField + 1>(i, codes, scale, minimum, queries, scores, bias);
  }
}

template <typename K, typename G>
__device__ __forceinline__ void score_codes(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                            Scores<G::kTiles>& scores) {
  constexpr int32_t kFields = kKeyFields<K>;
  static_assert(G::kSteps % kFields == 0);
  clear(scores);
  KeyBias<K> bias;
  const SidePlaces bytes = key_bytes_of<K, G>(keys.layout);
  const uint32_t scales = keys.address + static_cast<uint32_t>(bytes.codes);
  const uint32_t minima = keys.address + static_cast<uint32_t>(bytes.minima());
#pragma unroll
  for (int32_t i = 0; i < G::kSteps / kFields; ++i) {
    const auto codes = K::load_keys(keys, first_word<K>(keys) + i);
    const int32_t channel = keys.geometry.begin() + 16 * kFields * i + 4 * kFields * keys.lane.t;
    uint32_t scale[2 * kFields];
    uint32_t minimum[2 * kFields];
    load_channels<kFields>(keys.geometry, scales, channel, scale);
    load_channels<kFields>(keys.geometry, minima, channel, minimum);
    score_fields<K, 0>(i, codes, scale, minimum, queries, scores, bias);
  }
  finish_scores<K>(keys, queries, bias, scores);
}

/// Loads eight tokens' scales or minima: the stored pairs (0, 2), (1, 3), (4, 6), (5, 7).
__device__ __forceinline__ void load_eight(uint32_t address, uint32_t (&pairs)[4]) {
  const auto eight = load_shared<uint4>(address);
  pairs[0] = eight.x;
  pairs[1] = eight.y;
  pairs[2] = eight.z;
  pairs[3] = eight.w;
}

/// Adds product kStep over tokens for channel block m.
template <int32_t kStep, typename Codes, int NT, typename Sums>
__device__ __forceinline__ void add_products(const Codes& codes, const Weights<NT>& p, int32_t m, Sums& outputs) {
  uint32_t even[4];
  uint32_t odd[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    even[i] = codes.template even<kStep>(i);
    odd[i] = codes.template odd<kStep>(i);
  }
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
    float(&out)[2][4] = outputs.channels[n][m];
    mma(out[0], even[0], even[1], odd[0], odd[1], p[n][2 * kStep], p[n][2 * kStep + 1]);
    mma(out[1], even[2], even[3], odd[2], odd[3], p[n][2 * kStep], p[n][2 * kStep + 1]);
  }
}

/// Scales down the weights of a word's second product, which takes the codes of the next field.
template <typename K, int NT>
__device__ __forceinline__ void lower_second(const Weights<NT>& p, Weights<NT>& lowered) {
  constexpr uint32_t kDown = static_cast<uint32_t>(15 - K::kOrder.shift) << 10U;
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      lowered[n][i] = i < 2 || K::kOrder.shift == 0 ? p[n][i] : multiply(p[n][i], kDown | kDown << 16U);
    }
  }
}

template <typename K, typename G>
__device__ __forceinline__ void add_codes(const PageSide<G>& values, const Weights<G::kTiles>& p, Outputs<G>& outputs) {
  const PageLayout& layout = values.layout;
  const uint32_t planes = values.address + static_cast<uint32_t>(16 * values.lane.t);
  {
    // Σ p · min of every group of channels: row g is the warp's group g.
    const int32_t group = ((values.geometry.begin() / 32) >> layout.group_shift) + values.lane.g;
    uint32_t minima[4];
    load_eight(planes + static_cast<uint32_t>(layout.values.minima() + 64 * group), minima);
#pragma unroll
    for (int32_t n = 0; n < G::kTiles; ++n) {
      mma(outputs.bias[n], minima[0], 0, minima[1], 0, p[n][0], p[n][1]);
      mma(outputs.bias[n], minima[2], 0, minima[3], 0, p[n][2], p[n][3]);
    }
  }
  Weights<G::kTiles> lowered;
  lower_second<K>(p, lowered);
#pragma unroll
  for (int32_t m = 0; m < G::kChannels; ++m) {
    const int32_t block = values.geometry.begin() / 32 + m;
    if (!values.geometry.has_channel(32 * block)) break;
    uint32_t scales[4];
    const int32_t group = block >> layout.group_shift;
    load_eight(planes + static_cast<uint32_t>(value_codes_of<K, G>(layout) + 64 * group), scales);
    uint32_t scaled[G::kTiles][4];
#pragma unroll
    for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) scaled[n][i] = multiply(lowered[n][i], scales[i]);
    }
    const auto codes = K::load_values(values, block);
    add_products<0>(codes, scaled, m, outputs);
    add_products<1>(codes, scaled, m, outputs);
  }
}

}  // namespace kvq::cuda
