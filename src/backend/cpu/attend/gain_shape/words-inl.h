// Levels of trellis pages, decoded from words.
#if defined(KVQ_ATTEND_GAIN_SHAPE_WORDS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_ATTEND_GAIN_SHAPE_WORDS_INL_H
#undef KVQ_ATTEND_GAIN_SHAPE_WORDS_INL_H
#else
#define KVQ_ATTEND_GAIN_SHAPE_WORDS_INL_H
#endif

#include "backend/cpu/attend/products-inl.h"
#include "formats/gain_shape/layout.h"
#include "formats/gain_shape/trellis.h"

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Levels of trellis shapes: a block is a word of the plane with the highest bits. Words hold bits in trellis order, so
/// parities are computed on whole words.
template <int kWidth>
struct TrellisWords {
  static constexpr int kBits = kWidth;
  static constexpr bool kTrellis = true;
  static constexpr int kFields = kBits == 2 ? 4 : 8;
  static constexpr int kMost = kBits == 1   ? -gain_shape::kLevels1.front()
                               : kBits == 2 ? -gain_shape::kLevels2.front()
                                            : -gain_shape::kLevels3.front();
  static constexpr float kOffset = 0.0F;

  static PackedPlane plane(const SideLayout& layout) { return kBits == 3 ? layout.high_plane() : layout.low_plane(); }
  static size_t plane_offset(const SideLayout& layout) { return kBits == 3 ? layout.high_offset() : 0; }
  static int32_t blocks(const SideLayout& layout) { return plane(layout).blocks(); }

  /// The highest code bits of values: vectors of 16 channels, preceded by the kMemory vectors before them.
  struct Before {
    static constexpr int32_t kVector = 16;
    static constexpr int32_t kBefore = gain_shape::kMemory * kVector;
    HWY_ALIGN uint32_t words[kBits == 2 ? 2 : 1][kBefore + kMaxHeadDim];

    void load(const SideLayout& layout, const SideData& side) {
      const int32_t lanes = plane(layout).lanes;
      const int32_t vectors = lanes / kVector;
      for (int32_t block = 0; block < blocks(layout); ++block) {
        uint32_t* now = words[block] + kBefore;
        std::memcpy(now, side.data + plane_offset(layout) + word_offset(lanes, block, 0), word_offset(lanes, 1, 0));
        for (int32_t back = 1; back <= gain_shape::kMemory; ++back) {
          const int32_t rotations = (back + vectors - 1) / vectors;
          const uint32_t* from = now + kVector * (rotations * vectors - back);
          uint32_t* to = now - kVector * back;
          std::copy(from + kVector - rotations, from + kVector, to);
          std::copy(from, from + kVector - rotations, to + rotations);
        }
      }
    }
  };

  /// Loads the words of keys.
  struct Keys {
    const SideLayout& layout;
    const SideData& side;

    HWY_INLINE TrellisWords operator()(int32_t block, int32_t lane, bool begins) const {
      TrellisWords words;
      words.load_keys(layout, side, block, lane, begins);
      return words;
    }
  };

  /// Loads the words of values.
  class Values {
   public:
    HWY_INLINE Values(const SideLayout& layout, const SideData& side) : layout_(layout), side_(side) {
      before_.load(layout, side);
    }
    HWY_INLINE TrellisWords operator()(int32_t block, int32_t lane, bool begins) const {
      TrellisWords words;
      words.load_values(layout_, side_, before_, block, lane, begins);
      return words;
    }

   private:
    const SideLayout& layout_;
    const SideData& side_;
    Before before_;
  };

  template <int kField>
  HWY_INLINE ByteVector field() const {
    constexpr int kNibbles = kFields / 2;
    const ByteTag d;
    const auto indices = hn::BitCast(d, masked(shift < kField < kNibbles ? 0 : -4 > (nibbles_[kField % kNibbles]), 15));
    if constexpr (kBits == 1) {
      return lookup<8>(gain_shape::kLevels1.data(), indices);
    } else if constexpr (kBits == 2) {
      return lookup<16>(gain_shape::kLevels2.data(), indices);
    } else {
      // The fourth bit of an index is the first of the two low bits; the second low bit tells lower levels from higher.
      const auto low = hn::BitCast(d, shift<-2 * (kField % 4)>(low_[kField / 4]));
      const auto one = hn::And(low, hn::Set(d, uint8_t{1}));
      const auto full = hn::Or(indices, hn::ShiftLeft<3>(one));
      const auto is_low = hn::Eq(hn::And(low, hn::Set(d, uint8_t{2})), hn::Zero(d));
      return hn::IfThenElse(is_low, lookup<16>(gain_shape::kLevels3.data(), full),
                            lookup<16>(gain_shape::kLevels3.data() + 16, full));
    }
  }
  /// use(field, levels)
  template <int kField = 0, typename Use>
  HWY_INLINE void for_each_field(const Use& use) const {
    if constexpr (kField < kFields) {
      use(kField, field<kField>());
      for_each_field<kField + 1>(use);
    }
  }

 private:
  /// As kWide keys need them: the second and third of four bytes trade places.
  HWY_INLINE void load_keys(const SideLayout& layout, const SideData& side, int32_t block, int32_t lane, bool begins) {
    const size_t offset = plane_offset(layout);
    const WordVector bits = load_words(side, offset + word_offset(kPageSlots, block, lane), begins);
    const int32_t last = block == 0 ? blocks(layout) - 1 : block - 1;
    const WordVector before = load_words(side, offset + word_offset(kPageSlots, last, lane), false);
    constexpr int kStep = kBits == 2 ? 2 : 1;
    const WordVector four = numbers_before<4 * kStep>(bits, before);
    index(bits, hn::Xor(numbers_before<kStep>(bits, before), four),
          hn::Xor3(numbers_before<2 * kStep>(bits, before), four, numbers_before<5 * kStep>(bits, before)),
          hn::Xor3(bits, four, numbers_before<6 * kStep>(bits, before)));
    if constexpr (kBits == 3) {
      load_low(layout, side, block, lane, begins);
      for (auto& each : low_) each = middle_bytes_swapped(each);
    }
    for (auto& each : nibbles_) each = middle_bytes_swapped(each);
  }

  HWY_INLINE void load_values(const SideLayout& layout, const SideData& side, const Before& before, int32_t block,
                              int32_t lane, bool begins) {
    const WordTag d;
    const uint32_t* now = before.words[block] + Before::kBefore + lane;
    const auto at = [now, d](int32_t back) HWY_ATTR { return hn::LoadU(d, now - Before::kVector * back); };
    if (begins) prefetch(side.later + plane_offset(layout) + word_offset(plane(layout).lanes, block, lane));
    const WordVector bits = at(0);
    const WordVector four = at(4);
    index(bits, hn::Xor(at(1), four), hn::Xor3(at(2), four, at(5)), hn::Xor3(bits, four, at(6)));
    if constexpr (kBits == 3) load_low(layout, side, block, lane, begins);
  }

  template <int kBack>
  static HWY_INLINE WordVector numbers_before(WordVector bits, WordVector before) {
    return hn::Or(hn::ShiftLeft<kBack>(bits), hn::ShiftRight<32 - kBack>(before));
  }

  static HWY_INLINE WordVector middle_bytes_swapped(WordVector words) {
    const ByteTag d;
    alignas(16) static constexpr uint8_t kOrder[16] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
    return hn::BitCast(WordTag(), hn::TableLookupBytes(hn::BitCast(d, words), hn::LoadDup128(d, kOrder)));
  }

  template <size_t kLevels>
  static HWY_INLINE ByteVector lookup(const int8_t* levels, ByteVector indices) {
    const ByteTag d;
    alignas(16) uint8_t table[16];
    for (size_t i = 0; i < 16; ++i) table[i] = static_cast<uint8_t>(levels[i % kLevels]);
    return hn::TableLookupBytes(hn::LoadDup128(d, table), indices);
  }

  template <int kField>
  static HWY_INLINE WordVector nibble(WordVector first, WordVector second, WordVector third) {
    return hn::Or3(masked(shift<-kField>(first), 0x11), masked(shift<1 - kField>(second), 0x22),
                   masked(shift<2 - kField>(third), 0x44));
  }

  /// Computes level indices in nibbles, two per byte.
  HWY_INLINE void index(WordVector bits, WordVector first, WordVector second, WordVector third) {
    if constexpr (kBits == 2) {
      const auto low = hn::Or(masked(second, 0xAA), masked(shift<-1>(first), 0x55));
      const auto high = hn::Or(masked(shift<1>(bits), 0xAA), masked(shift<-1>(third), 0x55));
      nibbles_[0] = hn::Or(masked(low, 0x33), masked(shift<2>(high), 0xCC));
      nibbles_[1] = hn::Or(masked(shift<-2>(low), 0x33), masked(high, 0xCC));
    } else {
      nibbles_[0] = nibble<0>(first, second, third);
      nibbles_[1] = nibble<1>(first, second, third);
      nibbles_[2] = nibble<2>(first, second, third);
      nibbles_[3] = nibble<3>(first, second, third);
    }
  }

  /// The two words of low bits below a word of highest bits; the last may have none.
  HWY_INLINE void load_low(const SideLayout& layout, const SideData& side, int32_t block, int32_t lane, bool begins) {
    const PackedPlane low = layout.low_plane();
    low_[0] = load_words(side, word_offset(low.lanes, 2 * block, lane), begins);
    low_[1] = low_[0];
    if (2 * block + 1 == low.blocks()) return;
    low_[1] = load_words(side, word_offset(low.lanes, 2 * block + 1, lane), begins);
  }

  WordVector nibbles_[kFields / 2];
  WordVector low_[2];
};

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
