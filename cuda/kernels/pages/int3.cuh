// INT3 pages: words with the low two bits of four codes per byte, and words with the third bit of eight.
#pragma once

#include "kernels/pages/codes.cuh"

namespace kvq::cuda {

struct Int3Page {
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

  template <typename G>
  __device__ __forceinline__ static void score(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                               Scores<G::kTiles>& scores) {
    score_codes<Int3Page>(keys, queries, scores);
  }

  template <typename G>
  __device__ __forceinline__ static NoGains value_gains(const PageSide<G>& /*values*/) {
    return {};
  }

  template <typename G>
  __device__ __forceinline__ static void add_values(const PageSide<G>& values, const Weights<G::kTiles>& p,
                                                    Outputs<G>& outputs) {
    add_codes<Int3Page>(values, p, outputs);
  }
};

template <>
struct PageTypeOf<CodeType::integer(3)> {
  using Type = Int3Page;
};

}  // namespace kvq::cuda
