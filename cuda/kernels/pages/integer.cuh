// Integer pages: codes of 2, 3, 4 and 8 bits.
#pragma once

#include "kernels/pages/codes.cuh"

namespace kvq::cuda {

/// What all integer pages share; `K` is the page type.
template <typename K>
struct IntegerPage {
  template <typename G>
  __device__ __forceinline__ static void score(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                               Scores<G::kTiles>& scores) {
    score_codes<K>(keys, queries, scores);
  }

  template <typename G>
  __device__ __forceinline__ static NoGains value_gains(const PageSide<G>& /*values*/) {
    return {};
  }

  template <typename G>
  __device__ __forceinline__ static void add_values(const PageSide<G>& values, const Weights<G::kTiles>& p,
                                                    Outputs<G>& outputs) {
    add_codes<K>(values, p, outputs);
  }
};

/// Four codes per byte.
struct Int2Page : IntegerPage<Int2Page> {
  static constexpr CodeType kCode = CodeType::integer(2);
  static constexpr KeyOrder kOrder = {.fields = 4, .shift = 2, .codes = true};

  template <typename G>
  __device__ __forceinline__ static CodeWords<2> load_keys(const PageSide<G>& side, int32_t i) {
    CodeWords<2> codes;
    load_key_codes(side, 4 * i, side.lane.t, codes.words);
    return codes;
  }

  template <typename G>
  __device__ __forceinline__ static CodeWords<2> load_values(const PageSide<G>& side, int32_t m) {
    CodeWords<2> codes;
    load_value_codes(side, side.lane.t >> 1, 2 * (side.lane.t >> 1), m, codes.words);
    for (uint32_t& each : codes.words) each >>= 4 * (side.lane.t & 1);
    return codes;
  }
};

/// Words with the low two bits of four codes per byte, and words with the third bit of eight.
struct Int3Page : IntegerPage<Int3Page> {
  static constexpr CodeType kCode = CodeType::integer(3);
  static constexpr KeyOrder kOrder = {.fields = 4, .shift = 0, .codes = true};

  struct Codes {
    uint32_t low[4];   // low two bits of each code
    uint32_t high[4];  // third bit of each code

    template <int kField>
    __device__ __forceinline__ uint32_t even(int32_t i) const {
      return code_pair3<kField>(low[i], high[i]);
    }
    template <int kField>
    __device__ __forceinline__ uint32_t odd(int32_t i) const {
      return code_pair3<kField>(low[i] >> 8U, high[i] >> 8U);
    }
  };

  template <typename G>
  __device__ __forceinline__ static Codes load_keys(const PageSide<G>& side, int32_t i) {
    Codes codes;
    load_key_codes(side, 4 * i, side.lane.t, codes.low);
    const int32_t first = (side.geometry.head_dim() + 15) / 16;
    load_key_codes(side, first + 4 * (i / 2), 2 * (i % 2) + (side.lane.t >> 1), codes.high);
    for (uint32_t& each : codes.high) each >>= 4 * (side.lane.t & 1);
    return codes;
  }

  template <typename G>
  __device__ __forceinline__ static Codes load_values(const PageSide<G>& side, int32_t m) {
    Codes codes;
    load_value_codes(side, side.lane.t >> 1, 2 * (side.lane.t >> 1), m, codes.low);
    load_value_codes(side, 2, 4, m, codes.high);
    for (uint32_t& each : codes.low) each >>= 4 * (side.lane.t & 1);
    for (uint32_t& each : codes.high) each >>= 2 * side.lane.t;
    return codes;
  }
};

/// Two codes per byte.
struct Int4Page : IntegerPage<Int4Page> {
  static constexpr CodeType kCode = CodeType::integer(4);
  static constexpr KeyOrder kOrder = {.fields = 2, .shift = 4, .codes = true};

  template <typename G>
  __device__ __forceinline__ static CodeWords<4> load_keys(const PageSide<G>& side, int32_t i) {
    CodeWords<4> codes;
    load_key_codes(side, 4 * i, side.lane.t, codes.words);
    return codes;
  }

  template <typename G>
  __device__ __forceinline__ static CodeWords<4> load_values(const PageSide<G>& side, int32_t m) {
    CodeWords<4> codes;
    load_value_codes(side, side.lane.t, 2 * side.lane.t, m, codes.words);
    return codes;
  }
};

/// One code per byte.
struct Int8Page : IntegerPage<Int8Page> {
  static constexpr CodeType kCode = CodeType::integer(8);
  static constexpr KeyOrder kOrder = {.fields = 1, .shift = 0, .codes = true};

  template <typename G>
  __device__ __forceinline__ static CodeWords<8> load_keys(const PageSide<G>& side, int32_t i) {
    CodeWords<8> codes;
    load_key_codes(side, 4 * i, side.lane.t, codes.words);
    return codes;
  }

  /// Each product over tokens has its own words.
  struct ValueCodes {
    CodeWords<8> products[2];

    template <int kStep>
    __device__ __forceinline__ uint32_t even(int32_t i) const {
      return products[kStep].even<0>(i);
    }
    template <int kStep>
    __device__ __forceinline__ uint32_t odd(int32_t i) const {
      return products[kStep].odd<0>(i);
    }
  };

  template <typename G>
  __device__ __forceinline__ static ValueCodes load_values(const PageSide<G>& side, int32_t m) {
    ValueCodes codes;
    load_value_codes(side, 2 * side.lane.t, 2 * side.lane.t, m, codes.products[0].words);
    load_value_codes(side, 2 * side.lane.t + 1, 2 * side.lane.t, m, codes.products[1].words);
    return codes;
  }
};

template <>
struct PageTypeOf<CodeType::integer(2)> {
  using Type = Int2Page;
};
template <>
struct PageTypeOf<CodeType::integer(3)> {
  using Type = Int3Page;
};
template <>
struct PageTypeOf<CodeType::integer(4)> {
  using Type = Int4Page;
};
template <>
struct PageTypeOf<CodeType::integer(8)> {
  using Type = Int8Page;
};

}  // namespace kvq::cuda
