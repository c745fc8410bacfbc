// Codes of tiles in registers: a permutation moves the bits of neighbouring steps into each qword, and a multishift
// extracts the codes.
#pragma once

#include "weights/codebook.h"

#include <hwy/base.h>
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// 64 codes of up to 8 bits as bytes, with bits of the next codes above them.
class ByteCodes {
 public:
  /// `bits` per code; each 64 codes begin at a whole byte.
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

/// Loads from `codes`; the last codes of a tile wrap to its start, with word `wrap`.
inline __m512i load_wrapped(const uint8_t* codes, const uint8_t* tile, uint32_t wrap) {
  const auto first = *reinterpret_cast<const int16_t*>(tile);
  return _mm512_mask_set1_epi16(_mm512_loadu_si512(codes), wrap, first);
}

/// The windows of 64 steps as words, with following bits above them, in two registers of 32 steps: a permutation and a
/// multishift for each.
class WordWindows {
 public:
  explicit WordWindows(const weights::Code& code) {
    alignas(64) uint8_t sources[64];
    alignas(64) uint8_t shifts[64];
    for (int32_t i = 0; i < 64; ++i) {
      const int32_t first_byte = code.first_bit(i / 8 * 4) / 8;
      sources[i] = static_cast<uint8_t>(first_byte + i % 8);
      shifts[i] = static_cast<uint8_t>(code.first_bit(i / 2) - 8 * first_byte + i % 2 * 8);
    }
    sources_ = _mm512_load_si512(sources);
    shifts_ = _mm512_load_si512(shifts);
    half_bytes_ = static_cast<size_t>(code.first_bit(32)) / 8;
    wrap_ = 1U << (half_bytes_ / 2);
  }

  /// Index of a step's word among the 64.
  static constexpr int word_of(int step) { return step; }
  /// Bytes per 64 steps.
  size_t bytes() const { return 2 * half_bytes_; }

  inline void load(const uint8_t* codes, __m512i& first, __m512i& second) const {
    first = extract(_mm512_loadu_si512(codes));
    second = extract(_mm512_loadu_si512(codes + half_bytes_));
  }
  inline void load_last(const uint8_t* codes, const uint8_t* tile, __m512i& first, __m512i& second) const {
    first = extract(_mm512_loadu_si512(codes));
    second = extract(load_wrapped(codes + half_bytes_, tile, wrap_));
  }

 private:
  inline __m512i extract(__m512i codes) const {
    return _mm512_multishift_epi64_epi8(shifts_, _mm512_permutexvar_epi8(sources_, codes));
  }

  __m512i sources_;
  __m512i shifts_;
  size_t half_bytes_;
  uint32_t wrap_;
};

/// Word windows with eight steps in eight bytes, up to six bits per step: one permutation serves both registers, the
/// first of which has the first four of every eight steps.
class NarrowWindows {
 public:
  explicit NarrowWindows(const weights::Code& code) {
    alignas(64) uint8_t sources[64];
    alignas(64) uint8_t shifts[2][64];
    for (int32_t i = 0; i < 64; ++i) {
      const int32_t first_byte = code.first_bit(i / 8 * 8) / 8;
      sources[i] = static_cast<uint8_t>(first_byte + i % 8);
      for (int32_t half = 0; half < 2; ++half) {
        const int32_t first_bit = code.first_bit(i / 8 * 8 + 4 * half + i % 8 / 2);
        shifts[half][i] = static_cast<uint8_t>(first_bit - 8 * first_byte + i % 2 * 8);
      }
    }
    sources_ = _mm512_load_si512(sources);
    for (int32_t half = 0; half < 2; ++half) shifts_[half] = _mm512_load_si512(shifts[half]);
    bytes_ = static_cast<size_t>(code.first_bit(64)) / 8;
    wrap_ = 1U << (bytes_ / 2);
  }

  static constexpr int word_of(int step) { return step % 8 / 4 * 32 + step / 8 * 4 + step % 4; }
  size_t bytes() const { return bytes_; }

  inline void load(const uint8_t* codes, __m512i& first, __m512i& second) const {
    extract(_mm512_loadu_si512(codes), first, second);
  }
  inline void load_last(const uint8_t* codes, const uint8_t* tile, __m512i& first, __m512i& second) const {
    extract(load_wrapped(codes, tile, wrap_), first, second);
  }

 private:
  inline void extract(__m512i codes, __m512i& first, __m512i& second) const {
    const __m512i qwords = _mm512_permutexvar_epi8(sources_, codes);
    first = _mm512_multishift_epi64_epi8(shifts_[0], qwords);
    second = _mm512_multishift_epi64_epi8(shifts_[1], qwords);
  }

  __m512i sources_;
  __m512i shifts_[2];
  size_t bytes_;
  uint32_t wrap_;
};

/// The lower or upper bytes of 64 words in the order of their steps.
template <typename Windows = WordWindows>
class Bytes {
 public:
  Bytes() {
    alignas(64) uint8_t sources[64];
    for (int i = 0; i < 64; ++i) sources[i] = static_cast<uint8_t>(2 * Windows::word_of(i));
    lower_ = _mm512_load_si512(sources);
  }
  inline __m512i lower(__m512i first, __m512i second) const { return _mm512_permutex2var_epi8(first, lower_, second); }
  inline __m512i upper(__m512i first, __m512i second) const {
    return _mm512_permutex2var_epi8(first, _mm512_add_epi8(lower_, _mm512_set1_epi8(1)), second);
  }

 private:
  __m512i lower_;
};

/// Lookups in tables of 128 << kBits bytes: index bits are masks, from the lowest up, beside seven bits in a register.
template <int kBits>
class Selection {
 public:
  /// Number of masks; without any, an unused one.
  static constexpr int kMasks = kBits > 0 ? kBits : 1;

  explicit Selection(const __mmask64 (&bits)[kMasks]) {
    HWY_UNROLL(4)
    for (int i = 0; i < kMasks; ++i) bits_[i] = bits[i];
  }

  /// table[index] for 64 indices with their seven bits in `low`.
  template <int kTableBits = kBits>
  inline __m512i look_up(const __m512i* table, __m512i low) const {
    if constexpr (kTableBits == 0) {
      return _mm512_permutex2var_epi8(table[0], low, table[1]);
    } else if constexpr (kTableBits == 1) {
      // Each lookup replaces only its own indices, so no blend is needed.
      low = _mm512_mask2_permutex2var_epi8(table[0], low, _knot_mask64(bits_[0]), table[1]);
      return _mm512_mask2_permutex2var_epi8(table[2], low, bits_[0], table[3]);
    } else {
      const __m512i first = look_up<kTableBits - 1>(table, low);
      const __m512i second = look_up<kTableBits - 1>(table + (1 << kTableBits), low);
      return _mm512_mask_blend_epi8(bits_[kTableBits - 1], first, second);
    }
  }

 private:
  __mmask64 bits_[kMasks];
};

/// Levels of pairs as unsigned bytes, one table for each of the two weights.
template <int kBits>
struct PairTables {
  explicit PairTables(const weights::Codebook& codebook) {
    const int8_t* levels = codebook.levels.data();
    const __m512i zero = _mm512_set1_epi8(static_cast<char>(weights::kZeroPoint));
    const Bytes<> bytes;
    HWY_UNROLL(32)
    for (int i = 0; i < kVectors; ++i) {
      const __m512i low = _mm512_loadu_si512(levels + 128 * i);
      const __m512i high = _mm512_loadu_si512(levels + 128 * i + 64);
      first[i] = _mm512_add_epi8(bytes.lower(low, high), zero);
      second[i] = _mm512_add_epi8(bytes.upper(low, high), zero);
    }
  }

  /// Moves entries with an odd index to the upper half.
  void split_by_lowest_bit() {
    split(first);
    split(second);
  }

  static constexpr int kVectors = 1 << (kBits - 6);
  __m512i first[kVectors];
  __m512i second[kVectors];

 private:
  static void split(__m512i (&table)[kVectors]) {
    const Bytes<> bytes;
    __m512i halves[kVectors];
    HWY_UNROLL(32)
    for (int i = 0; i < kVectors / 2; ++i) {
      halves[i] = bytes.lower(table[2 * i], table[2 * i + 1]);
      halves[i + kVectors / 2] = bytes.upper(table[2 * i], table[2 * i + 1]);
    }
    HWY_UNROLL(32)
    for (int i = 0; i < kVectors; ++i) table[i] = halves[i];
  }
};

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES
