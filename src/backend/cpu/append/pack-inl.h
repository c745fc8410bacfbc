// Byte codes `[channels][32 slots]` packed into the words of a plane.
#if defined(KVQ_APPEND_PACK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_APPEND_PACK_INL_H
#undef KVQ_APPEND_PACK_INL_H
#else
#define KVQ_APPEND_PACK_INL_H
#endif

#include "backend/cpu/append/transpose-inl.h"
#include "core/limits.h"
#include "formats/packed_plane.h"

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// The plane stores `kFieldBits` bits of each code from bit `kShift`.
template <int kFieldBits, int kShift>
class Packer {
 public:
  /// Lanes are slots. The last block is padded with codes 0.
  static void pack_keys(const uint8_t* codes, const PackedPlane& plane, uint32_t* words) {
    for (int32_t block = 0; block < plane.blocks(); ++block) {
      for (int32_t slot = 0; slot < kPageSlots; slot += 16) {
        const uint8_t* first = codes + block * plane.block() * kPageSlots + slot;
        store_words(joined_rows(first), joined_rows(first + kPageSlots), joined_rows(first + 2 * kPageSlots),
                    joined_rows(first + 3 * kPageSlots), words + block * kPageSlots + slot);
      }
    }
  }

  static void pack_values(const uint8_t* codes, const PackedPlane& plane, uint32_t* words) {
    const WordTag d;
    constexpr ptrdiff_t kRow = kPageSlots / 4;
    const auto lanes = static_cast<int32_t>(hn::Lanes(d));
    for (int32_t lane = 0; lane < plane.lanes; lane += lanes) {
      const auto* rows = reinterpret_cast<const uint32_t*>(codes + lane * kPageSlots);
      hn::Vec<WordTag> fours[2][4];  // four slots each
      load_columns(d, rows, kRow, fours[0]);
      load_columns(d, rows + 4, kRow, fours[1]);
      for (int32_t block = 0; block < kFieldBits; ++block) {
        auto word = hn::Zero(d);
        for (int32_t field = kFields - 1; field >= 0; --field) {
          const int32_t four = block * kFields + field;
          word = hn::Or(hn::ShiftLeft<kFieldBits>(word), bits_of(d, fours[four / 4][four % 4]));
        }
        hn::StoreU(word, d, words + block * plane.lanes + lane);
      }
    }
  }

 private:
  using ByteTag = hn::FixedTag<uint8_t, 16>;
  using WordTag = hn::ScalableTag<uint32_t>;
  static constexpr int32_t kFields = 8 / kFieldBits;  // per byte

  /// Codes are bytes whatever the tag.
  template <class D>
  HWY_INLINE static hn::Vec<D> bits_of(D d, hn::Vec<D> codes) {
    constexpr auto kMask = static_cast<hn::TFromD<D>>(0x0101010101010101U * ((1U << kFieldBits) - 1U));
    return hn::And(hn::ShiftRight<kShift>(codes), hn::Set(d, kMask));
  }

  /// One byte of the words of 16 slots.
  HWY_INLINE static hn::Vec<ByteTag> joined_rows(const uint8_t* row) {
    const hn::FixedTag<uint16_t, 8> d;
    auto joined = hn::Zero(d);
    for (int32_t field = kFields - 1; field >= 0; --field) {
      const auto codes = hn::BitCast(d, hn::LoadU(ByteTag(), row + 4 * field * kPageSlots));
      joined = hn::Or(hn::ShiftLeft<kFieldBits>(joined), bits_of(d, codes));
    }
    return hn::BitCast(ByteTag(), joined);
  }

  using Bytes = hn::Vec<ByteTag>;
  HWY_INLINE static void store_words(Bytes a, Bytes b, Bytes c, Bytes e, uint32_t* words) {
    const ByteTag d;
    const hn::FixedTag<uint16_t, 8> d16;
    const auto ab = hn::BitCast(d16, hn::InterleaveLower(d, a, b));
    const auto ce = hn::BitCast(d16, hn::InterleaveLower(d, c, e));
    const auto ab_high = hn::BitCast(d16, hn::InterleaveUpper(d, a, b));
    const auto ce_high = hn::BitCast(d16, hn::InterleaveUpper(d, c, e));
    const hn::FixedTag<uint32_t, 4> d32;
    hn::StoreU(hn::BitCast(d32, hn::InterleaveLower(d16, ab, ce)), d32, words);
    hn::StoreU(hn::BitCast(d32, hn::InterleaveUpper(d16, ab, ce)), d32, words + 4);
    hn::StoreU(hn::BitCast(d32, hn::InterleaveLower(d16, ab_high, ce_high)), d32, words + 8);
    hn::StoreU(hn::BitCast(d32, hn::InterleaveUpper(d16, ab_high, ce_high)), d32, words + 12);
  }
};

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
