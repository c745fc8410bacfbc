// Page codes in registers, and their int8 dot products with fixed-point operands.
#pragma once

#include "backend/cpu/attend/fixed_point_avx512vnni.h"
#include "backend/cpu/attend/kernels.h"
#include "formats/page_fields.h"

#include <hwy/base.h>
#include <immintrin.h>

// Limited to the functions below: inline functions of other headers stay portable.
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// Sixteen words of a page side; codes<f>() returns field f of every byte.
template <int kBits>
struct CodeWords {
  __m512i low;
  __m512i high;  // 3 bits only, shifted so that bit f of each byte belongs to field f

  template <typename Layout>
  inline void load(const Layout& layout, const SideData& side, int32_t block, int32_t lane) {
    const int32_t lanes = layout.low_plane().lanes;
    const auto offset = sizeof(uint32_t) * static_cast<size_t>(block * lanes + lane);
    low = _mm512_loadu_si512(side.data + offset);
    prefetch(side.later + offset);
    if constexpr (kBits == 3) {
      const size_t high_offset =
          layout.high_offset() + sizeof(uint32_t) * static_cast<size_t>(block / 2 * lanes + lane);
      high = _mm512_loadu_si512(side.data + high_offset);
      if (block % 2 != 0) {
        high = _mm512_srli_epi32(high, 4);
      } else {
        prefetch(side.later + high_offset);
      }
    }
  }

  template <int kField>
  inline __m512i codes() const {
    if constexpr (kBits == 8) return low;
    if constexpr (kBits == 1) return _mm512_and_si512(_mm512_srli_epi32(low, kField), _mm512_set1_epi8(1));
    if constexpr (kBits == 4) return _mm512_and_si512(_mm512_srli_epi32(low, 4 * kField), _mm512_set1_epi8(15));
    const __m512i two = _mm512_and_si512(_mm512_srli_epi32(low, 2 * kField), _mm512_set1_epi8(3));
    if constexpr (kBits == 2) return two;
    constexpr unsigned kLeft = kField < 2 ? 2U - kField : 0U;
    constexpr unsigned kRight = kField < 2 ? 0U : kField - 2U;
    const __m512i placed = kField < 2 ? _mm512_slli_epi32(high, kLeft) : _mm512_srli_epi32(high, kRight);
    return _mm512_or_si512(two, _mm512_and_si512(placed, _mm512_set1_epi8(4)));
  }
};

template <int kBits>
inline constexpr int kFields = kBits == 3 ? 4 : 8 / kBits;

/// Integer accumulators of kRows rows and kVectors vectors of lanes.
template <int kBits, int kRows, int kVectors>
struct Accumulators {
  __m512i low[kRows][kVectors];
  __m512i high[kTwoPasses<kBits> ? kRows : 1][kVectors];

  inline void clear() {
    for (auto& row : low) {
      for (auto& each : row) each = _mm512_setzero_si512();
    }
    for (auto& row : high) {
      for (auto& each : row) each = _mm512_setzero_si512();
    }
  }

  /// Unsigned operand bytes meet codes that fit seven bits; signed ones meet unsigned codes.
  template <bool kSigned>
  static inline __m512i dot(__m512i sum, __m512i codes, int32_t word) {
    const __m512i operand = _mm512_set1_epi32(word);
    return kSigned ? _mm512_dpbusd_epi32(sum, codes, operand) : _mm512_dpbusd_epi32(sum, operand, codes);
  }

  template <bool kSigned, int kRowWords, int kField = 0>
  inline void add_block(const CodeWords<kBits> (&words)[kVectors], const FixedPoint<kBits, kRowWords>& operand,
                        int32_t block) {
    if constexpr (kField < kFields<kBits>) {
      const int32_t at = block * kFields<kBits> + kField;
      __m512i codes[kVectors];
      HWY_UNROLL(8)
      for (int a = 0; a < kVectors; ++a) codes[a] = words[a].template codes<kField>();
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        // The analyzer does not see that vector stores filled the operand.
        HWY_UNROLL(8)
        for (int a = 0; a < kVectors; ++a) {
          // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage)
          low[r][a] = dot<kSigned>(low[r][a], codes[a], operand.low[r][at]);
        }
        if constexpr (kTwoPasses<kBits>) {
          HWY_UNROLL(8)
          for (int a = 0; a < kVectors; ++a) high[r][a] = dot<true>(high[r][a], codes[a], operand.high[r][at]);
        }
      }
      add_block<kSigned, kRowWords, kField + 1>(words, operand, block);
    }
  }

  inline __m512 value(int r, int a) const {
    if constexpr (kTwoPasses<kBits>) {
      // Sums of both passes are exact; their combination would overflow 32 bits.
      return _mm512_fmadd_ps(_mm512_cvtepi32_ps(high[r][a]), _mm512_set1_ps(256.0F), _mm512_cvtepi32_ps(low[r][a]));
    } else {
      return _mm512_cvtepi32_ps(low[r][a]);
    }
  }
};

[[gnu::always_inline]] inline void prefetch_scales(const SideLayout& layout, const SideData& side) {
  for (size_t i = layout.scale_offset(); i < layout.bytes(); i += 64) prefetch(side.later + i);
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES
