// Key operands of a page, extracted once for many rows of queries.
#pragma once

#include "kernels/pages/gain_shape.cuh"

namespace kvq::cuda {

/// First operands of all products over channels, with scales and minima for integers.
template <typename K, typename G>
struct KeyOperands {
  static constexpr int32_t kFields = kKeyFields<K>;
  static constexpr bool kScales = !K::kCode.has_gains();

  uint32_t even[G::kSteps][4];
  uint32_t odd[G::kSteps][4];
  uint32_t scales[kScales ? G::kSteps : 1][2];
  uint32_t minima[kScales ? G::kSteps : 1][2];
  TokenGains gains;  // for kinds with gains

  __device__ __forceinline__ explicit KeyOperands(const PageSide<G>& keys) {
    const SidePlaces bytes = key_bytes_of<K, G>(keys.layout);
#pragma unroll
    for (int32_t i = 0; i < G::kSteps / kFields; ++i) {
      take_apart<0>(i, K::load_keys(keys, i));
      if constexpr (kScales) {
        const int32_t channel = 16 * kFields * i + 4 * kFields * keys.lane.t;
        uint32_t scale[2 * kFields];
        uint32_t minimum[2 * kFields];
        load_channels<kFields>(keys.geometry, keys.address + static_cast<uint32_t>(bytes.codes), channel, scale);
        load_channels<kFields>(keys.geometry, keys.address + static_cast<uint32_t>(bytes.minima()), channel, minimum);
#pragma unroll
        for (int32_t f = 0; f < 2 * kFields; ++f) {
          scales[kFields * i + f / 2][f % 2] = scale[f];
          minima[kFields * i + f / 2][f % 2] = minimum[f];
        }
      }
    }
    if constexpr (!kScales) gains = load_key_gains(keys);
  }

  /// Equals K::score.
  __device__ __forceinline__ void score(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                        Scores<G::kTiles>& scores) const {
    if constexpr (kScales) {
      score_integers(keys, queries, scores);
    } else {
      score_with_gains(keys, queries, scores);
    }
  }

 private:
  template <int32_t kField, typename Codes>
  __device__ __forceinline__ void take_apart(int32_t i, const Codes& codes) {
    if constexpr (kField < kFields) {
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        even[kFields * i + kField][j] = codes.template even<kField>(j);
        odd[kFields * i + kField][j] = codes.template odd<kField>(j);
      }
      take_apart<kField + 1>(i, codes);
    }
  }

  __device__ __forceinline__ void multiply_step(int32_t step, uint32_t q0, uint32_t q1, float (&to)[2][4]) const {
    mma(to[0], even[step][0], even[step][1], odd[step][0], odd[step][1], q0, q1);
    mma(to[1], even[step][2], even[step][3], odd[step][2], odd[step][3], q0, q1);
  }

  __device__ __forceinline__ void score_with_gains(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                                   Scores<G::kTiles>& scores) const {
    clear(scores);
#pragma unroll
    for (int32_t step = 0; step < G::kSteps; ++step) {
#pragma unroll
      for (int32_t n = 0; n < G::kTiles; ++n) {
        multiply_step(step, queries.of_codes(n, step, 0), queries.of_codes(n, step, 1), scores[n]);
      }
    }
    MeanScores<G::kTiles> mean = {};
    if (keys.layout.format.page_mean()) score_mean<K>(keys, queries, mean);
#pragma unroll
    for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) {
        const int32_t c = i % 2;
        const float scale = queries.row_scale[n][c];
        const float middle = -K::kMiddle * queries.sums[n][c] * scale;
        float& each = scores[n][i / 4][i % 4];
        each = fmaf(fmaf(each, kSubnormalScale * scale, middle), gains.of[i / 2], mean[n][c]);
      }
    }
  }

  __device__ __forceinline__ void score_integers(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                                 Scores<G::kTiles>& scores) const {
    clear(scores);
    KeyBias<K> bias;
#pragma unroll
    for (int32_t step = 0; step < G::kSteps; ++step) {
#pragma unroll
      for (int32_t n = 0; n < G::kTiles; ++n) {
        multiply_step(step, multiply(queries.of_codes(n, step, 0), scales[step][0]),
                      multiply(queries.of_codes(n, step, 1), scales[step][1]), scores[n]);
      }
      const uint32_t(&quad)[4] = queries.quads[step * G::kTiles / 2];
      mma(bias.sums[kFields == 1 ? step % 2 : step % kFields], quad[0], quad[1], quad[2], quad[3], minima[step][0],
          minima[step][1]);
    }
    finish_scores<K>(keys, queries, bias, scores);
  }
};

}  // namespace kvq::cuda
