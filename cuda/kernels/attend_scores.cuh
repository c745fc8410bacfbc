// Scores K·Qᵀ of a page and their softmax.
#pragma once

#include "kernels/attend_block.cuh"

namespace kvq::cuda {

/// First of the four channels that this lane supplies to product `step`.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::channel_of(Kind kind, int32_t step) const {
  if (kind == Kind::kInt4) return 32 * (step / 2) + 8 * t_ + 4 * (step % 2);
  if (kind == Kind::kInt2 || kind == Kind::kInt3) return 64 * (step / 4) + 16 * t_ + 4 * (step % 4);
  return 16 * step + 4 * t_;
}

/// Registers of query tile n for product `step`: half 0 and 1 of this lane's four channels. They lie in quads, which
/// for integer pages are a first operand too (see score_codes): of two tiles, or of one and the next product.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ uint32_t Block<DP, kFull, NT>::query(int32_t n, int32_t step, int32_t half) const {
  return NT == 2 ? quads_[step][2 * half + n] : quads_[step / 2][2 * half + step % 2];
}

/// The same for FP16 pages, whose second operand is a pair of neighbours.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ uint32_t Block<DP, kFull, NT>::float16_query(int32_t n, int32_t step, int32_t half) const {
  return NT == 2 ? quads_[step][2 * n + half] : quads_[step / 2][2 * (step % 2) + half];
}

/// For keys of kBits bits; 0: of any kind.
template <int DP, bool kFull, int NT>
template <int kBits>
__device__ __forceinline__ void Block<DP, kFull, NT>::load_query_fragments() {
  const Kind kind = kBits != 0 ? kKindOf<kBits> : format_.keys();
  const bool plain = kind == Kind::kFloat16;
#pragma unroll
  for (int32_t i = 0; i < kQuads; ++i) {
    uint2 four[2];
#pragma unroll
    for (int32_t j = 0; j < 2; ++j) four[j] = query_of(kind, NT == 2 ? j : 0, NT == 2 ? i : 2 * i + j);
    quads_[i][0] = four[0].x;
    quads_[i][1] = plain ? four[0].y : four[1].x;
    quads_[i][2] = plain ? four[1].x : four[0].y;
    quads_[i][3] = four[1].y;
  }
}

/// Query tile n's four channels for product `step`, paired as codes are.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ uint2 Block<DP, kFull, NT>::query_of(Kind kind, int32_t n, int32_t step) const {
  const auto& rows = format_.hadamard_keys() ? s_.rotated : s_.plain;
  const uint2 four = *reinterpret_cast<const uint2*>(&rows[8 * n + g_][channel_of(kind, step)]);
  if (kind == Kind::kFloat16) return four;
  // The position of this product's field within a byte.
  const int32_t shift = kind == Kind::kInt4 ? 4 * (step % 2) : (kind == Kind::kInt2 ? 2 * (step % 4) : 0);
  const uint32_t half = static_cast<uint32_t>(15 - shift) << 10U;  // 2^−shift
  const uint32_t down = half | half << 16U;
  return {multiply(low_halves(four.x, four.y), down), multiply(high_halves(four.x, four.y), down)};
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::score(uint32_t side, float (&scores)[NT][2][4]) {
  switch (format_.keys()) {
    case Kind::kFloat16:
      return score_float16(side, scores);
    case Kind::kInt8:
      return score_codes<8>(side, scores);
    case Kind::kInt4:
      return score_codes<4>(side, scores);
    case Kind::kInt3:
      return score_codes<3>(side, scores);
    case Kind::kInt2:
      return score_codes<2>(side, scores);
  }
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::clear(float (&accumulators)[NT][2][4]) {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) accumulators[n][0][i] = accumulators[n][1][i] = 0.0F;
  }
}

/// Words of this lane's tokens at `row`: tiles 0 and 1, 2 and 3.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::load_key_words(uint32_t side, int32_t row, int32_t swizzle,
                                                                     uint32_t (&words)[4]) const {
  const int32_t column = 2 * (g_ >> 1);
  const auto line = side + static_cast<uint32_t>(row * 128 + 8 * (g_ & 1));
  const auto low = load_shared<uint2>(line + static_cast<uint32_t>((column ^ swizzle) * 16));
  const auto high = load_shared<uint2>(line + static_cast<uint32_t>(((column + 1) ^ swizzle) * 16));
  words[0] = low.x;
  words[1] = low.y;
  words[2] = high.x;
  words[3] = high.y;
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::score_float16(uint32_t side, float (&scores)[NT][2][4]) {
  clear(scores);
  const int32_t t = opaque(t_);
  const int32_t swizzle = key_swizzle(t);
#pragma unroll
  for (int32_t step = 0; step < kSteps; ++step) {
    const int32_t row = 8 * step + 2 * t;
    const bool inside = kFull || 2 * row < a_.head_dim;
    uint32_t first[4];
    uint32_t second[4];
    load_key_words(side, inside ? row : 0, inside ? swizzle : 0, first);
    load_key_words(side, inside ? row + 1 : 0, inside ? swizzle : 0, second);
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t m = 0; m < 2; ++m) {
        mma(scores[n][m], first[2 * m], first[2 * m + 1], second[2 * m], second[2 * m + 1], float16_query(n, step, 0),
            float16_query(n, step, 1));
      }
    }
  }
  scale_scores(scores);
}

/// Scales or minima of the 4 · kFours channels of a word, two registers for every four of them: the pairs (0, 2) and
/// (1, 3), as they lie. Zero beyond the head.
template <int DP, bool kFull, int NT>
template <int kFours>
__device__ __forceinline__ void Block<DP, kFull, NT>::load_channels(uint32_t address, int32_t channel,
                                                                    uint32_t (&pairs)[2 * kFours]) const {
  if constexpr (kFours == 1) {
    const auto two = load_shared<uint2>(address);
    pairs[0] = two.x;
    pairs[1] = two.y;
  } else {
#pragma unroll
    for (int32_t i = 0; i < kFours / 2; ++i) {
      const auto four = load_shared<uint4>(address + static_cast<uint32_t>(16 * i));
      pairs[4 * i] = four.x;
      pairs[4 * i + 1] = four.y;
      pairs[4 * i + 2] = four.z;
      pairs[4 * i + 3] = four.w;
    }
  }
  if constexpr (!kFull) {
#pragma unroll
    for (int32_t i = 0; i < kFours; ++i) {
      if (channel + 4 * i >= a_.head_dim) pairs[2 * i] = pairs[2 * i + 1] = 0;
    }
  }
}

template <int DP, bool kFull, int NT>
template <int kBits>
__device__ __forceinline__ void Block<DP, kFull, NT>::score_codes(uint32_t side, float (&scores)[NT][2][4]) {
  constexpr int32_t kFields = kBits == 3 ? 4 : 8 / kBits;  // products a word
  constexpr int32_t kWords = kSteps / kFields;
  static_assert(kSteps % kFields == 0);
  clear(scores);
  // Σ q · min of the page, transposed: rows are queries, columns all the same. Rows 8 to 15 belong to the second
  // query tile; with one tile, to the next product, so that every second product counts there. Fields apart, since
  // queries lack a power of two that depends on the field.
  float bias[kBiases<kBits>][4];
#pragma unroll
  for (int32_t i = 0; i < 4 * kBiases<kBits>; ++i) bias[i / 4][i % 4] = 0.0F;
  const SideBytes layout = key_layout<kBits>();
  const int32_t rows = kFull ? 0 : layout.codes / 128;
  const int32_t t = opaque(t_);
  const uint32_t scales = side + static_cast<uint32_t>(layout.codes);
  const uint32_t minima = side + static_cast<uint32_t>(layout.minima_offset());
#pragma unroll
  for (int32_t i = 0; i < kWords; ++i) {
    int32_t row = 4 * i + t;
    if (!kFull) row = min(row, rows - 1);
    uint32_t words[4];
    uint32_t high[4];
    load_key_words(side, row, key_swizzle(kFull ? t : row), words);
    if constexpr (kBits == 3) {
      int32_t high_row = (a_.head_dim + 15) / 16 + 2 * i + (t >> 1);
      if (!kFull) high_row = min(high_row, rows - 1);
      load_key_words(side, high_row, key_swizzle(high_row), high);
#pragma unroll
      for (uint32_t& each : high) each >>= 4 * (t & 1);
    }
    uint32_t scale[2 * kFields];
    uint32_t minimum[2 * kFields];
    const int32_t channel = 16 * kFields * i + 4 * kFields * t;
    load_channels<kFields>(scales + static_cast<uint32_t>(2 * channel), channel, scale);
    load_channels<kFields>(minima + static_cast<uint32_t>(2 * channel), channel, minimum);
    score_fields<kBits, 0>(i, words, high, scale, minimum, scores, bias);
  }
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
    float of_row = 0.0F;  // query g of tile n
#pragma unroll
    for (int32_t f = 0; f < kBiases<kBits>; ++f) {
      const float weight = kFields == 1 || kBits == 3 ? 1.0F : static_cast<float>(1 << (kBits * f));
      of_row = fmaf(bias[f][NT == 2 ? 2 * n : 2 * (f % 2)], weight, of_row);
    }
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      const float sum = __shfl_sync(kAll, of_row, 4 * (2 * t_ + c));
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        float& each = scores[n][i / 2][2 * (i % 2) + c];
        each = fmaf(each, kSubnormalScale, sum);
      }
    }
  }
  scale_scores(scores);
}

template <int DP, bool kFull, int NT>
template <int kBits, int kField, size_t kScales>
__device__ __forceinline__ void Block<DP, kFull, NT>::score_fields(
    int32_t i, const uint32_t (&words)[4], const uint32_t (&high)[4], const uint32_t (&scale)[kScales],
    const uint32_t (&minimum)[kScales], float (&scores)[NT][2][4], float (&bias)[kBiases<kBits>][4]) {
  constexpr int32_t kFields = kBits == 3 ? 4 : 8 / kBits;
  if constexpr (kField < kFields) {
    uint32_t low[4];
    uint32_t odd[4];
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      if constexpr (kBits == 3) {
        low[j] = code_pair3<kField>(words[j], high[j]);
        odd[j] = code_pair3<kField>(words[j] >> 8U, high[j] >> 8U);
      } else {
        low[j] = code_pair<kBits, kField>(words[j]);
        odd[j] = code_pair<kBits, kField>(words[j] >> 8U);
      }
    }
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
      const uint32_t q0 = multiply(query(n, kFields * i + kField, 0), scale[2 * kField]);
      const uint32_t q1 = multiply(query(n, kFields * i + kField, 1), scale[2 * kField + 1]);
      mma(scores[n][0], low[0], low[1], odd[0], odd[1], q0, q1);
      mma(scores[n][1], low[2], low[3], odd[2], odd[3], q0, q1);
    }
    const uint32_t(&quad)[4] = quads_[(kFields * i + kField) * NT / 2];
    mma(bias[kFields == 1 ? i % 2 : kField], quad[0], quad[1], quad[2], quad[3], minimum[2 * kField],
        minimum[2 * kField + 1]);
    score_fields<kBits, kField + 1>(i, words, high, scale, minimum, scores, bias);
  }
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::scale_scores(float (&scores)[NT][2][4]) const {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) scores[n][i / 4][i % 4] *= row_scale_[n][i % 2];
  }
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::cap(float (&s)[NT][2][4]) const {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      float& x = s[n][i / 4][i % 4];
      x = a_.softcap * tanhf(x / a_.softcap);
    }
  }
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::softmax(float (&s)[NT][2][4], uint32_t (&p)[NT][4]) {
  bool rises = false;
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      const float highest = fmaxf(fmaxf(s[n][0][c], s[n][0][c + 2]), fmaxf(s[n][1][c], s[n][1][c + 2]));
      rises = rises || highest > maximum_[n][c];
    }
  }
  if (__any_sync(kAll, rises)) raise_maxima(s);
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
    float reference[2];
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) reference[c] = maximum_[n][c] == minus_infinity() ? 0.0F : maximum_[n][c];
#pragma unroll
    for (int32_t m = 0; m < 2; ++m) {
      float e[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        e[i] = exp2_fast(s[n][m][i] - reference[i & 1]);
        sum_[n][i & 1] += e[i];
      }
      p[n][2 * m] = transpose8x8(pack(e[0], e[1]));
      p[n][2 * m + 1] = transpose8x8(pack(e[2], e[3]));
    }
  }
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::mask(const Unit& unit, const Batch& batch, int32_t at,
                                                           float (&s)[NT][2][4]) const {
  const uint32_t meta = __shfl_sync(kAll, batch.record.w, at);
  const DevicePage page{0, static_cast<int32_t>(__shfl_sync(kAll, batch.record.z, at)), 0,
                        static_cast<uint8_t>(meta >> 16U), static_cast<uint8_t>(meta >> 24U)};
  const int32_t index = batch.base + at * warps_;
#pragma unroll
  for (int32_t tile = 0; tile < 4; ++tile) {
    const int32_t slot = token_of(g_, tile);
    const bool held = slot < page.count;
    const int32_t position = held ? position_in_page(unit, page, index, slot) : 0;
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        const int32_t of_row = s_.row_position[8 * n + 2 * t_ + c];
        const bool seen =
            held && position <= of_row && (a_.window == 0 || position > static_cast<int64_t>(of_row) - a_.window);
        if (!seen) s[n][tile / 2][2 * (tile % 2) + c] = minus_infinity();
      }
    }
  }
}

/// Rarely needed: most pages of a long list hold no new maximum.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::raise_maxima(const float (&s)[NT][2][4]) {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      float highest = fmaxf(fmaxf(s[n][0][c], s[n][0][c + 2]), fmaxf(s[n][1][c], s[n][1][c + 2]));
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 4));
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 8));
      highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 16));
      const float raised = fmaxf(maximum_[n][c], highest);
      const float factor = raised == minus_infinity() ? 1.0F : exp2_fast(maximum_[n][c] - raised);
      maximum_[n][c] = raised;
      sum_[n][c] *= factor;
      bias_[n][c] *= factor;
      bias_[n][c + 2] *= factor;
#pragma unroll
      for (int32_t m = 0; m < kChannels; ++m) {
#pragma unroll
        for (int32_t h = 0; h < 2; ++h) {
          out_[n][m][h][c] *= factor;
          out_[n][m][h][c + 2] *= factor;
        }
      }
    }
  }
}

}  // namespace kvq::cuda
