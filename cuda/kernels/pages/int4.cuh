// INT4 pages: two codes per byte.
#pragma once

#include "kernels/pages/codes.cuh"

namespace kvq::cuda {

struct Int4Page {
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

  template <typename G>
  __device__ __forceinline__ static void score(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                               Scores<G::kTiles>& scores) {
    score_codes<Int4Page>(keys, queries, scores);
  }

  template <typename G>
  __device__ __forceinline__ static NoGains value_gains(const PageSide<G>& /*values*/) {
    return {};
  }

  template <typename G>
  __device__ __forceinline__ static void add_values(const PageSide<G>& values, const Weights<G::kTiles>& p,
                                                    Outputs<G>& outputs) {
    add_codes<Int4Page>(values, p, outputs);
  }
};

template <>
struct PageTypeOf<CodeType::integer(4)> {
  using Type = Int4Page;
};

}  // namespace kvq::cuda
