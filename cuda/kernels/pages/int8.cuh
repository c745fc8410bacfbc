// INT8 pages: one code per byte.
#pragma once

#include "kernels/pages/codes.cuh"

namespace kvq::cuda {

struct Int8Page {
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

  template <typename G>
  __device__ __forceinline__ static void score(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                               Scores<G::kTiles>& scores) {
    score_codes<Int8Page>(keys, queries, scores);
  }

  template <typename G>
  __device__ __forceinline__ static NoGains value_gains(const PageSide<G>& /*values*/) {
    return {};
  }

  template <typename G>
  __device__ __forceinline__ static void add_values(const PageSide<G>& values, const Weights<G::kTiles>& p,
                                                    Outputs<G>& outputs) {
    add_codes<Int8Page>(values, p, outputs);
  }
};

template <>
struct PageTypeOf<CodeType::integer(8)> {
  using Type = Int8Page;
};

}  // namespace kvq::cuda
