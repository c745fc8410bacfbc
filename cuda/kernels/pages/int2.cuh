// INT2 pages: four codes per byte.
#pragma once

#include "kernels/pages/codes.cuh"

namespace kvq::cuda {

struct Int2Page {
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

  template <typename G>
  __device__ __forceinline__ static void score(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                               Scores<G::kTiles>& scores) {
    score_codes<Int2Page>(keys, queries, scores);
  }

  template <typename G>
  __device__ __forceinline__ static NoGains value_gains(const PageSide<G>& /*values*/) {
    return {};
  }

  template <typename G>
  __device__ __forceinline__ static void add_values(const PageSide<G>& values, const Weights<G::kTiles>& p,
                                                    Outputs<G>& outputs) {
    add_codes<Int2Page>(values, p, outputs);
  }
};

template <>
struct PageTypeOf<CodeType::integer(2)> {
  using Type = Int2Page;
};

}  // namespace kvq::cuda
