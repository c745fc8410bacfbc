// FP16 planes to integer pages. Lanes of a plane are vector lanes: slots for keys, channels for values. On both sides,
// groups that share a scale lie along the lanes and words pack consecutive reduction elements, so one encoder serves
// both.
#if defined(KVQ_APPEND_ENCODE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_APPEND_ENCODE_INL_H
#undef KVQ_APPEND_ENCODE_INL_H
#else
#define KVQ_APPEND_ENCODE_INL_H
#endif

#include "backend/cpu/append/float16-inl.h"
#include "backend/cpu/append/hadamard-inl.h"
#include "core/float16.h"
#include "formats/float16/layout.h"
#include "formats/page_fields.h"

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using SideTag = hn::ScalableTag<float>;  // 16 lanes at most
using SideVector = hn::Vec<SideTag>;
using WordTag = hn::RebindToUnsigned<SideTag>;
using WordVector = hn::Vec<WordTag>;

constexpr int32_t kChunk = 32;  // lanes; a group is a number of chunks, the last of which may be partly filled
constexpr int32_t kMaxGroups = kMaxHeadDim + 16;  // including padding beyond the last group

/// Encodes one side.
class SideEncoder {
 public:
  static constexpr size_t room_bytes(int32_t head_dim) {
    return static_cast<size_t>((head_dim + kChunk - 1) / kChunk * kChunk * kPageSlots) * sizeof(float);
  }

  /// `room`: room_bytes(), aligned for vectors.
  SideEncoder(const SideLayout& layout, std::byte* room, std::byte* out)
      : layout_(layout),
        keys_(layout.side == Side::kKeys),
        count_(keys_ ? layout.head_dim : kPageSlots),
        width_(keys_ ? kPageSlots : layout.head_dim),
        stride_((width_ + kChunk - 1) / kChunk * kChunk),
        group_(keys_ ? kPageSlots : layout.group),
        out_(out),
        x_(reinterpret_cast<float*>(room)) {}

  void encode(const std::byte* float16, bool rotated) {
    load(reinterpret_cast<const uint16_t*>(float16));
    if (rotated && keys_) rotate_columns(x_, count_);
    if (rotated && !keys_) rotate_rows(x_, width_, stride_);
    find_ranges();
    choose_scales();
    if (layout_.bits() == 2) write_codes<2>();
    if (layout_.bits() == 3) write_codes<3>();
    if (layout_.bits() == 4) write_codes<4>();
    if (layout_.bits() == 8) write_codes<8>();
  }

 private:
  int32_t groups() const { return (width_ + group_ - 1) / group_ * count_; }
  float* row(int32_t element) { return x_ + element * stride_; }

  void load(const uint16_t* plane) {
    const SideTag d;
    const auto lanes = static_cast<int32_t>(hn::Lanes(d));
    const int32_t plane_lanes = float16::plane(layout_.side, layout_.head_dim).lanes;
    for (int32_t element = 0; element < count_; element += 2) {
      for (int32_t lane = 0; lane < plane_lanes; lane += lanes) {
        const auto first = from_half(d, plane);
        const auto second = from_half(d, plane + lanes);
        hn::Store(hn::ConcatEven(d, second, first), d, row(element) + lane);
        hn::Store(hn::ConcatOdd(d, second, first), d, row(element + 1) + lane);
        plane += 2 * lanes;
      }
    }
  }

  /// Finds the minimum and maximum of every group, indexed by scale.
  void find_ranges() {
    if (stride_ != width_) {
      for (int32_t i = 0; i < count_; ++i) std::fill(row(i) + width_, row(i) + stride_, row(i)[width_ - 1]);
    }
    for (int32_t chunk = 0; chunk * kChunk < stride_; ++chunk) {
      for (int32_t i = 0; i < count_; i += 4) find_chunk_ranges(i, chunk);
    }
    const int32_t chunks = stride_ / kChunk;
    const int32_t group_chunks = group_ / kChunk;
    for (int32_t group = 0; group_chunks > 1 && group * group_chunks < chunks; ++group) {
      const int32_t end = std::min(chunks, (group + 1) * group_chunks);
      for (int32_t i = 0; i < count_; ++i) join_chunk_ranges(i, group, group * group_chunks, end);
    }
    for (int32_t i = 0; i < groups(); ++i) {
      if (low_[i] == 0.0F) choose_zeros(i);
    }
  }

  /// Minima of each block of four vectors, in the lanes of that block.
  template <class Choose>
  HWY_INLINE static SideVector join_lanes(SideVector a, SideVector b, SideVector c, SideVector e, Choose choose) {
    const SideTag d;
    const hn::Repartition<uint64_t, SideTag> d64;
    const auto ab = hn::BitCast(d64, choose(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
    const auto ce = hn::BitCast(d64, choose(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e)));
    auto all =
        choose(hn::BitCast(d, hn::InterleaveLower(d64, ab, ce)), hn::BitCast(d, hn::InterleaveUpper(d64, ab, ce)));
    if constexpr (hn::MaxLanes(SideTag()) > 4) all = choose(all, hn::SwapAdjacentBlocks(all));
    if constexpr (hn::MaxLanes(SideTag()) > 8) all = choose(all, hn::ConcatLowerUpper(d, all, all));
    return all;
  }

  struct Lower {
    HWY_INLINE SideVector operator()(SideVector a, SideVector b) const { return hn::Min(a, b); }
  };
  struct Higher {
    HWY_INLINE SideVector operator()(SideVector a, SideVector b) const { return hn::Max(a, b); }
  };

  /// Ranges of a chunk of four rows.
  HWY_INLINE void find_chunk_ranges(int32_t element, int32_t chunk) {
    const SideTag d;
    const auto lanes = static_cast<int32_t>(hn::Lanes(d));
    SideVector low[4];
    SideVector high[4];
    for (int32_t i = 0; i < 4; ++i) {
      const float* x = row(element + i) + chunk * kChunk;
      low[i] = high[i] = hn::Load(d, x);
      for (int32_t lane = lanes; lane < kChunk; lane += lanes) {
        const auto v = hn::Load(d, x + lane);
        low[i] = hn::Min(low[i], v);
        high[i] = hn::Max(high[i], v);
      }
    }
    // The rows that follow overwrite all lanes but the first four.
    const int32_t index = chunk * count_ + element;
    hn::StoreU(join_lanes(low[0], low[1], low[2], low[3], Lower()), d, low_ + index);
    hn::StoreU(join_lanes(high[0], high[1], high[2], high[3], Higher()), d, high_ + index);
  }

  void join_chunk_ranges(int32_t element, int32_t group, int32_t chunk, int32_t end) {
    float low = low_[chunk * count_ + element];
    float high = high_[chunk * count_ + element];
    for (++chunk; chunk < end; ++chunk) {
      low = std::min(low, low_[chunk * count_ + element]);
      high = std::max(high, high_[chunk * count_ + element]);
    }
    low_[group * count_ + element] = low;
    high_[group * count_ + element] = high;
  }

  /// Zeros of both signs are equal but differ in bytes. With several zeros, the minimum is the first one; the maximum,
  /// which matters only if all are zeros, is the first for keys and the last for values.
  void choose_zeros(int32_t index) {
    const float* lanes = row(index % count_);
    const float* begin = lanes + index / count_ * group_;
    const float* end = std::min(begin + group_, lanes + width_);
    low_[index] = *std::find(begin, end, 0.0F);
    if (high_[index] == 0.0F) high_[index] = keys_ ? *begin : end[-1];
  }

  /// x̂ = code · scale + min, with both as stored in the page; a constant group has scale 0 and codes 0.
  void choose_scales() {
    const SideTag d;
    const hn::Rebind<uint16_t, SideTag> d16;
    const auto lanes = static_cast<int32_t>(hn::Lanes(d));
    const auto top = hn::Set(d, static_cast<float>((1 << layout_.bits()) - 1));
    const auto largest = hn::Set(d, kMaxFloat16);
    HWY_ALIGN_MAX uint16_t scales[kMaxGroups];
    HWY_ALIGN_MAX uint16_t minima[kMaxGroups];
    for (int32_t i = 0; i < groups(); i += lanes) {
      // A Hadamard rotation can push values beyond the range of FP16.
      const auto low = hn::Max(hn::Min(hn::Load(d, low_ + i), largest), hn::Neg(largest));
      hn::Store(to_half(d, low), d16, minima + i);
      const auto minimum = from_half(d, minima + i);
      const auto range = hn::Sub(hn::Load(d, high_ + i), minimum);
      hn::Store(to_half(d, hn::Min(hn::Div(range, top), largest)), d16, scales + i);
      const auto scale = from_half(d, scales + i);
      const auto inverse = hn::Div(hn::Set(d, 1.0F), scale);
      hn::Store(minimum, d, minimum_ + i);
      hn::Store(hn::IfThenElseZero(hn::Gt(scale, hn::Zero(d)), inverse), d, inverse_scale_ + i);
    }
    std::memcpy(out_ + layout_.scale_offset(), scales, static_cast<size_t>(groups()) * sizeof(uint16_t));
    std::memcpy(out_ + layout_.minimum_offset(), minima, static_cast<size_t>(groups()) * sizeof(uint16_t));
  }

  template <int kBits>
  HWY_INLINE WordVector code(const float* x, int32_t index) const {
    const SideTag d;
    const auto steps = hn::Mul(hn::Sub(hn::Load(d, x), hn::Set(d, minimum_[index])), hn::Set(d, inverse_scale_[index]));
    const auto top = hn::Set(d, static_cast<float>((1 << kBits) - 1));
    const auto clamped = hn::Min(hn::Max(steps, hn::Zero(d)), top);
    const hn::RebindToSigned<SideTag> di;
    return hn::BitCast(WordTag(), hn::ConvertTo(di, hn::Add(clamped, hn::Set(d, 0.5F))));
  }

  /// Packs a block of rows into words; x: first row, `index`: its scale.
  template <int kBits, int kElement>
  HWY_INLINE void add_codes(const float* x, int32_t index, WordVector& low, WordVector& high) const {
    constexpr int kFieldBits = kBits == 3 ? 2 : kBits;
    if constexpr (kElement < 32 / kFieldBits) {
      const WordTag d;
      auto bits = code<kBits>(x + kElement * stride_, index + kElement);
      if constexpr (kBits == 3) {
        high = hn::Or(high, hn::ShiftLeft<8 * (kElement % 4) + kElement / 4>(hn::ShiftRight<2>(bits)));
        bits = hn::And(bits, hn::Set(d, 3U));
      }
      low = hn::Or(low, hn::ShiftLeft<8 * (kElement % 4) + kFieldBits*(kElement / 4)>(bits));
      add_codes<kBits, kElement + 1>(x, index, low, high);
    }
  }

  template <int kBits>
  void write_codes() {
    constexpr int32_t kBlock = 32 / (kBits == 3 ? 2 : kBits);
    const WordTag d;
    const auto lanes = static_cast<int32_t>(hn::Lanes(d));
    const PackedPlane plane = layout_.low_plane();
    pad_block(plane.blocks() * kBlock);
    auto* low_words = reinterpret_cast<uint32_t*>(out_);
    auto* high_words = reinterpret_cast<uint32_t*>(out_ + layout_.high_offset());
    for (int32_t block = 0; block < plane.blocks(); ++block) {
      for (int32_t lane = 0; lane < plane.lanes; lane += lanes) {
        auto low = hn::Zero(d);
        auto high = hn::Zero(d);
        const int32_t first = block * kBlock;
        add_codes<kBits, 0>(row(first) + lane, lane / group_ * count_ + first, low, high);
        hn::StoreU(low, d, low_words + block * plane.lanes + lane);
        if constexpr (kBits == 3) {
          // A word of high bits serves two words of low bits.
          uint32_t* word = high_words + block / 2 * plane.lanes + lane;
          if (block % 2 != 0) high = hn::Or(hn::LoadU(d, word), hn::ShiftLeft<4>(high));
          hn::StoreU(high, d, word);
        }
      }
    }
    clear_padding(plane, low_words);
    if constexpr (kBits == 3) clear_padding(layout_.high_plane(), high_words);
  }

  /// Fills the last block with codes 0.
  void pad_block(int32_t end) {
    std::fill(row(count_), row(end), 0.0F);
    for (int32_t i = count_; i < end; ++i) minimum_[i] = inverse_scale_[i] = 0.0F;
  }

  void clear_padding(const PackedPlane& plane, uint32_t* words) const {
    for (int32_t block = 0; plane.lanes > width_ && block < plane.blocks(); ++block) {
      std::fill(words + block * plane.lanes + width_, words + (block + 1) * plane.lanes, 0U);
    }
  }

  const SideLayout layout_;
  const bool keys_;
  const int32_t count_;   // number of reduction elements
  const int32_t width_;   // lanes in use
  const int32_t stride_;  // floats from row to row
  const int32_t group_;   // lanes that share a scale
  std::byte* out_;
  float* const x_;  // [count, rounded up][stride]
  HWY_ALIGN_MAX float low_[kMaxGroups];
  HWY_ALIGN_MAX float high_[kMaxGroups];
  HWY_ALIGN_MAX float minimum_[kMaxGroups];
  HWY_ALIGN_MAX float inverse_scale_[kMaxGroups];
};

inline void encode_integer(Side side, const SideFormat& format, int32_t head_dim, const std::byte* float16,
                           int32_t /*used*/, std::byte* out, std::byte* room) {
  SideEncoder(side_layout(side, format, head_dim), room, out).encode(float16, format.is_rotated());
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
