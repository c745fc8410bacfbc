// Decodes pages through attention's products: keys times rows of a unit matrix, or of the rotation's matrix for rotated
// keys; values times weights that select one token each.
#pragma once

#include "kernels/pages/key_operands.cuh"
#include "kernels/pages/kinds.cuh"

namespace kvq::cuda {

/// Packs two values with saturation to finite FP16.
__device__ __forceinline__ uint32_t pack_finite(float low, float high) {
  constexpr float kMost = 65504.0F;
  return pack(fminf(fmaxf(low, -kMost), kMost), fminf(fmaxf(high, -kMost), kMost));
}

/// Element of the matrix by which keys are multiplied; of the rotation's without the norm of its blocks.
__device__ __forceinline__ __half unit_number(int32_t row, int32_t channel, bool rotated, const BlockMix& mix) {
  if (!rotated) return __float2half_rn(row == channel ? 1.0F : 0.0F);
  const int32_t width = mix.width();
  if (channel >= mix.head_dim()) return __float2half_rn(0.0F);
  const float factor = mix.mixes() ? mix.factor(row / width, channel / width) : 1.0F;
  return __float2half_rn((__popc(row & channel & (width - 1)) & 1) != 0 ? -factor : factor);
}

/// Keys whose operands are rebuilt for every score.
template <typename K, typename G>
struct WholeKeys {
  __device__ __forceinline__ explicit WholeKeys(const PageSide<G>& /*keys*/) {}
  __device__ __forceinline__ void score(const PageSide<G>& keys, const QueryFragments<G>& queries,
                                        Scores<G::kTiles>& scores) const {
    K::score(keys, queries, scores);
  }
};

/// Short rows fit in registers as decoded operands.
template <typename K, typename G>
using ScoredKeys = std::conditional_t<K::kOrder.codes && G::kWidth <= 128, KeyOperands<K, G>, WholeKeys<K, G>>;

/// Decodes keys in passes of G::kRows channels and calls `store` with the values of all tokens, arranged like scores,
/// and the pass's first channel. `rows` returns the matrix rows of a pass.
template <typename G, typename Rows, typename Store>
__device__ __forceinline__ void decode_keys(const PageSide<G>& keys, const Rows& rows, const Store& store) {
  PageKinds<G>::visit(keys.layout.format.keys(), [&](auto kind) {
    using K = decltype(kind);
    const ScoredKeys<K, G> scored(keys);
    const float scale =
        keys.layout.format.hadamard_keys() ? rsqrtf(static_cast<float>(keys.geometry.hadamard_block())) : 1.0F;
    const KeyOrder order = key_order<K, G>(K::kCode);
    QueryFragments<G> queries;
#pragma unroll
    for (int32_t i = 0; i < 2 * G::kTiles; ++i) queries.row_scale[i / 2][i % 2] = scale;
#pragma unroll 1
    for (int32_t first = 0; first < keys.geometry.head_dim(); first += G::kRows) {
      load_fragments<G>(rows(first / G::kRows), order, keys.lane, queries);
      if constexpr (K::kCode.has_gains()) sum_queries(order, keys.lane, queries);
      Scores<G::kTiles> scores;
      scored.score(keys, queries, scores);
      store(scores, first);
    }
  });
}

/// Weights of queries that each select one token from `first` on, times the token's gain.
template <int NT, typename Gains>
__device__ __forceinline__ void unit_weights(int32_t first, const Gains& gains, const Lane& lane, Weights<NT>& p) {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t tile = 0; tile < 4; ++tile) {
      const int32_t query = token_of(lane.g, tile) - first - 8 * n - 2 * lane.t;
      const float gain = gains.apply(1.0F, tile);
      p[n][tile] = transpose8x8(pack(query == 0 ? gain : 0.0F, query == 1 ? gain : 0.0F));
    }
  }
}

/// Decodes values in passes of G::kRows tokens and calls `store` with their outputs and the pass's first token.
template <typename G, typename Store>
__device__ __forceinline__ void decode_values(const PageSide<G>& values, const Store& store) {
  // Branches on the kind in every pass, so that kind-independent code exists once.
#pragma unroll 1
  for (int32_t first = 0; first < kSlots; first += G::kRows) {
    Outputs<G> outputs;
    clear(outputs);
    PageKinds<G>::visit(values.layout.format.values(), [&](auto kind) {
      using K = decltype(kind);
      Weights<G::kTiles> p;
      unit_weights<G::kTiles>(first, K::value_gains(values), values.lane, p);
      K::add_values(values, p, outputs);
      if constexpr (!K::kCode.is_float16()) {
        finish_codes(outputs, code_scale(K::kCode), values.layout.group_shift, values.lane);
      }
    });
    if (values.layout.format.hadamard_values()) change_space(values.geometry, values.lane, outputs);
    store(outputs, first);
  }
}

}  // namespace kvq::cuda
