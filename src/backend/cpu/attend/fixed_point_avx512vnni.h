// Integer pages multiplied without decoding: int8 dot products of codes with fixed-point queries and probabilities.
//
// A page's scales fold into the other operand, which is then rounded to fixed point with one step per row and page (or
// group): 16 bits in two int8 passes for 8-bit codes; 8 bits in one pass for smaller codes, whose own rounding is
// coarser. Codes are taken relative to the middle of their range, so that the operand's rounding error meets small
// numbers: with f = δ·i + ε, Σ f·code + Σ x·min = δ·Σ i·code + Σ x·(min + mid·scale) − mid·δ·Σ i + Σ ε·(code − mid),
// and the last sum is neglected.
#pragma once

#include "backend/cpu/attend/kernels.h"

#include <hwy/base.h>
#include <immintrin.h>

// Limited to the functions below: inline functions of other headers stay portable.
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

template <int kBits>
inline constexpr float kMiddle = static_cast<float>((1 << kBits) - 1) / 2.0F;

/// 8-bit codes meet 16-bit operands as a high and a low byte.
template <int kBits>
inline constexpr bool kTwoPasses = kBits == 8;

/// The largest fixed-point integer: the high byte of a two-pass integer stays within seven bits after rounding.
template <int kBits, bool kSigned>
inline constexpr float kTop = kTwoPasses<kBits> ? 32639.0F : (kSigned ? 127.0F : 255.0F);

/// Bytes of up to four rows, kRowWords words each, in the order of codes in words.
template <int kBits, int kRowWords>
struct FixedPoint {
  alignas(64) int32_t low[kBlockRows][kRowWords];
  alignas(64) int32_t high[kTwoPasses<kBits> ? kBlockRows : 1][kRowWords];
};

/// Adding 1.5 · 2^23 leaves the nearest integer in the low bits of a float.
inline __m512i round_to_low_bits(__m512 value, __m512 factor) {
  return _mm512_castps_si512(_mm512_fmadd_ps(value, factor, _mm512_set1_ps(12582912.0F)));
}

/// The low bytes of 32 rounded integers.
inline __m256i low_bytes(__m512i first, __m512i second) {
  const __m512i low_of_each = _mm512_set_epi64(0, 0, 0, 0, 0x7C7874706C686460LL, 0x5C5854504C484440LL,
                                               0x3C3834302C282420LL, 0x1C1814100C080400LL);
  return _mm512_castsi512_si256(_mm512_permutex2var_epi8(first, low_of_each, second));
}

/// Source of the high byte of a two-pass integer, rounded because the low byte is signed.
inline __m512i upper_byte(__m512i rounded) {
  return _mm512_srli_epi32(_mm512_add_epi32(rounded, _mm512_set1_epi32(128)), 8);
}

struct Sum {
  static inline __m512 of(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
  static inline __m256 of(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
  static inline __m128 of(__m128 a, __m128 b) { return _mm_add_ps(a, b); }
};

struct Maximum {
  static inline __m512 of(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
  static inline __m256 of(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
  static inline __m128 of(__m128 a, __m128 b) { return _mm_max_ps(a, b); }
};

/// Lane r of the result reduces row r's vector; rows beyond the block's are zero.
template <typename Operation, int kRows>
inline __m128 reduce_rows(const __m512 (&rows)[kRows]) {
  const __m512 zero = _mm512_setzero_ps();
  const __m512 a = rows[0];
  const __m512 b = kRows > 1 ? rows[kRows > 1 ? 1 : 0] : zero;
  const __m512 c = kRows > 2 ? rows[kRows > 2 ? 2 : 0] : zero;
  const __m512 d = kRows > 2 ? rows[kRows > 2 ? 3 : 0] : zero;
  const __m512d ab = _mm512_castps_pd(Operation::of(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  const __m512d cd = _mm512_castps_pd(Operation::of(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
  const __m512 abcd =
      Operation::of(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  const __m256 half = Operation::of(_mm512_castps512_ps256(abcd), _mm512_extractf32x8_ps(abcd, 1));
  return Operation::of(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES
