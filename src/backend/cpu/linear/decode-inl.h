// Tiles of packed matrices as bytes, level + kLevelBias, in code order [quad of columns, row, column of the quad]:
// scalar codes, and pair codes by table. Decoders hand each vector of them to use(offset of its first byte, vector).
#if defined(KVQ_LINEAR_DECODE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_LINEAR_DECODE_INL_H
#undef KVQ_LINEAR_DECODE_INL_H
#else
#define KVQ_LINEAR_DECODE_INL_H
#endif

#include "backend/cpu/linear/quads-inl.h"
#include "weights/codebook.h"

#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
// Largest tables looked up by 16-byte shuffles. Targets that emulate shuffles look up byte by byte.
#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
inline constexpr int kShuffledBits = 0;
#else
inline constexpr int kShuffledBits = 8;
#endif

/// Blocks of 16 bytes, `stride` apart, as one vector.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const uint8_t* bytes, size_t stride) {
  if constexpr (hn::MaxLanes(D()) == 16) {
    return hn::LoadU(d, bytes);
  } else {
    const hn::Half<D> half;
    const auto upper = load_blocks(half, bytes + hn::MaxLanes(D()) / 32 * stride, stride);
    return hn::Combine(d, upper, load_blocks(half, bytes, stride));
  }
}

/// Codes of up to eight bits as bytes.
template <int kBits>
class CodeBytes {
 public:
  CodeBytes() {
    for (size_t i = 0; i < 16; ++i) {
      const size_t byte = i / kTogether * kFieldBytes + i % kTogether;
      sources_[i] = static_cast<uint8_t>(i % kTogether < kFieldBytes ? byte : 128);
    }
  }

  HWY_INLINE ByteVector load(const uint8_t* codes) const {
    const ByteTag d;
    const hn::Repartition<uint64_t, ByteTag> d64;
    auto v = hn::BitCast(d64, fields(codes));
    if constexpr (kTogether > 4) v = spread<32>(v);
    if constexpr (kTogether > 2) v = spread<16>(v);
    if constexpr (kTogether > 1) v = spread<8>(v);
    return hn::BitCast(d, v);
  }

 private:
  // The fewest codes that fill whole bytes, which move to the place of as many bytes.
  static constexpr size_t kTogether = kBits % 8 == 0 ? 1 : (kBits % 4 == 0 ? 2 : (kBits % 2 == 0 ? 4 : 8));
  static constexpr size_t kFieldBytes = kTogether * kBits / 8;

  /// Codes of kTogether bytes in the first kFieldBytes of these, zeros behind them.
  HWY_INLINE ByteVector fields(const uint8_t* codes) const {
    const ByteTag d;
    if constexpr (kFieldBytes == 1 && (kTogether == 2 || kTogether == 4)) {
      const hn::Repartition<std::conditional_t<kTogether == 2, uint16_t, uint32_t>, ByteTag> wide;
      return hn::BitCast(d, hn::PromoteTo(wide, hn::LoadU(hn::Rebind<uint8_t, decltype(wide)>(), codes)));
    } else {
      return hn::TableLookupBytesOr0(load_blocks(d, codes, 2 * kBits), hn::LoadDup128(d, sources_));
    }
  }

  /// Splits the lower part of every 2 · kWidth bits into two fields of kWidth bits.
  template <int kWidth, class V>
  static HWY_INLINE V spread(V v) {
    constexpr int kHalfBits = kWidth / 8 * kBits;
    const hn::Repartition<uint64_t, ByteTag> d64;
    if constexpr (kHalfBits == kWidth) return v;
    uint64_t mask = 0;
    for (int i = 0; i < 64; i += 2 * kWidth) mask |= ((uint64_t{1} << kHalfBits) - 1) << i;
    const auto upper = hn::ShiftLeft<kWidth - kHalfBits>(v);
    if constexpr (2 * kHalfBits <= kWidth) return hn::And(hn::Or(v, upper), hn::Set(d64, mask | mask << kWidth));
    return hn::Or(hn::And(v, hn::Set(d64, mask)), hn::And(upper, hn::Set(d64, mask << kWidth)));
  }

  HWY_ALIGN uint8_t sources_[16];
};

/// table[code]; `low`: the four lowest bits of the codes.
template <int kBits>
HWY_INLINE ByteVector look_up_bytes(const uint8_t* table, ByteVector codes, ByteVector low) {
  const ByteTag d;
  if constexpr (kBits <= 4) {
    return hn::TableLookupBytes(hn::LoadDup128(d, table), low);
  } else {
    constexpr auto kHalf = static_cast<uint8_t>(1U << (kBits - 1));
    const auto lower = look_up_bytes<kBits - 1>(table, codes, low);
    const auto upper = look_up_bytes<kBits - 1>(table + kHalf, codes, low);
    const auto bit = hn::Set(d, kHalf);
    return hn::IfThenElse(hn::Eq(hn::And(codes, bit), bit), upper, lower);
  }
}

/// Levels of one weight of each code.
template <int kBits>
struct LevelTable {
  LevelTable(const weights::Codebook& codebook, int32_t dims, int32_t dim) {
    for (int32_t i = 0; i < kEntries; ++i) {
      const int32_t level = i < 1 << kBits ? codebook.levels[static_cast<size_t>(i * dims + dim)] : 0;
      bytes[i] = static_cast<uint8_t>(level + kLevelBias);
    }
  }

  /// Codes of more than four bits may have extra bits above them.
  HWY_INLINE ByteVector look_up(ByteVector codes) const {
    if constexpr (kBits <= kShuffledBits) {
      return look_up_bytes<kBits>(bytes, codes, kBits > 4 ? hn::And(codes, hn::Set(ByteTag(), uint8_t{15})) : codes);
    } else {
      HWY_ALIGN uint8_t lanes[hn::MaxLanes(ByteTag())];
      hn::Store(codes, ByteTag(), lanes);
      for (uint8_t& lane : lanes) lane = bytes[lane & (kEntries - 1)];
      return hn::Load(ByteTag(), lanes);
    }
  }

  static constexpr int32_t kEntries = kBits < 4 ? 16 : 1 << kBits;
  HWY_ALIGN uint8_t bytes[kEntries];
};

/// Codes of up to eight bits for `kDims` weights of `kBits` bits each.
template <int kDims, int kBits>
class TableDecoder {
 public:
  static constexpr int kFewRows = 4;  // that are multiplied while a panel is decoded: as many as registers allow

  explicit TableDecoder(const weights::Codebook& codebook)
      : first_(codebook, kDims, 0), second_(codebook, kDims, kDims - 1) {}

  template <class Use>
  HWY_INLINE void decode(const uint8_t* tile, const Use& use) const {
    constexpr auto kLanes = static_cast<int32_t>(hn::MaxLanes(ByteTag()));
    HWY_UNROLL(16)
    for (int32_t code = 0; code < weights::kTileWeights / kDims; code += kLanes) {
      const ByteVector codes = codes_.load(tile + code / 8 * kBits);
      const int32_t at = code / kQuadBytes * kQuadBytes * kDims + code % kQuadBytes;
      use(at, first_.look_up(codes));
      if (kDims == 2) use(at + kQuadBytes, second_.look_up(codes));
    }
  }

 private:
  CodeBytes<kBits> codes_;
  LevelTable<kBits> first_;
  LevelTable<kBits> second_;
};

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
