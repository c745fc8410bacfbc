// FP16 pages: a word holds two neighbouring channels of keys, or tokens of values.
#pragma once

#include "kernels/pages/layout.cuh"
#include "kernels/pages/outputs.cuh"
#include "kernels/pages/query_fragments.cuh"
#include "kernels/pages/scores.cuh"
#include "kernels/pages/softmax.cuh"

namespace kvq::cuda {

struct Float16Page {
  static constexpr CodeType kCode = CodeType::float16();
  static constexpr KeyOrder kOrder{.fields = 1, .shift = 0, .codes = false};

  template <typename G>
  __device__ __forceinline__ static void score(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                               Scores<G::kTiles>& scores) {
    clear(scores);
    const int32_t swizzle = key_swizzle(keys.lane.t);
#pragma unroll
    for (int32_t step = 0; step < G::kSteps; ++step) {
      const int32_t row = keys.geometry.begin() / 2 + 8 * step + 2 * keys.lane.t;
      const bool inside = keys.geometry.has_channel(2 * row);
      uint32_t first[4];
      uint32_t second[4];
      load_key_words(keys, inside ? row : 0, inside ? swizzle : 0, first);
      load_key_words(keys, inside ? row + 1 : 0, inside ? swizzle : 0, second);
#pragma unroll
      for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
        for (int32_t m = 0; m < 2; ++m) {
          mma(scores[n][m], first[2 * m], first[2 * m + 1], second[2 * m], second[2 * m + 1],
              queries.of_halves(n, step, 0), queries.of_halves(n, step, 1));
        }
      }
    }
    scale_scores(queries.row_scale, scores);
  }

  template <typename G>
  __device__ __forceinline__ static NoGains value_gains(const PageSide<G>& /*values*/) {
    return {};
  }

  template <typename G>
  __device__ __forceinline__ static void add_values(const PageSide<G>& values, const Weights<G::kTiles>& p,
                                                    Outputs<G>& outputs) {
    const int32_t t = values.lane.t;
#pragma unroll
    for (int32_t m = 0; m < G::kChannels; ++m) {
      const int32_t block = values.geometry.begin() / 32 + m;
      if (!values.geometry.has_channel(32 * block)) break;
#pragma unroll
      for (int32_t step = 0; step < 2; ++step) {
        const uint4 a = load_value_words(values, 4 * t + 2 * step, 2 * t, block);
        const uint4 b = load_value_words(values, 4 * t + 2 * step + 1, 2 * t, block);
#pragma unroll
        for (int32_t n = 0; n < G::kTiles; ++n) {
          float(&out)[2][4] = outputs.channels[n][m];
          mma(out[0], low_halves(a.x, b.x), low_halves(a.y, b.y), high_halves(a.x, b.x), high_halves(a.y, b.y),
              p[n][2 * step], p[n][2 * step + 1]);
          mma(out[1], low_halves(a.z, b.z), low_halves(a.w, b.w), high_halves(a.z, b.z), high_halves(a.w, b.w),
              p[n][2 * step], p[n][2 * step + 1]);
        }
      }
    }
  }
};

template <>
struct PageTypeOf<CodeType::float16()> {
  using Type = Float16Page;
};

}  // namespace kvq::cuda
