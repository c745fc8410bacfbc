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

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using WindowTag = hn::ScalableTag<uint16_t>;
using WindowVector = hn::Vec<WindowTag>;

/// A tile, whose last windows wrap around: its end, with its start appended, is a copy.
class WrappedTile {
 public:
  WrappedTile(const uint8_t* tile, size_t bytes)
      : tile_(tile), bytes_(bytes), kept_(bytes - std::min(bytes, kMostEnd)) {
    std::memcpy(end_, tile + kept_, bytes - kept_);
    std::memcpy(end_ + (bytes - kept_), tile, 2);
  }
  /// Bytes from `offset` on, `count` of which may be read.
  HWY_INLINE const uint8_t* at(size_t offset, size_t count) const {
    return offset + count <= bytes_ ? tile_ + offset : end_ + (offset - kept_);
  }

 private:
  static constexpr size_t kMostEnd = 64;  // what a vector of windows reads is less
  const uint8_t* tile_;
  size_t bytes_;
  size_t kept_;  // first byte of the copy
  HWY_ALIGN uint8_t end_[2 * kMostEnd];
};

#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR

/// Windows one at a time: emulated high products trigger GCC PR 106322.
class Windows {
 public:
  Windows(const weights::Code& code, int32_t first, int32_t spacing) : code_(code), first_(first), spacing_(spacing) {}

  WindowVector load(const WrappedTile& tile, int32_t step) const {
    const WindowTag d;
    HWY_ALIGN uint16_t windows[hn::MaxLanes(WindowTag())];
    for (int32_t i = 0; i < static_cast<int32_t>(hn::Lanes(d)); ++i) {
      const auto bit = static_cast<uint32_t>(code_.first_bit(step + first_ + i * spacing_));
      uint32_t bits = 0;
      std::memcpy(&bits, tile.at(bit / 8, sizeof(bits)), sizeof(bits));
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
      const int32_t bit = code.first_bit(first + i * spacing);
      const int32_t byte = bit / 8;
      const int32_t shift = bit % 8;
      // 16 bits of three bytes: two times two bytes, shifted. A byte in the upper half of a word, where there is no
      // shift.
      lower_[2 * i] = static_cast<uint8_t>(shift == 0 ? 128 : byte);
      lower_[2 * i + 1] = static_cast<uint8_t>(shift == 0 ? byte : byte + 1);
      upper_[2 * i] = static_cast<uint8_t>(byte + 1);
      upper_[2 * i + 1] = static_cast<uint8_t>(byte + 2);
      right_[i] = static_cast<uint16_t>(1U << static_cast<uint32_t>(shift == 0 ? 8 : 16 - shift));
      left_[i] = static_cast<uint16_t>(1U << static_cast<uint32_t>(8 - shift));
    }
    bits_per_8_ = static_cast<size_t>(code.first_bit(16));
  }

  /// `step`: a multiple of 16, or of eight if eight steps are whole bytes.
  HWY_INLINE WindowVector load(const WrappedTile& tile, int32_t step) const {
    const ByteTag d;
    const WindowTag dw;
    constexpr size_t kBlocks = hn::MaxLanes(ByteTag()) / 16;
    const size_t offset = static_cast<size_t>(step) * bits_per_8_ / 128;
    const auto blocks = load_blocks(d, tile.at(offset, (kBlocks - 1) * block_bytes_ + 16), block_bytes_);
    const auto lower = hn::BitCast(dw, hn::TableLookupBytesOr0(blocks, hn::LoadDup128(d, lower_)));
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

  template <class IndexOf, class Use>
  HWY_INLINE void decode(const uint8_t* tile, const IndexOf& index_of, const Use& use) const {
    const hn::RebindToSigned<WindowTag> di;
    const hn::Rebind<uint8_t, WindowTag> bytes;
    HWY_ALIGN uint16_t pairs[weights::kTileWeights / 2];
    look_up(tile, index_of, pairs);
    const auto half = [&](int32_t step, bool second) HWY_ATTR {
      const auto both = hn::Load(WindowTag(), pairs + step);
      const auto words = second ? hn::ShiftRight<8>(both) : hn::And(both, hn::Set(WindowTag(), uint16_t{0xFF}));
      return hn::DemoteTo(bytes, hn::BitCast(di, words));
    };
    HWY_UNROLL(8)
    for (int32_t step = 0; step < weights::kTileWeights / 2; step += 2 * kLanes) {
      const int32_t at = step / kQuadBytes * 2 * kQuadBytes + step % kQuadBytes;
      use(at, hn::Combine(ByteTag(), half(step + kLanes, false), half(step, false)));
      use(at + kQuadBytes, hn::Combine(ByteTag(), half(step + kLanes, true), half(step, true)));
    }
  }

  uint16_t table[size_t{1} << kEntryBits];

 private:
  static constexpr auto kLanes = static_cast<int32_t>(hn::MaxLanes(WindowTag()));

  /// Apart from what uses the pairs, which takes the registers.
  template <class IndexOf>
  HWY_NOINLINE void look_up(const uint8_t* tile, const IndexOf& index_of, uint16_t* pairs) const {
    const WrappedTile wrapped(tile, tile_bytes_);
    for (int32_t step = 0; step < weights::kTileWeights / 2; step += kLanes) {
      hn::Store(index_of(windows_.load(wrapped, step)), WindowTag(), pairs + step);
    }
    for (int32_t i = 0; i < weights::kTileWeights / 2; ++i) pairs[i] = table[pairs[i]];
  }

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
  static constexpr int kFewRows = 2;

  explicit LongPairDecoder(const weights::Codebook& codebook) : lookup_(codebook.code) {
    for (size_t i = 0; i < size_t{1} << kBits; ++i) {
      lookup_.table[i] = pair_of_bytes(codebook.levels[2 * i] + kLevelBias, codebook.levels[2 * i + 1] + kLevelBias);
    }
  }

  template <class Use>
  HWY_INLINE void decode(const uint8_t* tile, const Use& use) const {
    const auto index_of = [](WindowVector windows)
                              HWY_ATTR { return hn::And(windows, hn::Set(WindowTag(), uint16_t{(1 << kBits) - 1})); };
    lookup_.decode(tile, index_of, use);
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
  static constexpr int kFewRows = 2;

  explicit PairTrellisDecoder(const weights::Codebook& codebook)
      : lookup_(codebook.code), addend_(static_cast<uint16_t>(codebook.addend)) {
    constexpr size_t kEntries = size_t{1} << kIndexBits;
    for (size_t i = 0; i < kEntries; ++i) {
      const int32_t second = codebook.levels[2 * i + 1] + kLevelBias;
      lookup_.table[i] = pair_of_bytes(kLevelBias + codebook.levels[2 * i], second);
      lookup_.table[i + kEntries] = pair_of_bytes(kLevelBias - codebook.levels[2 * i], second);
    }
  }

  template <class Use>
  HWY_INLINE void decode(const uint8_t* tile, const Use& use) const {
    const auto index_of = [this](WindowVector windows)
                              HWY_ATTR { return hn::ShiftRight<15 - kIndexBits>(hash(windows, addend_)); };
    lookup_.decode(tile, index_of, use);
  }

 private:
  PairLookup<kIndexBits + 1> lookup_;
  uint16_t addend_;
};

/// Trellis codes of single weights: the upper bytes of hashes.
class TrellisDecoder {
 public:
  static constexpr int kFewRows = 2;

  explicit TrellisDecoder(const weights::Codebook& codebook)
      : even_(codebook.code, 0, 2),
        odd_(codebook.code, 1, 2),
        table_(codebook, 1, 0),
        tile_bytes_(codebook.code.tile_bytes()),
        addend_(static_cast<uint16_t>(codebook.addend)) {}

  template <class Use>
  HWY_INLINE void decode(const uint8_t* tile, const Use& use) const {
    const WrappedTile wrapped(tile, tile_bytes_);
    constexpr auto kLanes = static_cast<int32_t>(hn::MaxLanes(ByteTag()));
    HWY_UNROLL(16)
    for (int32_t step = 0; step < weights::kTileWeights; step += kLanes) {
      const auto even = hn::ShiftRight<8>(hash(even_.load(wrapped, step), addend_));
      const auto odd = hn::And(hash(odd_.load(wrapped, step), addend_), hn::Set(WindowTag(), uint16_t{0xFF00}));
      use(step, levels(hn::BitCast(ByteTag(), hn::Or(even, odd))));
    }
  }

 private:
  /// bias + level becomes bias − level where the upper byte of a hash has the sign: 256 minus the byte, for both
  /// biases.
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
