// Sums of products of codes and integers, byte by byte.
//
// Codes, levels and operands are bytes, of a size that two products fit 16 bits; sums of products of scalar codes fit
// for several fields more. Where bytes are not multiplied in pairs, operands of levels are 16-bit integers.
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

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using SumTag = hn::ScalableTag<int32_t>;
using WordTag = hn::RebindToUnsigned<SumTag>;
using WordVector = hn::Vec<WordTag>;
using PairTag = hn::Repartition<int16_t, SumTag>;
using ByteTag = hn::Repartition<uint8_t, SumTag>;
using SignedByteTag = hn::Repartition<int8_t, SumTag>;

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

/// Whether levels of trellises meet bytes, smaller ones than codes do.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
inline constexpr bool kByteLevels = true;
#else
inline constexpr bool kByteLevels = false;
#endif
/// Scalar codes, used without decoding.
template <int kWidth>
struct ScalarWords {
  static constexpr int kBits = kWidth;
  static constexpr bool kTrellis = false;
  static constexpr bool kWide = false;
  static constexpr int kFields = kBits == 3 ? 4 : 8 / kBits;
  static constexpr int kMost = (1 << kBits) - 1;
  static constexpr float kOffset = static_cast<float>(kMost) / 2.0F;

  static int32_t blocks(const SideLayout& layout) { return layout.low_plane().blocks(); }

  /// Empty: words are independent of earlier ones.
  struct Before {
    void load(const SideLayout& /*layout*/, const SideData& /*side*/) {}
  };

  HWY_INLINE void load_keys(const SideLayout& layout, const SideData& side, int32_t block, int32_t lane) {
    const int32_t lanes = layout.low_plane().lanes;
    low_ = load_words(side, word_offset(lanes, block, lane));
    if constexpr (kBits == 3) {
      high_ = load_words(side, layout.high_offset() + word_offset(lanes, block / 2, lane));
      if (block % 2 != 0) high_ = shift<-4>(high_);
    }
  }
  HWY_INLINE void load_values(const SideLayout& layout, const SideData& side, const Before& /*before*/, int32_t block,
                              int32_t lane) {
    load_keys(layout, side, block, lane);
  }

  template <int kField, int kBias>
  HWY_INLINE hn::Vec<ByteTag> field() const {
    static_assert(kBias == 0);
    constexpr int kLowBits = kBits == 3 ? 2 : kBits;
    WordVector codes = masked(shift<-kLowBits * kField>(low_), (1U << kLowBits) - 1U);
    if constexpr (kBits == 3) codes = hn::Or(codes, masked(shift<2 - kField>(high_), 4));
    return hn::BitCast(ByteTag(), codes);
  }

 private:
  WordVector low_;
  WordVector high_;
};

/// Lane i: sum of the products of bytes 2i and 2i + 1, which must fit. Highway added this instruction late. Codes of
/// keys are unsigned and operands signed, those of values the other way round.
template <Side kSide>
HWY_INLINE hn::Vec<PairTag> byte_pair_products(hn::Vec<ByteTag> codes, hn::Vec<ByteTag> operand) {
  const auto a = kSide == Side::kKeys ? codes : operand;
  const auto b = hn::BitCast(SignedByteTag(), kSide == Side::kKeys ? operand : codes);
#if HWY_TARGET == HWY_AVX2
  return hn::Vec<PairTag>{_mm256_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX3
  return hn::Vec<PairTag>{_mm512_maddubs_epi16(a.raw, b.raw)};
#else
  const PairTag d;
  const hn::RebindToUnsigned<PairTag> du;
  const auto even = hn::Mul(hn::BitCast(d, hn::And(hn::BitCast(du, a), hn::Set(du, uint16_t{255}))),
                            hn::ShiftRight<8>(hn::ShiftLeft<8>(hn::BitCast(d, b))));
  const auto odd = hn::Mul(hn::BitCast(d, hn::ShiftRight<8>(hn::BitCast(du, a))), hn::ShiftRight<8>(hn::BitCast(d, b)));
  return hn::Add(even, odd);
#endif
}

template <typename Words>
struct KeyLoader {
  const SideLayout& layout;
  const SideData& keys;

  HWY_INLINE Words operator()(int32_t block, int32_t slot) const {
    Words words;
    words.load_keys(layout, keys, block, slot);
    return words;
  }
};

/// The highest bit of a byte is its sign among levels: keys are unsigned, so that queries may be signed.
template <typename Words, Side kSide>
inline constexpr int kBias = Words::kTrellis && !Words::kWide && kSide == Side::kKeys ? 128 : 0;

/// The largest operand of values.
template <typename Words>
inline constexpr float kTopWeight = Words::kWide      ? 32767.0F
                                    : Words::kTrellis ? 32767 / (2 * Words::kMost)
                                                      : 255.0F;

/// Fields whose products add up to 16 bits.
template <typename Words, Side kSide>
inline constexpr int kFieldsOfSum = Words::kTrellis ? 1
                                                    : 32767 / (2 * Words::kMost * (kSide == Side::kKeys ? 127 : 255));

/// Sums of products by lane, for kRows rows and kVectors vectors of lanes.
template <int kRows, int kVectors>
struct Products {
  hn::Vec<SumTag> sums[kRows][kVectors];
  hn::Vec<SumTag> others[kRows][kVectors];  // where products of neighbours come in two vectors
  hn::Vec<PairTag> pairs[kRows][kVectors];  // of bytes, on the way to `sums`

  HWY_INLINE void clear() {
    for (int r = 0; r < kRows; ++r) {
      for (int a = 0; a < kVectors; ++a) {
        sums[r][a] = others[r][a] = hn::Zero(SumTag());
        pairs[r][a] = hn::Zero(PairTag());
      }
    }
  }
  HWY_INLINE void add(int r, int a, hn::Vec<PairTag> x, hn::Vec<PairTag> y) {
    sums[r][a] = hn::ReorderWidenMulAccumulate(SumTag(), x, y, sums[r][a], others[r][a]);
  }
  HWY_INLINE hn::Vec<hn::RebindToFloat<SumTag>> value(int r, int a) const {
    return hn::ConvertTo(hn::RebindToFloat<SumTag>(), hn::RearrangeToOddPlusEven(sums[r][a], others[r][a]));
  }

  /// Multiplies all blocks by words of operands[r]. load(block, lane): the words of a vector.
  template <typename Words, Side kSide, typename Load>
  HWY_INLINE void run(int32_t blocks, const int32_t* const (&operands)[kRows], const Load& load, int32_t lane) {
    const auto lanes = static_cast<int32_t>(hn::Lanes(SumTag()));
    clear();
    if constexpr (Words::kWide) {
      for (int32_t block = 0; block < blocks; ++block) {
        for (int a = 0; a < kVectors; ++a) add_wide(load(block, lane + a * lanes), a, operands, block);
      }
    } else {
      constexpr int kBlocksOfSum = kFieldsOfSum<Words, kSide> / Words::kFields;
      for (int32_t block = 0; block < blocks;) {
        const int32_t end = std::min(blocks, block + std::max(kBlocksOfSum, 1));
        for (; block < end; ++block) {
          Words words[kVectors];
          for (int a = 0; a < kVectors; ++a) words[a] = load(block, lane + a * lanes);
          add_bytes<Words, kSide>(words, operands, block);
        }
        if constexpr (kBlocksOfSum > 0) widen();
      }
    }
  }

 private:
  HWY_INLINE void widen() {
    for (int r = 0; r < kRows; ++r) {
      for (int a = 0; a < kVectors; ++a) {
        add(r, a, pairs[r][a], hn::Set(PairTag(), int16_t{1}));
        pairs[r][a] = hn::Zero(PairTag());
      }
    }
  }

  template <typename Words, Side kSide, int kField = 0>
  HWY_INLINE void add_bytes(const Words (&words)[kVectors], const int32_t* const (&operands)[kRows], int32_t block) {
    if constexpr (kField < Words::kFields) {
      const SumTag d;
      const PairTag d16;
      hn::Vec<ByteTag> bytes[kVectors];
      for (int a = 0; a < kVectors; ++a) bytes[a] = words[a].template field<kField, kBias<Words, kSide>>();
      for (int r = 0; r < kRows; ++r) {
        const auto operand = hn::BitCast(ByteTag(), hn::Set(d, operands[r][block * Words::kFields + kField]));
        for (int a = 0; a < kVectors; ++a) {
          const auto products = byte_pair_products<kSide>(bytes[a], operand);
          if constexpr (kFieldsOfSum<Words, kSide> < Words::kFields) {
            add(r, a, products, hn::Set(d16, int16_t{1}));
          } else {
            pairs[r][a] = hn::Add(pairs[r][a], products);
          }
        }
      }
      add_bytes<Words, kSide, kField + 1>(words, operands, block);
    }
  }

  /// By operands of 16 bits.
  template <int kField = 0, typename Words>
  HWY_INLINE void add_wide(const Words& words, int a, const int32_t* const (&operands)[kRows], int32_t block) {
    if constexpr (kField < Words::kFields) {
      const SumTag d;
      const PairTag d16;
      const auto levels = hn::BitCast(d16, words.template field<kField, 0>());
      const auto first = hn::ShiftRight<8>(hn::ShiftLeft<8>(levels));
      const auto second = hn::ShiftRight<8>(levels);
      const int32_t at = 2 * (block * Words::kFields + kField);
      for (int r = 0; r < kRows; ++r) {
        add(r, a, first, hn::BitCast(d16, hn::Set(d, operands[r][at])));
        add(r, a, second, hn::BitCast(d16, hn::Set(d, operands[r][at + 1])));
      }
      add_wide<kField + 1>(words, a, operands, block);
    }
  }
};

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
