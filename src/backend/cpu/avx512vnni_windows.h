// Codes of tiles in registers: a permutation puts the bits of neighbouring steps into each qword, out of which a
// multishift takes the codes.
#pragma once

#include "palette/codebook.h"

#include <hwy/base.h>
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// 64 codes of up to 8 bits as bytes, with the bits of the codes that follow above them.
class ByteCodes {
 public:
  /// `bits` of a code, of which 64 begin at a whole byte.
  explicit ByteCodes(int32_t bits) {
    alignas(64) uint8_t sources[64];
    alignas(64) uint8_t shifts[64];
    for (int32_t i = 0; i < 64; ++i) {
      sources[i] = static_cast<uint8_t>(i / 8 * bits + i % 8);
      shifts[i] = static_cast<uint8_t>(i % 8 * bits);
    }
    sources_ = _mm512_load_si512(sources);
    shifts_ = _mm512_load_si512(shifts);
  }

  inline __m512i load(const uint8_t* codes) const {
    const __m512i qwords = _mm512_permutexvar_epi8(sources_, _mm512_loadu_si512(codes));
    return _mm512_multishift_epi64_epi8(shifts_, qwords);
  }

 private:
  __m512i sources_;
  __m512i shifts_;
};

/// The windows of 32 steps as words, with what follows above them.
class WordWindows {
 public:
  explicit WordWindows(const palette::Code& code) {
    const int32_t eighths = code.quarters * code.dims() * 2;  // of a bit, a step
    alignas(64) uint8_t sources[64];
    alignas(64) uint8_t shifts[64];
    for (int32_t qword = 0; qword < 8; ++qword) {
      const int32_t first_byte = 4 * qword * eighths / 64;
      for (int32_t i = 0; i < 8; ++i) {
        const int32_t first_bit = (4 * qword + i / 2) * eighths / 8 - 8 * first_byte;
        sources[8 * qword + i] = static_cast<uint8_t>(first_byte + i);
        shifts[8 * qword + i] = static_cast<uint8_t>(first_bit + i % 2 * 8);
      }
    }
    sources_ = _mm512_load_si512(sources);
    shifts_ = _mm512_load_si512(shifts);
    bytes_ = static_cast<size_t>(code.quarters * code.dims());
    wrap_ = 1U << (bytes_ / 2);
  }

  /// Bytes from one 32 steps to the next.
  size_t bytes() const { return bytes_; }

  inline __m512i load(const uint8_t* codes) const { return extract(_mm512_loadu_si512(codes)); }

  /// The last windows of a tile, which go on at its start.
  inline __m512i load_last(const uint8_t* codes, const uint8_t* tile) const {
    const auto first = *reinterpret_cast<const int16_t*>(tile);
    return extract(_mm512_mask_set1_epi16(_mm512_loadu_si512(codes), wrap_, first));
  }

 private:
  inline __m512i extract(__m512i codes) const {
    return _mm512_multishift_epi64_epi8(shifts_, _mm512_permutexvar_epi8(sources_, codes));
  }

  __m512i sources_;
  __m512i shifts_;
  size_t bytes_;
  uint32_t wrap_;  // the word after these steps
};

/// The lower or upper bytes of 64 words.
class Bytes {
 public:
  Bytes() {
    alignas(64) uint8_t sources[64];
    for (int i = 0; i < 64; ++i) sources[i] = static_cast<uint8_t>(2 * i);
    lower_ = _mm512_load_si512(sources);
  }
  inline __m512i lower(__m512i first, __m512i second) const { return _mm512_permutex2var_epi8(first, lower_, second); }
  inline __m512i upper(__m512i first, __m512i second) const {
    return _mm512_permutex2var_epi8(first, _mm512_add_epi8(lower_, _mm512_set1_epi8(1)), second);
  }

 private:
  __m512i lower_;
};

/// What blends the halves of a table by bits of indices.
using Selection = __mmask64[4];

/// table[index] of 64 indices for tables of 128 << kBits bytes: seven bits in `low`, the others, from the lowest on, as
/// masks.
template <int kBits>
inline __m512i look_up(const __m512i* table, __m512i low, const Selection& bits) {
  if constexpr (kBits == 0) {
    return _mm512_permutex2var_epi8(table[0], low, table[1]);
  } else {
    const __m512i first = look_up<kBits - 1>(table, low, bits);
    const __m512i second = look_up<kBits - 1>(table + (1 << kBits), low, bits);
    return _mm512_mask_blend_epi8(bits[kBits - 1], first, second);
  }
}

/// Levels of pairs as unsigned bytes, a table for each of the two weights.
template <int kBits>
struct PairTables {
  explicit PairTables(const palette::Codebook& codebook) {
    const int8_t* levels = codebook.levels.data();
    const __m512i zero = _mm512_set1_epi8(static_cast<char>(codebook.zero_point));
    const Bytes bytes;
    HWY_UNROLL(32)
    for (int i = 0; i < kVectors; ++i) {
      const __m512i low = _mm512_loadu_si512(levels + 128 * i);
      const __m512i high = _mm512_loadu_si512(levels + 128 * i + 64);
      first[i] = _mm512_add_epi8(bytes.lower(low, high), zero);
      second[i] = _mm512_add_epi8(bytes.upper(low, high), zero);
    }
  }

  static constexpr int kVectors = 1 << (kBits - 6);
  __m512i first[kVectors];
  __m512i second[kVectors];
};

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES
