// Codes and gains of gain–shape pages in registers.
#pragma once

#include "backend/cpu/attend/codes_avx512vnni.h"
#include "formats/gain_shape/gains.h"
#include "formats/gain_shape/layout.h"
#include "formats/gain_shape/trellis.h"

#include <hwy/base.h>
#include <immintrin.h>

// Limited to the functions below: inline functions of other headers stay portable.
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx512vbmi2,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// Bits of `a` where kMask is set, bits of `b` elsewhere.
template <uint8_t kMask>
inline __m512i select_bits(__m512i a, __m512i b) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi8(static_cast<char>(kMask)), a, b, 0xCA);
}

inline __m512i xor_of(__m512i a, __m512i b, __m512i c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }

/// Shifts left for positive counts.
template <int kCount>
inline __m512i shift(__m512i words) {
  if constexpr (kCount > 0) return _mm512_slli_epi32(words, static_cast<unsigned>(kCount));
  if constexpr (kCount < 0) return _mm512_srli_epi32(words, static_cast<unsigned>(-kCount));
  return words;
}

/// The highest code bits of values: vectors of 16 channels, preceded by the kMemory vectors before them.
struct Chained {
  __m512i* words;  // [vectors_of(channels)]

  static constexpr int32_t vectors_of(int32_t channels) { return gain_shape::kMemory + channels / 16; }

  inline void load(const std::byte* plane, const std::byte* later, int32_t vectors) const {
    for (int32_t i = 0; i < vectors; ++i) {
      _mm512_store_si512(&words[gain_shape::kMemory + i], _mm512_loadu_si512(plane + 64 * i));
      prefetch(later + 64 * i);
    }
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int32_t back = 1; back <= gain_shape::kMemory; ++back) {
      const int32_t rotations = (back + vectors - 1) / vectors;
      const __m512i from = _mm512_loadu_si512(plane + 64 * (rotations * vectors - back));
      const __m512i rotated = _mm512_permutexvar_epi32(_mm512_sub_epi32(lanes, _mm512_set1_epi32(rotations)), from);
      _mm512_store_si512(&words[gain_shape::kMemory - back], rotated);
    }
  }
};

/// Scalar codes, used without decoding.
template <int kWidth>
struct ScalarCodes {
  static constexpr int kBits = kWidth;
  static constexpr bool kTrellis = false;
  static constexpr int kFields = cpu::kFields<kBits>;
  /// Offset of a key's byte from its level.
  static constexpr float kKeyOffset = static_cast<float>((1 << kBits) - 1) / 2.0F;
  static constexpr float kValueOffset = kKeyOffset;

  static inline int32_t blocks(const SideLayout& layout) { return layout.low_plane().blocks(); }

  template <int kField>
  inline __m512i codes() const {
    return words_.template codes<kField>();
  }
  inline void load_keys(const SideLayout& layout, const SideData& side, int32_t block, int32_t slot) {
    words_.load(layout, side, block, slot);
  }
  inline void load_values(const SideLayout& layout, const SideData& side, const Chained* /*chained*/, int32_t block,
                          int32_t channel) {
    words_.load(layout, side, block, channel);
  }

 private:
  CodeWords<kBits> words_;
};

/// Levels indexed by the parities and other bits of their codes, repeated to fill six index bits: higher bits of an
/// index byte are ignored. With two bits, the other bit lies below the third parity.
template <int kBits, Side kSide>
struct LevelTable {
  alignas(64) uint8_t bytes[64];

  constexpr LevelTable() : bytes() {
    for (unsigned i = 0; i < 64; ++i) {
      const unsigned index = kBits == 2 ? (i & 3U) | (i & 4U) << 1U | (i & 8U) >> 1U : i % (8U << (kBits - 1));
      const int8_t level = kBits == 1   ? gain_shape::kLevels1.data()[index]
                           : kBits == 2 ? gain_shape::kLevels2.data()[index]
                                        : gain_shape::kLevels3.data()[index];
      bytes[i] = static_cast<uint8_t>(level + (kSide == Side::kKeys ? 128 : 0));
    }
  }
};
template <int kBits, Side kSide>
constexpr LevelTable<kBits, kSide> kLevelTable;

/// Levels of keys indexed by windows of seven bits: with one bit per code the trellis window, newest bit highest; with
/// two, the code's other bit above the six trellis bits that matter, 0, 4, 1, 5, 2 and 6 values back.
template <int kBits>
struct WindowTable {
  alignas(64) uint8_t bytes[128];

  constexpr WindowTable() : bytes() {
    for (uint32_t window = 0; window < 128; ++window) {
      uint32_t newest_first = 0;
      const auto put = [&](uint32_t back, uint32_t at) { newest_first |= (window >> at & 1U) << back; };
      if constexpr (kBits == 1) {
        for (uint32_t back = 0; back <= gain_shape::kMemory; ++back) put(back, gain_shape::kMemory - back);
      } else {
        for (uint32_t back = 0; back < 3; ++back) put(back, 5 - 2 * back);
        for (uint32_t back = 4; back < 7; ++back) put(back, 12 - 2 * back);
      }
      const int32_t subset = gain_shape::parities(newest_first);
      const uint32_t other = gain_shape::kSubsets * (window >> 6U);
      const int8_t level = kBits == 1 ? gain_shape::kLevels1.data()[subset]
                                      : gain_shape::kLevels2.data()[other + static_cast<uint32_t>(subset)];
      bytes[window] = static_cast<uint8_t>(level + 128);
    }
  }
};
template <int kBits>
constexpr WindowTable<kBits> kWindowTable;

/// Levels of keys with one and two bits: all bits a level depends on are close enough in a word to form an index.
template <int kWidth>
struct WindowCodes {
  static constexpr int kBits = kWidth;
  static constexpr int kFields = 8 / kBits;
  static constexpr float kKeyOffset = 128.0F;

  static inline int32_t blocks(const SideLayout& layout) { return layout.low_plane().blocks(); }

  template <int kField>
  inline __m512i codes() const {
    constexpr int kLeft = (kBits == 1 ? 6 : 4) - kBits * kField;
    __m512i windows = kLeft > 0 ? _mm512_shldi_epi32(trellis_, before_, kLeft > 0 ? kLeft : 0) : shift<kLeft>(trellis_);
    if constexpr (kBits == 2) windows = select_bits<0x3F>(windows, shift<6 - kBits * kField>(bits_));
    return _mm512_permutex2var_epi8(_mm512_load_si512(kWindowTable<kBits>.bytes), windows,
                                    _mm512_load_si512(kWindowTable<kBits>.bytes + 64));
  }

  inline void load_keys(const SideLayout& layout, const SideData& side, int32_t block, int32_t slot) {
    const auto offset = [slot](int32_t at) { return sizeof(uint32_t) * static_cast<size_t>(at * kPageSlots + slot); };
    bits_ = _mm512_loadu_si512(side.data + offset(block));
    before_ = _mm512_loadu_si512(side.data + offset((block == 0 ? blocks(layout) : block) - 1));
    prefetch(side.later + offset(block));
    trellis_ = bits_;
    if constexpr (kBits == 2) {  // bits of four values back instead of the codes' other bits
      trellis_ = select_bits<0xAA>(bits_, _mm512_shldi_epi32(bits_, before_, 7));
      before_ = select_bits<0xAA>(before_, shift<7>(before_));
    }
  }

 private:
  __m512i bits_;
  __m512i trellis_;
  __m512i before_;
};

/// Levels of trellis shapes. A block is a word of the plane with the highest bits. Words hold bits in trellis order, so
/// parities are computed on whole words. Level indices are assembled in nibbles, two per byte.
template <int kWidth, Side kSide>
struct TrellisCodes {
  static constexpr int kBits = kWidth;
  static constexpr bool kTrellis = true;
  static constexpr int kFields = kBits == 2 ? 4 : 8;
  static constexpr float kKeyOffset = 128.0F;  // unsigned bytes of keys
  static constexpr float kValueOffset = 0.0F;

  static inline PackedPlane plane(const SideLayout& layout) {
    return kBits == 3 ? layout.high_plane() : layout.low_plane();
  }
  static inline size_t plane_offset(const SideLayout& layout) { return kBits == 3 ? layout.high_offset() : 0; }
  static inline int32_t blocks(const SideLayout& layout) { return plane(layout).blocks(); }

  template <int kField>
  inline __m512i codes() const {
    const __m512i table = _mm512_load_si512(kLevelTable<kBits, kSide>.bytes);
    constexpr int kNibbles = kFields / 2;
    const __m512i nibbles = shift < kField < kNibbles ? 0 : -4 > (nibbles_[kField % kNibbles]);
    if constexpr (kBits != 3) return _mm512_permutexvar_epi8(nibbles, table);
    constexpr int kLowField = kField % 4;
    return _mm512_permutexvar_epi8(select_bits<7>(nibbles, shift<3 - 2 * kLowField>(low_[kField / 4])), table);
  }

  inline void load_keys(const SideLayout& layout, const SideData& side, int32_t block, int32_t slot) {
    const std::byte* data = side.data + plane_offset(layout) + sizeof(uint32_t) * static_cast<size_t>(slot);
    constexpr size_t kStride = sizeof(uint32_t) * kPageSlots;
    const __m512i bits = _mm512_loadu_si512(data + kStride * static_cast<size_t>(block));
    const int32_t last = block == 0 ? blocks(layout) - 1 : block - 1;
    const __m512i before = _mm512_loadu_si512(data + kStride * static_cast<size_t>(last));
    prefetch(side.later + (data - side.data) + kStride * static_cast<size_t>(block));
    static_assert(kBits == 3);  // other widths use windows
    const __m512i four = _mm512_shldi_epi32(bits, before, 4);
    index(bits, _mm512_xor_si512(_mm512_shldi_epi32(bits, before, 1), four),
          xor_of(_mm512_shldi_epi32(bits, before, 2), four, _mm512_shldi_epi32(bits, before, 5)),
          xor_of(bits, four, _mm512_shldi_epi32(bits, before, 6)));
    load_low(layout, side, block, slot);
  }

  inline void load_values(const SideLayout& layout, const SideData& side, const Chained* chained, int32_t block,
                          int32_t channel) {
    const __m512i* now = chained[block].words + gain_shape::kMemory + channel / 16;
    const __m512i bits = _mm512_load_si512(now);
    const __m512i four = _mm512_load_si512(now - 4);
    index(bits, _mm512_xor_si512(_mm512_load_si512(now - 1), four),
          xor_of(_mm512_load_si512(now - 2), four, _mm512_load_si512(now - 5)),
          xor_of(bits, four, _mm512_load_si512(now - 6)));
    if constexpr (kBits == 3) load_low(layout, side, block, channel);
  }

 private:
  template <int kField>
  static inline __m512i nibble(__m512i first, __m512i second, __m512i third) {
    return select_bits<0x11>(shift<-kField>(first),
                             select_bits<0x22>(shift<1 - kField>(second), shift<2 - kField>(third)));
  }

  inline void index(__m512i bits, __m512i first, __m512i second, __m512i third) {
    if constexpr (kBits == 2) {
      const __m512i low = select_bits<0xAA>(second, shift<-1>(first));
      const __m512i high = select_bits<0xAA>(third, bits);
      nibbles_[0] = select_bits<0x33>(low, shift<2>(high));
      nibbles_[1] = select_bits<0x33>(shift<-2>(low), high);
    } else {
      nibbles_[0] = nibble<0>(first, second, third);
      nibbles_[1] = nibble<1>(first, second, third);
      nibbles_[2] = nibble<2>(first, second, third);
      nibbles_[3] = nibble<3>(first, second, third);
    }
  }

  /// The two words of low bits below a word of highest bits; the last may have none.
  inline void load_low(const SideLayout& layout, const SideData& side, int32_t block, int32_t lane) {
    const PackedPlane low = layout.low_plane();
    for (int half = 0; half < 2; ++half) {
      const size_t offset = sizeof(uint32_t) * static_cast<size_t>((2 * block + half) * low.lanes + lane);
      const bool exists = half == 0 || 2 * block + 1 < low.blocks();
      low_[half] = exists ? _mm512_loadu_si512(side.data + offset) : _mm512_setzero_si512();
      if (exists) prefetch(side.later + offset);
    }
  }

  __m512i nibbles_[kFields / 2];
  __m512i low_[kBits == 3 ? 2 : 1];
};

/// Sums of byte products for kRows rows and kVectors vectors of lanes. With few rows, several accumulators hide the
/// latency of each.
template <typename Codes, int kRows, int kVectors>
struct ByteSums {
  static constexpr int kChains = kRows * kVectors >= 8 ? 1 : 8 / (kRows * kVectors);
  __m512i sums[kChains][kRows][kVectors];

  inline void clear() {
    HWY_UNROLL(8)
    for (auto& chain : sums) {
      HWY_UNROLL(8)
      for (auto& row : chain) {
        HWY_UNROLL(8)
        for (auto& each : row) each = _mm512_setzero_si512();
      }
    }
  }

  /// operands: one per row, signed for unsigned codes (keys), unsigned for signed codes (values).
  template <Side kSide, int kField = 0>
  inline void add_block(const Codes (&words)[kVectors], const int32_t* const (&operands)[kRows], int32_t block) {
    if constexpr (kField < Codes::kFields) {
      const int32_t at = block * Codes::kFields + kField;
      __m512i codes[kVectors];
      HWY_UNROLL(8)
      for (int a = 0; a < kVectors; ++a) codes[a] = words[a].template codes<kField>();
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        const __m512i operand = _mm512_set1_epi32(operands[r][at]);
        HWY_UNROLL(8)
        for (int a = 0; a < kVectors; ++a) {
          __m512i& sum = sums[kField % kChains][r][a];
          sum = kSide == Side::kKeys ? _mm512_dpbusd_epi32(sum, codes[a], operand)
                                     : _mm512_dpbusd_epi32(sum, operand, codes[a]);
        }
      }
      add_block<kSide, kField + 1>(words, operands, block);
    }
  }

  inline __m512 value(int r, int a) const {
    __m512i sum = sums[0][r][a];
    HWY_UNROLL(8)
    for (int chain = 1; chain < kChains; ++chain) sum = _mm512_add_epi32(sum, sums[chain][r][a]);
    return _mm512_cvtepi32_ps(sum);
  }
};

/// Gains of a page: the lower bits of a code select a factor within an octave, the higher ones a power of two.
struct Gains {
  __m512 of[2];

  HWY_INLINE void load(const SideLayout& layout, const std::byte* data) {
    constexpr int kTopOctave = gain_shape::kTopGain / gain_shape::kGainSteps;
    const float* octave = gain_shape::kGainFactors.data() + kTopOctave * gain_shape::kGainSteps;
    const __m512 low = _mm512_loadu_ps(octave);
    const __m512 high = _mm512_loadu_ps(octave + 16);
    const __m512 largest = _mm512_set1_ps(half(data + layout.largest_offset()));
    HWY_UNROLL(2)
    for (int a = 0; a < 2; ++a) {
      const auto* bytes = reinterpret_cast<const __m128i*>(data + layout.gain_offset() + 16 * a);
      const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes));
      const __m512i factors = _mm512_castps_si512(_mm512_permutex2var_ps(low, codes, high));
      const __m512i octaves = _mm512_sub_epi32(_mm512_srli_epi32(codes, 5), _mm512_set1_epi32(kTopOctave));
      const __m512i powers = _mm512_add_epi32(factors, _mm512_slli_epi32(octaves, 23));
      of[a] = _mm512_maskz_mul_ps(_mm512_test_epi32_mask(codes, codes), _mm512_castsi512_ps(powers), largest);
    }
  }

  static inline float half(const std::byte* at) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(*reinterpret_cast<const uint16_t*>(at))));
  }
};

/// Prefetches the fields after the codes.
[[gnu::always_inline]] inline void prefetch_gains(const SideLayout& layout, const SideData& side) {
  for (size_t i = layout.gain_offset(); i < layout.bytes(); i += 64) prefetch(side.later + i);
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES
