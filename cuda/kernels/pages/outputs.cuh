// A warp's outputs in registers while it walks pages.
#pragma once

#include "kernels/device/fragments.cuh"
#include "kernels/device/head_rotation.cuh"
#include "kernels/pages/layout.cuh"

namespace kvq::cuda {

/// Weighted sums of values. Channel 32m + 4g + 2h + i of query 8n + 2t + c is channels[n][m][h][2i + c]; `bias` holds
/// the minima's contribution, with group g of channels in row g.
template <typename G>
struct Outputs {
  float bias[G::kTiles][4];  // Σ p · min
  float channels[G::kTiles][G::kChannels][2][4];
};

template <typename G>
__device__ __forceinline__ void clear(Outputs<G>& outputs) {
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) outputs.bias[n][i] = 0.0F;
#pragma unroll
    for (int32_t m = 0; m < G::kChannels; ++m) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) outputs.channels[n][m][0][i] = outputs.channels[n][m][1][i] = 0.0F;
    }
  }
}

/// Scales the sums of query 8n + 2t + c.
template <typename G>
__device__ __forceinline__ void rescale(Outputs<G>& outputs, int32_t n, int32_t c, float factor) {
  outputs.bias[n][c] *= factor;
  outputs.bias[n][c + 2] *= factor;
#pragma unroll
  for (int32_t m = 0; m < G::kChannels; ++m) {
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      outputs.channels[n][m][h][c] *= factor;
      outputs.channels[n][m][h][c + 2] *= factor;
    }
  }
}

template <typename G>
__device__ __forceinline__ void scale(Outputs<G>& outputs, float factor) {
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 8 * G::kChannels; ++i) outputs.channels[n][i / 8][i / 4 % 2][i % 4] *= factor;
  }
}

/// Factor missing from products with codes of values.
__device__ __forceinline__ float code_scale(CodeType values) {
  return values.is_trellis() ? kSubnormalScale / kTrellisWeight : kSubnormalScale;
}
/// Factor missing from the outputs of a run of pages. In kernels with centre rows, the outputs of gain–shape pages
/// already include it.
template <typename G>
__device__ __forceinline__ float output_scale(CodeType values) {
  return G::kCentres && values.has_gains() ? 1.0F : code_scale(values);
}

/// Completes outputs after pages of codes: applies the missing factor and adds the minima's contribution. `first`: of
/// the outputs' channels.
template <typename G>
__device__ __forceinline__ void finish_codes(Outputs<G>& outputs, float code_scale, int32_t group_shift,
                                             const Lane& lane, int32_t first = 0) {
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
    for (int32_t m = 0; m < G::kChannels; ++m) {
      const int32_t group = ((first / 32 + m) >> group_shift) - ((first / 32) >> group_shift);
      const int32_t source = 4 * group + lane.t;
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        const float each = __shfl_sync(kAll, outputs.bias[n][c], source & 31);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          float& out = outputs.channels[n][m][i / 2][2 * (i % 2) + c];
          out = fmaf(out, code_scale, each);
        }
      }
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) outputs.bias[n][i] = 0.0F;
  }
}

/// Mixes blocks of channels. Lanes (g, t) hold channels of units of eight: 4m + g / 2.
template <typename G>
__device__ __forceinline__ void mix_blocks(const BlockMix& mix, const Lane& lane, Outputs<G>& outputs) {
  const int32_t shift = __ffs(mix.width()) - 4;  // from units to blocks
  const int32_t within = (1 << shift) - 1;
  const int32_t mine = lane.g / 2;
#pragma unroll
  for (int32_t i = 0; i < 2 * G::kTiles; ++i) {
    auto& out = outputs.channels[i / 2];
    float sums[G::kChannels][4] = {};
    // Lanes whose units have the same place in their blocks.
#pragma unroll 1
    for (int32_t apart = 0; apart < 4; apart += within + 1) {
#pragma unroll
      for (int32_t m = 0; m < G::kChannels; ++m) {
        const int32_t from = 4 * m + (mine ^ apart);
        float x[4];
#pragma unroll
        for (int32_t c = 0; c < 4; ++c) {
          x[c] = __shfl_xor_sync(kAll, out[m][i % 2][c], 8 * apart);
          if (8 * from >= mix.head_dim()) x[c] = 0.0F;  // had been undefined
        }
#pragma unroll
        for (int32_t k = 0; k < G::kChannels; ++k) {
          const int32_t to = 4 * k + mine;
          const float factor = ((to ^ from) & within) == 0 ? mix.factor(to >> shift, from >> shift) : 0.0F;
#pragma unroll
          for (int32_t c = 0; c < 4; ++c) sums[k][c] = fmaf(factor, x[c], sums[k][c]);
        }
      }
    }
#pragma unroll
    for (int32_t k = 0; k < 4 * G::kChannels; ++k) out[k / 4][i % 2][k % 4] = sums[k / 4][k % 4];
  }
}

/// Moves outputs into rotated space or back, as the rotation is its own inverse. Values of rotated pages are
/// summed in rotated space, so a list that mixes both changes space between runs.
template <typename G>
__device__ __forceinline__ void change_space(const G& geometry, const Lane& lane, Outputs<G>& outputs) {
  auto& out = outputs.channels;
  const int32_t block = geometry.hadamard_block();
#pragma unroll 1
  for (int32_t d = 4; d <= 16 && d < block; d *= 2) {
#pragma unroll
    for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 8 * G::kChannels; ++i) butterfly(out[n][i / 8][i / 4 % 2][i % 4], lane.index, d);
    }
  }
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
    for (int32_t m = 0; m < G::kChannels; ++m) {
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        butterfly(out[n][m][0][c], out[n][m][0][c + 2]);
        butterfly(out[n][m][1][c], out[n][m][1][c + 2]);
      }
#pragma unroll
      for (int32_t c = 0; c < 4; ++c) {
        if (block > 2) butterfly(out[n][m][0][c], out[n][m][1][c]);
      }
    }
#pragma unroll
    for (int32_t d = 1; d < G::kChannels; d *= 2) {
      if (32 * d >= block) break;
#pragma unroll
      for (int32_t i = 0; i < 8 * G::kChannels; ++i) {
        const int32_t m = i / 8;
        if ((m & d) == 0) butterfly(out[n][m][i / 4 % 2][i % 4], out[n][m + d][i / 4 % 2][i % 4]);
      }
    }
  }
  scale(outputs, rsqrtf(static_cast<float>(block)));
  if constexpr (!G::kExact) {
    const BlockMix mix(geometry.head_dim());
    if (mix.mixes()) mix_blocks(mix, lane, outputs);
  }
}

/// Prepares the sums after pages of one layout for pages of another format.
template <typename G>
__device__ __forceinline__ void leave_layout(const G& geometry, const PageLayout& layout, FormatCode next,
                                             const Lane& lane, Outputs<G>& outputs) {
  const CodeType values = layout.format.values();
  if (!values.is_float16()) finish_codes(outputs, output_scale<G>(values), layout.group_shift, lane);
  if (next.hadamard_values() != layout.format.hadamard_values()) change_space(geometry, lane, outputs);
  if (!next.values().is_float16()) scale(outputs, 1.0F / output_scale<G>(next.values()));
}

}  // namespace kvq::cuda
