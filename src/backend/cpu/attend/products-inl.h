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
#include "backend/cpu/byte_products-inl.h"
#include "formats/page_fields.h"

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using WordTag = hn::RebindToUnsigned<SumTag>;
using WordVector = hn::Vec<WordTag>;

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

/// `begins`: at a multiple of kDataAlignment, from which on later data are prefetched.
HWY_INLINE WordVector load_words(const SideData& side, size_t offset, bool begins) {
  if (begins) prefetch(side.later + offset);
  return hn::LoadU(WordTag(), reinterpret_cast<const uint32_t*>(side.data + offset));
}

/// Vectors of 32 numbers, such as those of a page's slots.
inline constexpr int kVectorsOf32 = 32 / static_cast<int>(hn::MaxLanes(SumTag()));

/// Added to a small number, this leaves the nearest integer in the low bits of the sum, which integer_of() takes.
inline constexpr float kToLowBits = 12582912.0F;  // 1.5 · 2^23
using RoundedVector = hn::Vec<hn::RebindToFloat<SumTag>>;

HWY_INLINE SumVector integer_of(RoundedVector rounded) {
  return hn::Sub(hn::BitCast(SumTag(), rounded), hn::Set(SumTag(), 0x4B400000));
}

/// Lane i: sum plus four bytes.
template <typename Byte>
HWY_INLINE SumVector add_fours(ByteVector bytes, SumVector sum) {
  const ByteVector ones = hn::Set(ByteTag(), uint8_t{1});
#if defined(KVQ_DOT_PRODUCTS) && HWY_ARCH_X86
  return std::is_signed_v<Byte> ? add_mixed_products(ones, bytes, sum) : add_mixed_products(bytes, ones, sum);
#elif defined(KVQ_DOT_PRODUCTS)
  return std::is_signed_v<Byte> ? add_signed_products(bytes, ones, sum) : add_unsigned_products(bytes, ones, sum);
#else
  const auto pairs = std::is_signed_v<Byte> ? mixed_pair_products(ones, bytes) : mixed_pair_products(bytes, ones);
  return add_neighbours(pairs, sum);
#endif
}

/// Stores the integers of 32 numbers, which fit bytes, and adds them to the lanes of `sum`.
template <typename Byte>
HWY_INLINE void store_bytes(const RoundedVector (&rounded)[kVectorsOf32], Byte* out, SumVector& sum) {
#if HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
  for (int half = 0; half < 2; ++half) {
    const auto words = [&rounded, half](int i) HWY_ATTR { return vreinterpretq_s16_f32(rounded[4 * half + i].raw); };
    const auto low = vreinterpretq_u8_s16(vuzp1q_s16(words(0), words(1)));
    const auto high = vreinterpretq_u8_s16(vuzp1q_s16(words(2), words(3)));
    const ByteVector bytes(vuzp1q_u8(low, high));
    hn::StoreU(bytes, ByteTag(), reinterpret_cast<uint8_t*>(out) + 16 * half);
    sum = add_fours<Byte>(bytes, sum);
  }
#else
  SumVector integers[kVectorsOf32];
  for (int a = 0; a < kVectorsOf32; ++a) integers[a] = integer_of(rounded[a]);
#if HWY_TARGET == HWY_AVX2
  const auto low = _mm256_packs_epi32(integers[0].raw, integers[1].raw);
  const auto high = _mm256_packs_epi32(integers[2].raw, integers[3].raw);
  const auto bytes = std::is_signed_v<Byte> ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
  const auto order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permutevar8x32_epi32(bytes, order));
  sum = add_fours<Byte>(ByteVector{bytes}, sum);
#else
  const hn::Rebind<Byte, SumTag> narrow;
  const auto lanes = static_cast<int>(hn::Lanes(SumTag()));
  for (int a = 0; a < kVectorsOf32; ++a) {
    hn::StoreU(hn::DemoteTo(narrow, integers[a]), narrow, out + a * lanes);
    sum = hn::Add(sum, integers[a]);
  }
#endif
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

  /// Loads the words of a side. A block of keys has as many as a page has slots.
  template <Side kSide>
  class Loader {
   public:
    HWY_INLINE Loader(const SideLayout& layout, const SideData& side)
        : side_(side),
          lanes_(kSide == Side::kKeys ? kPageSlots : layout.low_plane().lanes),
          high_(kBits == 3 ? layout.high_offset() : 0) {}

    HWY_INLINE ScalarWords operator()(int32_t block, int32_t lane, bool begins) const {
      const int32_t lanes = kSide == Side::kKeys ? kPageSlots : lanes_;  // a constant
      ScalarWords words;
      words.low_ = load_words(side_, word_offset(lanes, block, lane), begins);
      if constexpr (kBits == 3) {
        words.high_ = load_words(side_, high_ + word_offset(lanes, block / 2, lane), begins);
        if (block % 2 != 0) words.high_ = shift<-4>(words.high_);
      }
      return words;
    }

   private:
    SideData side_;
    int32_t lanes_;
    size_t high_;  // offset of the plane with the highest bits
  };
  using Keys = Loader<Side::kKeys>;
  using Values = Loader<Side::kValues>;

  template <int kField>
  HWY_INLINE ByteVector field() const {
    constexpr int kLowBits = kBits == 3 ? 2 : kBits;
    if constexpr (kBits != 3 && kField + 1 == kFields) {
      return hn::ShiftRight<8 - kBits>(hn::BitCast(ByteTag(), low_));  // for some targets one instruction
    }
    WordVector codes = masked(shift<-kLowBits * kField>(low_), (1U << kLowBits) - 1U);
    if constexpr (kBits == 3) codes = hn::Or(codes, masked(shift<2 - kField>(high_), 4));
    return hn::BitCast(ByteTag(), codes);
  }

 private:
  WordVector low_;
  WordVector high_;
};

/// Operands of the fields of a block, a word each.
#if HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
template <int kFields>
class Operands {
 public:
  HWY_INLINE void load(const int32_t* words) {
    for (int i = 0; i < kFields / 4; ++i) words_[i] = vld1q_s32(words + 4 * i);
    if constexpr (kFields % 4 != 0) words_[0] = vcombine_s32(vld1_s32(words), vdup_n_s32(0));
  }
  template <int kField>
  HWY_INLINE ByteVector of() const {
    return ByteVector(vreinterpretq_u8_s32(vdupq_laneq_s32(words_[kField / 4], kField % 4)));
  }
  /// Four of them; field kField has word kField % 4.
  template <int kField>
  HWY_INLINE int32x4_t four() const {
    return words_[kField / 4];
  }

 private:
  static_assert(kFields == 2 || kFields % 4 == 0);
  int32x4_t words_[(kFields + 3) / 4];
};
#else
template <int kFields>
class Operands {
 public:
  HWY_INLINE void load(const int32_t* words) { words_ = words; }
  template <int kField>
  HWY_INLINE ByteVector of() const {
    return hn::BitCast(ByteTag(), hn::Set(SumTag(), words_[kField]));
  }

 private:
  const int32_t* words_;
};
#endif

/// Sums of products of bytes, on their way to 32 bits: lane i there gets those of bytes 4i to 4i + 3. Where signs mix,
/// unsigned numbers meet signed ones: codes of keys are unsigned and operands signed, those of values the other way
/// round. Elsewhere signed numbers meet signed ones, and unsigned codes of values unsigned operands.
#if defined(KVQ_DOT_PRODUCTS)
class PartialSums {  // none: an instruction adds to 32 bits
 public:
  static constexpr int kLanes = 1;  // per lane of 32 bits
  static constexpr bool kMixesSigns = HWY_ARCH_X86 != 0;

  HWY_INLINE void clear(int16_t /*start*/) {}

  template <Side kSide, bool kLevels, int kField, class AllOperands>
  HWY_INLINE void add(ByteVector codes, const AllOperands& operands, SumVector& sums) {
#if HWY_ARCH_X86
    const ByteVector operand = operands.template of<kField>();
    sums = kSide == Side::kKeys ? add_mixed_products(codes, operand, sums) : add_mixed_products(operand, codes, sums);
#else
    const int32x4_t four = operands.template four<kField>();
    if constexpr (kSide == Side::kKeys || kLevels) {
      const int8x16_t signed_codes = vreinterpretq_s8_u8(codes.raw);
      sums.raw = vdotq_laneq_s32(sums.raw, signed_codes, vreinterpretq_s8_s32(four), kField % 4);
    } else {
      const uint32x4_t unsigned_sums = vreinterpretq_u32_s32(sums.raw);
      const uint8x16_t weights = vreinterpretq_u8_s32(four);
      sums.raw = vreinterpretq_s32_u32(vdotq_laneq_u32(unsigned_sums, codes.raw, weights, kField % 4));
    }
#endif
  }
  HWY_INLINE void add_to(SumVector& /*sums*/) const {}
};
#elif HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
class PartialSums {
 public:
  static constexpr int kLanes = 4;
  static constexpr bool kMixesSigns = false;

  HWY_INLINE void clear(int16_t start) { low_ = high_ = vdupq_n_s16(start); }

  template <Side kSide, bool kLevels, int kField, class AllOperands>
  HWY_INLINE void add(ByteVector codes, const AllOperands& operands, SumVector& /*sums*/) {
    const ByteVector operand = operands.template of<kField>();
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
  HWY_INLINE void add_to(SumVector& sums) const {
    sums = hn::Add(sums, SumVector(vpaddq_s32(vpaddlq_s16(low_), vpaddlq_s16(high_))));
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

  template <Side kSide, bool kLevels, int kField, class AllOperands>
  HWY_INLINE void add(ByteVector codes, const AllOperands& operands, SumVector& /*sums*/) {
    const ByteVector operand = operands.template of<kField>();
    const bool keys = kSide == Side::kKeys;
    sums_ = hn::Add(sums_, keys ? mixed_pair_products(codes, operand) : mixed_pair_products(operand, codes));
  }
  HWY_INLINE void add_to(SumVector& sums) const { sums = add_neighbours(sums_, sums); }

 private:
  PairVector sums_;
};
#endif

/// Vectors of lanes that are multiplied together, as many as registers allow.
template <typename Words>
inline constexpr int kVectorsOfProducts = PartialSums::kLanes == 1 && !HWY_ARCH_X86 && !Words::kTrellis ? 4 : 2;

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
  SumVector sums[kRows][kVectors];

  HWY_INLINE hn::Vec<hn::RebindToFloat<SumTag>> value(int r, int a) const {
    return hn::ConvertTo(hn::RebindToFloat<SumTag>(), sums[r][a]);
  }

  /// Multiplies all blocks by words of operands[r]. load(block, lane, begins): the words of a vector.
  template <typename Words, Side kSide, typename Load>
  HWY_INLINE void run(int32_t blocks, const int32_t* const (&operands)[kRows], const Load& load, int32_t lane) {
    if constexpr (kWide<Words, kSide>) {
      add_wide<Words>(blocks, operands, load, lane);
    } else {
      add_bytes<Words, kSide>(blocks, operands, load, lane);
    }
  }

 private:
  /// Whether vector `a` begins at a multiple of kDataAlignment if the first does.
  static HWY_INLINE bool begins(int a) {
    return static_cast<size_t>(a) * hn::MaxLanes(ByteTag()) % kDataAlignment == 0;
  }

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
      for (int a = 0; a < kVectors; ++a) words[a] = load(block + i, lane + a * lanes, begins(a));
      Operands<Words::kFields> of_block[kRows];
      for (int r = 0; r < kRows; ++r) of_block[r].load(at[r] + i * Words::kFields);
      add_fields<Words, kSide, kBlocks>(words, of_block, i, partial_sums);
    }
  }

  /// Adds the fields of block `block` of kBlocks that add up to partial sums together.
  template <typename Words, Side kSide, int kBlocks, int kField = 0>
  HWY_INLINE void add_fields(const Words (&words)[kVectors], const Operands<Words::kFields> (&operands)[kRows],
                             int block, PartialSums (&partial_sums)[kRows][kVectors]) {
    if constexpr (kField < Words::kFields) {
      constexpr bool kFew = kFieldsOfSum<Words, kSide> < Words::kFields;  // a sum gets less than a block
      const bool is_first = kFew ? kField % kFieldsOfSum<Words, kSide> == 0 : kField == 0 && block == 0;
      const bool is_last = kField + 1 == Words::kFields ? kFew || block + 1 == kBlocks
                                                        : kFew && (kField + 1) % kFieldsOfSum<Words, kSide> == 0;
      ByteVector bytes[kVectors];
      for (int a = 0; a < kVectors; ++a) bytes[a] = words[a].template field<kField>();
      for (int r = 0; r < kRows; ++r) {
        for (int a = 0; a < kVectors; ++a) {
          if (is_first) partial_sums[r][a].clear(kStartOfSum<Words, kSide>);
          partial_sums[r][a].template add<kSide, Words::kTrellis, kField>(bytes[a], operands[r], sums[r][a]);
          if (is_last) partial_sums[r][a].add_to(sums[r][a]);
        }
      }
      add_fields<Words, kSide, kBlocks, kField + 1>(words, operands, block, partial_sums);
    }
  }

  /// By operands of 16 bits, for keys whose second and third of four bytes trade places.
  template <typename Words, typename Load>
  HWY_INLINE void add_wide(int32_t blocks, const int32_t* const (&operands)[kRows], const Load& load, int32_t lane) {
    const auto lanes = static_cast<int32_t>(hn::Lanes(SumTag()));
    SumVector others[kRows][kVectors];  // where products of neighbours come in two vectors
    for (int r = 0; r < kRows; ++r) {
      for (int a = 0; a < kVectors; ++a) sums[r][a] = others[r][a] = hn::Zero(SumTag());
    }
    for (int32_t block = 0; block < blocks; ++block) {
      Words words[kVectors];
      for (int a = 0; a < kVectors; ++a) words[a] = load(block, lane + a * lanes, begins(a));
      add_wide_fields<Words>(words, operands, 2 * block * Words::kFields, others);
    }
    for (int r = 0; r < kRows; ++r) {
      for (int a = 0; a < kVectors; ++a) sums[r][a] = hn::RearrangeToOddPlusEven(sums[r][a], others[r][a]);
    }
  }

  template <typename Words, int kField = 0>
  HWY_INLINE void add_wide_fields(const Words (&words)[kVectors], const int32_t* const (&operands)[kRows],
                                  int32_t first, SumVector (&others)[kRows][kVectors]) {
    if constexpr (kField < Words::kFields) {
      const SumTag d;
      const PairTag d16;
      for (int a = 0; a < kVectors; ++a) {
        const ByteVector levels = words[a].template field<kField>();
        const auto even = even_bytes(levels);
        const auto odd = odd_bytes(levels);
        for (int r = 0; r < kRows; ++r) {
          const int32_t* operand = operands[r] + first + 2 * kField;
          auto& sum = sums[r][a];
          auto& other = others[r][a];
          add_word_products(even, hn::BitCast(d16, hn::Set(d, operand[0])), sum, other);
          add_word_products(odd, hn::BitCast(d16, hn::Set(d, operand[1])), sum, other);
        }
      }
      add_wide_fields<Words, kField + 1>(words, operands, first, others);
    }
  }
};

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
