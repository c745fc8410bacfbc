// Weighted sums Vᵀ·Pᵀ of a page.
#pragma once

#include "kernels/attend_block.cuh"

namespace kvq::cuda {

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::add_values(uint32_t side, const uint32_t (&p)[NT][4]) {
  switch (format_.values()) {
    case Kind::kFloat16:
      return add_float16(side, p);
    case Kind::kInt8:
      return add_codes<8>(side, p);
    case Kind::kInt4:
      return add_codes<4>(side, p);
    case Kind::kInt3:
      return add_codes<3>(side, p);
    case Kind::kInt2:
      return add_codes<2>(side, p);
  }
}

/// Four consecutive channels of block m at word row `row`.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ uint4 Block<DP, kFull, NT>::load_value_words(uint32_t side, int32_t row, int32_t row_swizzle,
                                                                        int32_t m) const {
  const int32_t row_chunks = kFull ? DP / 4 : value_lanes(a_.head_dim) / 4;
  const int32_t chunk = row * row_chunks + ((8 * m + g_) ^ (kFull || swizzles_values(a_.head_dim) ? row_swizzle : 0));
  return load_shared<uint4>(side + static_cast<uint32_t>(chunk * 16));
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::add_float16(uint32_t side, const uint32_t (&p)[NT][4]) {
  const int32_t t = opaque(t_);
#pragma unroll
  for (int32_t m = 0; m < kChannels; ++m) {
    if (!has_block(m)) break;
#pragma unroll
    for (int32_t step = 0; step < 2; ++step) {
      const uint4 a = load_value_words(side, 4 * t + 2 * step, 2 * t, m);
      const uint4 b = load_value_words(side, 4 * t + 2 * step + 1, 2 * t, m);
#pragma unroll
      for (int32_t n = 0; n < NT; ++n) {
        mma(out_[n][m][0], low_halves(a.x, b.x), low_halves(a.y, b.y), high_halves(a.x, b.x), high_halves(a.y, b.y),
            p[n][2 * step], p[n][2 * step + 1]);
        mma(out_[n][m][1], low_halves(a.z, b.z), low_halves(a.w, b.w), high_halves(a.z, b.z), high_halves(a.w, b.w),
            p[n][2 * step], p[n][2 * step + 1]);
      }
    }
  }
}

/// Eight tokens' scales or minima: the pairs (0, 2), (1, 3), (4, 6), (5, 7), as they lie.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::load_eight(uint32_t address, uint32_t (&pairs)[4]) const {
  const auto eight = load_shared<uint4>(address);
  pairs[0] = eight.x;
  pairs[1] = eight.y;
  pairs[2] = eight.z;
  pairs[3] = eight.w;
}

template <int DP, bool kFull, int NT>
template <int kBits>
__device__ __forceinline__ void Block<DP, kFull, NT>::add_codes(uint32_t side, const uint32_t (&p)[NT][4]) {
  const int32_t t = opaque(t_);
  {
    // Σ p · min of every group of channels: row g is group g.
    uint32_t minima[4];
    load_eight(side + static_cast<uint32_t>(values_.minima_offset() + 64 * g_ + 16 * t), minima);
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
      mma(bias_[n], minima[0], 0, minima[1], 0, p[n][0], p[n][1]);
      mma(bias_[n], minima[2], 0, minima[3], 0, p[n][2], p[n][3]);
    }
  }
  // The second product of a word with several fields takes codes from the next one.
  constexpr uint32_t kDown = (15U - (kBits == 4 || kBits == 2 ? kBits : 0)) << 10U;
  uint32_t lowered[NT][4];
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) lowered[n][i] = i < 2 ? p[n][i] : multiply(p[n][i], kDown | kDown << 16U);
  }
#pragma unroll
  for (int32_t m = 0; m < kChannels; ++m) {
    if (!has_block(m)) break;
    uint32_t scales[4];
    load_eight(side + static_cast<uint32_t>(value_codes<kBits>() + 64 * (m >> group_shift_) + 16 * t), scales);
    uint32_t scaled[NT][4];
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) scaled[n][i] = multiply(lowered[n][i], scales[i]);
    }
    uint4 words[2];
    uint4 high{};
    if constexpr (kBits == 8) {
      words[0] = load_value_words(side, 2 * t, 2 * t, m);
      words[1] = load_value_words(side, 2 * t + 1, 2 * t, m);
    } else if constexpr (kBits == 4) {
      words[0] = load_value_words(side, t, 2 * t, m);
    } else {
      words[0] = load_value_words(side, t >> 1, 2 * (t >> 1), m);
      const int32_t shift = 4 * (t & 1);
      words[0] = {words[0].x >> shift, words[0].y >> shift, words[0].z >> shift, words[0].w >> shift};
      if constexpr (kBits == 3) {
        high = load_value_words(side, 2, 4, m);
        high = {high.x >> 2 * t, high.y >> 2 * t, high.z >> 2 * t, high.w >> 2 * t};
      }
    }
    add_products<kBits, 0>(words[0], high, scaled, m);
    add_products<kBits, 1>(kBits == 8 ? words[1] : words[0], high, scaled, m);
  }
}

template <int DP, bool kFull, int NT>
template <int kBits, int kStep>
__device__ __forceinline__ void Block<DP, kFull, NT>::add_products(const uint4& words, const uint4& high,
                                                                   const uint32_t (&p)[NT][4], int32_t m) {
  constexpr int32_t kField = kBits == 8 ? 0 : kStep;
  const uint32_t w[4] = {words.x, words.y, words.z, words.w};
  const uint32_t h[4] = {high.x, high.y, high.z, high.w};
  uint32_t low[4];
  uint32_t odd[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    if constexpr (kBits == 3) {
      low[i] = code_pair3<kField>(w[i], h[i]);
      odd[i] = code_pair3<kField>(w[i] >> 8U, h[i] >> 8U);
    } else {
      low[i] = code_pair<kBits, kField>(w[i]);
      odd[i] = code_pair<kBits, kField>(w[i] >> 8U);
    }
  }
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
    mma(out_[n][m][0], low[0], low[1], odd[0], odd[1], p[n][2 * kStep], p[n][2 * kStep + 1]);
    mma(out_[n][m][1], low[2], low[3], odd[2], odd[3], p[n][2 * kStep], p[n][2 * kStep + 1]);
  }
}

}  // namespace kvq::cuda
