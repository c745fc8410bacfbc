// Tiles of packed matrices whose windows overlap or exceed a byte, decoded to the order in decode-inl.h.
#if defined(KVQ_LINEAR_WINDOWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_LINEAR_WINDOWS_INL_H
#undef KVQ_LINEAR_WINDOWS_INL_H
#else
#define KVQ_LINEAR_WINDOWS_INL_H
#endif

#include "backend/cpu/linear/decode-inl.h"
#include "weights/codebook.h"

#include <hwy/highway.h>

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using WindowTag = hn::ScalableTag<uint16_t>;
using WindowVector = hn::Vec<WindowTag>;

/// A tile with its own start appended, for windows that wrap around.
class WrappedTile {
 public:
  WrappedTile(const uint8_t* tile, size_t bytes) {
    std::memcpy(bytes_ + kBefore, tile, bytes);
    std::memcpy(bytes_ + kBefore + bytes, tile, 2);
  }
  const uint8_t* data() const { return bytes_ + kBefore; }

 private:
  static constexpr size_t kBefore = 16;
  static constexpr size_t kMostBytes = 256;
  HWY_ALIGN uint8_t bytes_[kBefore + kMostBytes + 64];
};

#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR

/// Windows one at a time: emulated high products trigger GCC PR 106322.
class Windows {
 public:
  Windows(const weights::Code& code, int32_t first, int32_t spacing) : code_(code), first_(first), spacing_(spacing) {}

  WindowVector load(const uint8_t* tile, int32_t step) const {
    const WindowTag d;
    HWY_ALIGN uint16_t windows[hn::MaxLanes(WindowTag())];
    for (int32_t i = 0; i < static_cast<int32_t>(hn::Lanes(d)); ++i) {
      const auto bit = static_cast<uint32_t>(code_.first_bit(step + first_ + i * spacing_));
      uint32_t bits = 0;
      std::memcpy(&bits, tile + bit / 8, sizeof(bits));
      windows[i] = static_cast<uint16_t>(bits >> (bit % 8));
    }
    return hn::Load(d, windows);
  }

 private:
  weights::Code code_;
  int32_t first_;
  int32_t spacing_;
};

#else

/// Windows in words: lane i of a block of eight has step `first` + i · `spacing`. Multiplications replace shifts by
/// lane.
class Windows {
 public:
  Windows(const weights::Code& code, int32_t first, int32_t spacing)
      : block_bytes_(static_cast<size_t>(code.first_bit(8 * spacing)) / 8) {
    for (int32_t i = 0; i < 8; ++i) {
      const int32_t bit = code.first_bit(first + i * spacing) + 8;  // the block begins a byte earlier
      const int32_t byte = (bit - 1) / 8;
      const int32_t shift = bit - 8 * byte;  // 1 to 8
      for (int32_t j = 0; j < 2; ++j) {
        lower_[2 * i + j] = static_cast<uint8_t>(byte + j);
        upper_[2 * i + j] = static_cast<uint8_t>(byte + 1 + j);
      }
      right_[i] = static_cast<uint16_t>(1U << static_cast<uint32_t>(16 - shift));
      left_[i] = static_cast<uint16_t>(1U << static_cast<uint32_t>(8 - shift));
    }
    bits_per_8_ = static_cast<size_t>(code.first_bit(16));
  }

  /// `step`: a multiple of 16, or of eight if eight steps are whole bytes.
  HWY_INLINE WindowVector load(const uint8_t* tile, int32_t step) const {
    const ByteTag d;
    const WindowTag dw;
    const auto blocks = load_blocks(d, tile + static_cast<size_t>(step) * bits_per_8_ / 128 - 1, block_bytes_);
    const auto lower = hn::BitCast(dw, hn::TableLookupBytes(blocks, hn::LoadDup128(d, lower_)));
    const auto upper = hn::BitCast(dw, hn::TableLookupBytes(blocks, hn::LoadDup128(d, upper_)));
    return hn::Or(hn::MulHigh(lower, hn::LoadDup128(dw, right_)), hn::Mul(upper, hn::LoadDup128(dw, left_)));
  }

 private:
  HWY_ALIGN uint8_t lower_[16];
  HWY_ALIGN uint8_t upper_[16];
  HWY_ALIGN uint16_t right_[8];
  HWY_ALIGN uint16_t left_[8];
  size_t block_bytes_;
  size_t bits_per_8_;  // bits of 16 steps
};

#endif

/// Pairs by a table of words, one byte per weight, indexed by bits of a window.
template <int kEntryBits>
class PairLookup {
 public:
  explicit PairLookup(const weights::Code& code) : windows_(code, 0, 1), tile_bytes_(code.tile_bytes()) {}

  template <class IndexOf>
  HWY_INLINE void decode(const uint8_t* tile, uint8_t* out, const IndexOf& index_of) const {
    const WindowTag d;
    const hn::RebindToSigned<WindowTag> di;
    const hn::Rebind<uint8_t, WindowTag> bytes;
    const WrappedTile wrapped(tile, tile_bytes_);
    constexpr auto kLanes = static_cast<int32_t>(hn::MaxLanes(WindowTag()));
    HWY_ALIGN uint16_t pairs[weights::kTileWeights / 2];
    for (int32_t step = 0; step < weights::kTileWeights / 2; step += kLanes) {
      hn::Store(index_of(windows_.load(wrapped.data(), step)), d, pairs + step);
    }
    for (uint16_t& pair : pairs) pair = table[pair];
    for (int32_t step = 0; step < weights::kTileWeights / 2; step += kLanes) {
      const auto both = hn::Load(d, pairs + step);
      uint8_t* target = out + step / kQuadBytes * 2 * kQuadBytes + step % kQuadBytes;
      hn::StoreU(hn::DemoteTo(bytes, hn::BitCast(di, hn::And(both, hn::Set(d, uint16_t{0xFF})))), bytes, target);
      hn::StoreU(hn::DemoteTo(bytes, hn::BitCast(di, hn::ShiftRight<8>(both))), bytes, target + kQuadBytes);
    }
  }

  uint16_t table[size_t{1} << kEntryBits];

 private:
  Windows windows_;
  size_t tile_bytes_;
};

HWY_INLINE uint16_t pair_of_bytes(int32_t first, int32_t second) {
  return static_cast<uint16_t>((first & 255) | (second & 255) << 8);
}

/// Codes of pairs of nine or ten bits.
template <int kBits>
class LongPairDecoder {
 public:
  explicit LongPairDecoder(const weights::Codebook& codebook) : lookup_(codebook.code) {
    for (size_t i = 0; i < size_t{1} << kBits; ++i) {
      lookup_.table[i] =
          pair_of_bytes(codebook.levels[2 * i] + weights::kZeroPoint, codebook.levels[2 * i + 1] + weights::kZeroPoint);
    }
  }

  HWY_INLINE void decode(const uint8_t* tile, uint8_t* out) const {
    const WindowTag d;
    lookup_.decode(tile, out,
                   [d](WindowVector windows) { return hn::And(windows, hn::Set(d, uint16_t{(1 << kBits) - 1})); });
  }

 private:
  PairLookup<kBits> lookup_;
};

/// Table index of a trellis window, below the sign.
HWY_INLINE WindowVector hash(WindowVector windows, uint16_t addend) {
  return hn::Mul(windows, hn::Add(windows, hn::Set(WindowTag(), addend)));
}

/// Trellis codes of pairs.
template <int kIndexBits>
class PairTrellisDecoder {
 public:
  explicit PairTrellisDecoder(const weights::Codebook& codebook)
      : lookup_(codebook.code), addend_(static_cast<uint16_t>(codebook.addend)) {
    constexpr size_t kEntries = size_t{1} << kIndexBits;
    for (size_t i = 0; i < kEntries; ++i) {
      const int32_t second = codebook.levels[2 * i + 1] + weights::kZeroPoint;
      lookup_.table[i] = pair_of_bytes(weights::kZeroPoint + codebook.levels[2 * i], second);
      lookup_.table[i + kEntries] = pair_of_bytes(weights::kZeroPoint - codebook.levels[2 * i], second);
    }
  }

  HWY_INLINE void decode(const uint8_t* tile, uint8_t* out) const {
    lookup_.decode(tile, out,
                   [this](WindowVector windows) { return hn::ShiftRight<15 - kIndexBits>(hash(windows, addend_)); });
  }

 private:
  PairLookup<kIndexBits + 1> lookup_;
  uint16_t addend_;
};

/// Trellis codes of single weights: the upper bytes of hashes.
class TrellisDecoder {
 public:
  explicit TrellisDecoder(const weights::Codebook& codebook)
      : even_(codebook.code, 0, 2),
        odd_(codebook.code, 1, 2),
        table_(codebook, 1, 0),
        tile_bytes_(codebook.code.tile_bytes()),
        addend_(static_cast<uint16_t>(codebook.addend)) {}

  HWY_INLINE void decode(const uint8_t* tile, uint8_t* out) const {
    const WrappedTile wrapped(tile, tile_bytes_);
    constexpr auto kLanes = static_cast<int32_t>(hn::MaxLanes(ByteTag()));
    for (int32_t step = 0; step < weights::kTileWeights; step += kLanes) {
      const auto even = hn::ShiftRight<8>(hash(even_.load(wrapped.data(), step), addend_));
      const auto odd = hn::And(hash(odd_.load(wrapped.data(), step), addend_), hn::Set(WindowTag(), uint16_t{0xFF00}));
      hn::StoreU(levels(hn::BitCast(ByteTag(), hn::Or(even, odd))), ByteTag(), out + step);
    }
  }

 private:
  /// 128 + level becomes 128 − level where the upper byte of a hash has the sign: 256 minus the byte.
  HWY_INLINE ByteVector levels(ByteVector upper) const {
    const hn::RebindToSigned<ByteTag> d;
    const auto level = hn::BitCast(d, table_.look_up(upper));
    return hn::BitCast(ByteTag(), hn::IfNegativeThenElse(hn::BitCast(d, upper), hn::Neg(level), level));
  }

  Windows even_;
  Windows odd_;
  LevelTable<7> table_;
  size_t tile_bytes_;
  uint16_t addend_;
};

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
