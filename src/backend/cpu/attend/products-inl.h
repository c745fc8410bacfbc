// Sums of products of codes and integers, byte by byte.
//
// Codes, levels and operands are bytes, of a size that two products fit 16 bits; so do sums of products of scalar codes
// for several fields. Levels of keys meet operands of 16 bits. With KVQ_DOT_PRODUCTS an instruction sums four products.
#if defined(KVQ_ATTEND_PRODUCTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_ATTEND_PRODUCTS_INL_H
#undef KVQ_ATTEND_PRODUCTS_INL_H
#else
#define KVQ_ATTEND_PRODUCTS_INL_H
#endif

#include "backend/cpu/attend/kernels.h"
#include "formats/page_fields.h"

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using SumTag = hn::ScalableTag<int32_t>;
using WordTag = hn::RebindToUnsigned<SumTag>;
using WordVector = hn::Vec<WordTag>;
using PairTag = hn::Repartition<int16_t, SumTag>;
using ByteTag = hn::Repartition<uint8_t, SumTag>;

/// Shifts left for positive counts.
template <int kCount>
HWY_INLINE WordVector shift(WordVector words) {
  if constexpr (kCount > 0) {
    return hn::ShiftLeft<kCount>(words);
  } else if constexpr (kCount < 0) {
    return hn::ShiftRight<-kCount>(words);
  } else {
    return words;
  }
}

/// Keeps `bits` of each byte.
HWY_INLINE WordVector masked(WordVector words, uint32_t bits) {
  return hn::And(words, hn::Set(WordTag(), bits * 0x01010101U));
}

HWY_INLINE size_t word_offset(int32_t lanes, int32_t block, int32_t lane) {
  return sizeof(uint32_t) * static_cast<size_t>(block * lanes + lane);
}

HWY_INLINE WordVector load_words(const SideData& side, size_t offset) {
  prefetch(side.later + offset);
  return hn::LoadU(WordTag(), reinterpret_cast<const uint32_t*>(side.data + offset));
}

/// Vectors of 32 numbers, such as those of a page's slots.
inline constexpr int kVectorsOf32 = 32 / static_cast<int>(hn::MaxLanes(SumTag()));

/// Added to a small number, this leaves the nearest integer in the low bits of the sum, which integer_of() takes.
inline constexpr float kToLowBits = 12582912.0F;  // 1.5 · 2^23

HWY_INLINE hn::Vec<SumTag> integer_of(hn::Vec<hn::RebindToFloat<SumTag>> sum) {
  return hn::Sub(hn::BitCast(SumTag(), sum), hn::Set(SumTag(), 0x4B400000));
}

/// Stores 32 integers that fit bytes.
template <typename Byte>
HWY_INLINE void store_bytes(const hn::Vec<SumTag> (&integers)[kVectorsOf32], Byte* out) {
#if HWY_TARGET == HWY_AVX2
  const auto low = _mm256_packs_epi32(integers[0].raw, integers[1].raw);
  const auto high = _mm256_packs_epi32(integers[2].raw, integers[3].raw);
  const auto bytes = std::is_signed_v<Byte> ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
  const auto order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(bytes, order));
#else
  const hn::Rebind<Byte, SumTag> narrow;
  const auto lanes = static_cast<int>(hn::Lanes(SumTag()));
  for (int a = 0; a < kVectorsOf32; ++a) hn::StoreU(hn::DemoteTo(narrow, integers[a]), narrow, out + a * lanes);
#endif
}

/// Scalar codes, used without decoding.
template <int kWidth>
struct ScalarWords {
  static constexpr int kBits = kWidth;
  static constexpr bool kTrellis = false;
  static constexpr int kFields = kBits == 3 ? 4 : 8 / kBits;
  static constexpr int kMost = (1 << kBits) - 1;
  static constexpr float kOffset = static_cast<float>(kMost) / 2.0F;

  static int32_t blocks(const SideLayout& layout) { return layout.low_plane().blocks(); }

  /// Loads the words of a side.
  class Keys {
   public:
    HWY_INLINE Keys(const SideLayout& layout, const SideData& side)
        : side_(side),
          stride_(word_offset(layout.low_plane().lanes, 1, 0)),
          high_(kBits == 3 ? layout.high_offset() : 0) {}

    HWY_INLINE ScalarWords operator()(int32_t block, int32_t lane) const {
      const size_t offset = sizeof(uint32_t) * static_cast<size_t>(lane);
      ScalarWords words;
      words.low_ = load_words(side_, offset + static_cast<size_t>(block) * stride_);
      if constexpr (kBits == 3) {
        words.high_ = load_words(side_, high_ + offset + static_cast<size_t>(block / 2) * stride_);
        if (block % 2 != 0) words.high_ = shift<-4>(words.high_);
      }
      return words;
    }

   private:
    SideData side_;
    size_t stride_;  // bytes of a block
    size_t high_;    // offset of the plane with the highest bits
  };
  using Values = Keys;

  template <int kField>
  HWY_INLINE hn::Vec<ByteTag> field() const {
    constexpr int kLowBits = kBits == 3 ? 2 : kBits;
    WordVector codes = masked(shift<-kLowBits * kField>(low_), (1U << kLowBits) - 1U);
    if constexpr (kBits == 3) codes = hn::Or(codes, masked(shift<2 - kField>(high_), 4));
    return hn::BitCast(ByteTag(), codes);
  }

 private:
  WordVector low_;
  WordVector high_;
};

/// Sums of products of bytes, on their way to 32 bits: lane i there gets those of bytes 4i to 4i + 3. Where signs mix,
/// unsigned numbers meet signed ones: codes of keys are unsigned and operands signed, those of values the other way
/// round. Elsewhere signed numbers meet signed ones, and unsigned codes of values unsigned operands.
#if defined(KVQ_DOT_PRODUCTS)
class PartialSums {
 public:
  static constexpr int kLanes = 1;  // per lane of 32 bits
  static constexpr bool kMixesSigns = HWY_ARCH_X86 != 0;

  HWY_INLINE void clear(int16_t /*start*/) { sums_ = hn::Zero(SumTag()); }

  template <Side kSide, bool kLevels>
  HWY_INLINE void add(hn::Vec<ByteTag> codes, hn::Vec<ByteTag> operand) {
#if HWY_ARCH_X86
    const bool keys = kSide == Side::kKeys;
    sums_.raw = _mm256_dpbusd_avx_epi32(sums_.raw, keys ? codes.raw : operand.raw, keys ? operand.raw : codes.raw);
#else
    if constexpr (kSide == Side::kKeys || kLevels) {
      sums_.raw = vdotq_s32(sums_.raw, vreinterpretq_s8_u8(codes.raw), vreinterpretq_s8_u8(operand.raw));
    } else {
      sums_.raw = vreinterpretq_s32_u32(vdotq_u32(vreinterpretq_u32_s32(sums_.raw), codes.raw, operand.raw));
    }
#endif
  }
  HWY_INLINE hn::Vec<SumTag> added_to(hn::Vec<SumTag> sums) const { return hn::Add(sums, sums_); }

 private:
  hn::Vec<SumTag> sums_;
};
#elif HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
class PartialSums {
 public:
  static constexpr int kLanes = 4;
  static constexpr bool kMixesSigns = false;

  HWY_INLINE void clear(int16_t start) { low_ = high_ = vdupq_n_s16(start); }

  template <Side kSide, bool kLevels>
  HWY_INLINE void add(hn::Vec<ByteTag> codes, hn::Vec<ByteTag> operand) {
    if constexpr (kSide == Side::kKeys || kLevels) {
      const int8x16_t a = vreinterpretq_s8_u8(codes.raw);
      const int8x16_t b = vreinterpretq_s8_u8(operand.raw);
      low_ = vmlal_s8(low_, vget_low_s8(a), vget_low_s8(b));
      high_ = vmlal_high_s8(high_, a, b);
    } else {
      const uint16x8_t low = vreinterpretq_u16_s16(low_);
      const uint16x8_t high = vreinterpretq_u16_s16(high_);
      low_ = vreinterpretq_s16_u16(vmlal_u8(low, vget_low_u8(codes.raw), vget_low_u8(operand.raw)));
      high_ = vreinterpretq_s16_u16(vmlal_high_u8(high, codes.raw, operand.raw));
    }
  }
  HWY_INLINE hn::Vec<SumTag> added_to(hn::Vec<SumTag> sums) const {
    return hn::Add(sums, hn::Vec<SumTag>(vpaddq_s32(vpaddlq_s16(low_), vpaddlq_s16(high_))));
  }

 private:
  int16x8_t low_;
  int16x8_t high_;
};
#else
class PartialSums {
 public:
  static constexpr int kLanes = 2;
  static constexpr bool kMixesSigns = true;

  HWY_INLINE void clear(int16_t start) { sums_ = hn::Set(PairTag(), start); }

  template <Side kSide, bool kLevels>
  HWY_INLINE void add(hn::Vec<ByteTag> codes, hn::Vec<ByteTag> operand) {
    sums_ = hn::Add(sums_, kSide == Side::kKeys ? pair_products(codes, operand) : pair_products(operand, codes));
  }
  HWY_INLINE hn::Vec<SumTag> added_to(hn::Vec<SumTag> sums) const {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
    hn::Vec<SumTag> unused = hn::Zero(SumTag());
    return hn::ReorderWidenMulAccumulate(SumTag(), sums_, hn::Set(PairTag(), int16_t{1}), sums, unused);
#else
    const auto both = hn::BitCast(SumTag(), sums_);
    return hn::Add(sums, hn::Add(hn::ShiftRight<16>(hn::ShiftLeft<16>(both)), hn::ShiftRight<16>(both)));
#endif
  }

 private:
  /// Lane i: sum of the products of bytes 2i and 2i + 1, which must fit. Highway added this instruction late.
  static HWY_INLINE hn::Vec<PairTag> pair_products(hn::Vec<ByteTag> a, hn::Vec<ByteTag> b) {
#if HWY_TARGET == HWY_AVX3
    return hn::Vec<PairTag>{_mm512_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
    return hn::Vec<PairTag>{_mm256_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_SSE4
    return hn::Vec<PairTag>{_mm_maddubs_epi16(a.raw, b.raw)};
#else
    const PairTag d;
    const hn::RebindToUnsigned<PairTag> du;
    const auto even = hn::Mul(hn::BitCast(d, hn::And(hn::BitCast(du, a), hn::Set(du, uint16_t{255}))),
                              hn::ShiftRight<8>(hn::ShiftLeft<8>(hn::BitCast(d, b))));
    const auto odd =
        hn::Mul(hn::BitCast(d, hn::ShiftRight<8>(hn::BitCast(du, a))), hn::ShiftRight<8>(hn::BitCast(d, b)));
    return hn::Add(even, odd);
#endif
  }

  hn::Vec<PairTag> sums_;
};
#endif

/// Products of a field that one sum gets.
inline constexpr int kProducts = 4 / PartialSums::kLanes;

/// Whether sums have 16 bits.
inline constexpr bool kSumsAreShort = PartialSums::kLanes > 1;

/// The largest operand of values.
template <typename Words>
inline constexpr int kTopWeight = Words::kTrellis && !PartialSums::kMixesSigns ? 127
                                  : Words::kTrellis && kSumsAreShort ? std::min(255, 32767 / (2 * Words::kMost))
                                                                     : 255;

/// Fields whose products add up to a sum. Short sums of unsigned products start at the least number.
template <typename Words, Side kSide>
inline constexpr int kFieldsOfSum = !kSumsAreShort ? 1 << 16
                                                   : (kSide == Side::kKeys ? 32767 / 127
                                                      : Words::kTrellis    ? 32767 / kTopWeight<Words>
                                                                           : 65535 / 255) /
                                                         (kProducts * Words::kMost);
template <typename Words, Side kSide>
inline constexpr int16_t kStartOfSum = !kSumsAreShort || Words::kTrellis || kSide == Side::kKeys ? 0 : -32768;

/// Queries so small that two products of theirs with levels fit 16 bits would lose too much where channels differ.
template <typename Words, Side kSide>
inline constexpr bool kWide = Words::kTrellis ? kSide == Side::kKeys : false;

/// Sums of products by lane, for kRows rows and kVectors vectors of lanes.
template <int kRows, int kVectors>
struct Products {
  hn::Vec<SumTag> sums[kRows][kVectors];

  HWY_INLINE hn::Vec<hn::RebindToFloat<SumTag>> value(int r, int a) const {
    return hn::ConvertTo(hn::RebindToFloat<SumTag>(), sums[r][a]);
  }

  /// Multiplies all blocks by words of operands[r]. load(block, lane): the words of a vector.
  template <typename Words, Side kSide, typename Load>
  HWY_INLINE void run(int32_t blocks, const int32_t* const (&operands)[kRows], const Load& load, int32_t lane) {
    if constexpr (kWide<Words, kSide>) {
      add_wide<Words>(blocks, operands, load, lane);
    } else {
      add_bytes<Words, kSide>(blocks, operands, load, lane);
    }
  }

 private:
  template <typename Words, Side kSide, typename Load>
  HWY_INLINE void add_bytes(int32_t blocks, const int32_t* const (&operands)[kRows], const Load& load, int32_t lane) {
    // Unrolled; a page of values has few blocks.
    constexpr int kMostBlocks = kSide == Side::kKeys ? 16 / Words::kFields : kPageSlots / 4 / Words::kFields;
    constexpr int kBlocksOfSum = std::min(std::max(kFieldsOfSum<Words, kSide> / Words::kFields, 1), kMostBlocks);
    constexpr int kSumsOfBlock = (Words::kFields + kFieldsOfSum<Words, kSide> - 1) / kFieldsOfSum<Words, kSide>;
    const int32_t whole = blocks / kBlocksOfSum;
    const int32_t times = (whole + blocks - whole * kBlocksOfSum) * kSumsOfBlock;
    for (int r = 0; r < kRows; ++r) {
      for (int a = 0; a < kVectors; ++a) {
        sums[r][a] = hn::Set(SumTag(), -PartialSums::kLanes * kStartOfSum<Words, kSide> * times);
      }
    }
    int32_t block = 0;
    for (; block + kBlocksOfSum <= blocks; block += kBlocksOfSum) {
      add_blocks<Words, kSide, kBlocksOfSum>(operands, load, block, lane);
    }
    for (; block < blocks; ++block) add_blocks<Words, kSide, 1>(operands, load, block, lane);
  }

  template <typename Words, Side kSide, int kBlocks, typename Load>
  HWY_INLINE void add_blocks(const int32_t* const (&operands)[kRows], const Load& load, int32_t block, int32_t lane) {
    const auto lanes = static_cast<int32_t>(hn::Lanes(SumTag()));
    PartialSums partial_sums[kRows][kVectors];
    const int32_t* at[kRows];
    for (int r = 0; r < kRows; ++r) {
      at[r] = operands[r] + block * Words::kFields;
      // Unknown to the compiler, which would keep operands of all blocks on the stack.
      __asm__ volatile("" : "+r"(at[r]));
    }
    HWY_UNROLL(8)
    for (int i = 0; i < kBlocks; ++i) {
      Words words[kVectors];
      for (int a = 0; a < kVectors; ++a) words[a] = load(block + i, lane + a * lanes);
      add_fields<Words, kSide, kBlocks>(words, at, i, partial_sums);
    }
  }

  /// Adds the fields of block `block` of kBlocks that add up to partial sums together.
  template <typename Words, Side kSide, int kBlocks, int kField = 0>
  HWY_INLINE void add_fields(const Words (&words)[kVectors], const int32_t* const (&operands)[kRows], int block,
                             PartialSums (&partial_sums)[kRows][kVectors]) {
    if constexpr (kField < Words::kFields) {
      constexpr bool kFew = kFieldsOfSum<Words, kSide> < Words::kFields;  // a sum gets less than a block
      const bool is_first = kFew ? kField % kFieldsOfSum<Words, kSide> == 0 : kField == 0 && block == 0;
      const bool is_last = kField + 1 == Words::kFields ? kFew || block + 1 == kBlocks
                                                        : kFew && (kField + 1) % kFieldsOfSum<Words, kSide> == 0;
      hn::Vec<ByteTag> bytes[kVectors];
      for (int a = 0; a < kVectors; ++a) bytes[a] = words[a].template field<kField>();
      for (int r = 0; r < kRows; ++r) {
        const int32_t word = operands[r][block * Words::kFields + kField];
        const auto operand = hn::BitCast(ByteTag(), hn::Set(SumTag(), word));
        for (int a = 0; a < kVectors; ++a) {
          if (is_first) partial_sums[r][a].clear(kStartOfSum<Words, kSide>);
          partial_sums[r][a].template add<kSide, Words::kTrellis>(bytes[a], operand);
          if (is_last) sums[r][a] = partial_sums[r][a].added_to(sums[r][a]);
        }
      }
      add_fields<Words, kSide, kBlocks, kField + 1>(words, operands, block, partial_sums);
    }
  }

  /// By operands of 16 bits, for keys whose second and third of four bytes trade places.
  template <typename Words, typename Load>
  HWY_INLINE void add_wide(int32_t blocks, const int32_t* const (&operands)[kRows], const Load& load, int32_t lane) {
    const auto lanes = static_cast<int32_t>(hn::Lanes(SumTag()));
    hn::Vec<SumTag> others[kRows][kVectors];  // where products of neighbours come in two vectors
    for (int r = 0; r < kRows; ++r) {
      for (int a = 0; a < kVectors; ++a) sums[r][a] = others[r][a] = hn::Zero(SumTag());
    }
    for (int32_t block = 0; block < blocks; ++block) {
      Words words[kVectors];
      for (int a = 0; a < kVectors; ++a) words[a] = load(block, lane + a * lanes);
      add_wide_fields<Words>(words, operands, 2 * block * Words::kFields, others);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int a = 0; a < kVectors; ++a) sums[r][a] = hn::RearrangeToOddPlusEven(sums[r][a], others[r][a]);
    }
  }

  template <typename Words, int kField = 0>
  HWY_INLINE void add_wide_fields(const Words (&words)[kVectors], const int32_t* const (&operands)[kRows],
                                  int32_t first, hn::Vec<SumTag> (&others)[kRows][kVectors]) {
    if constexpr (kField < Words::kFields) {
      const SumTag d;
      const PairTag d16;
      for (int a = 0; a < kVectors; ++a) {
        const auto levels = hn::BitCast(d16, words[a].template field<kField>());
        const auto even = hn::ShiftRight<8>(hn::ShiftLeft<8>(levels));
        const auto odd = hn::ShiftRight<8>(levels);
        for (int r = 0; r < kRows; ++r) {
          const int32_t* operand = operands[r] + first + 2 * kField;
          auto& sum = sums[r][a];
          auto& other = others[r][a];
          sum = hn::ReorderWidenMulAccumulate(d, even, hn::BitCast(d16, hn::Set(d, operand[0])), sum, other);
          sum = hn::ReorderWidenMulAccumulate(d, odd, hn::BitCast(d16, hn::Set(d, operand[1])), sum, other);
        }
      }
      add_wide_fields<Words, kField + 1>(words, operands, first, others);
    }
  }
};

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
