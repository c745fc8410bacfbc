// What kernels know about pages: records in device memory, and where a side's numbers lie.
#pragma once

#include "formats/float16/layout.h"
#include "formats/gain_shape/layout.h"
#include "formats/integer/layout.h"

#include <cstdint>

namespace kvq::cuda {

inline constexpr int32_t kSlots = kPageSlots;
inline constexpr int32_t kMaxHeadDim = kvq::kMaxHeadDim;

/// Whether a side is in gain–shape codes, the last kinds that a GPU knows.
KVQ_HOST_DEVICE constexpr bool has_gains(Kind kind) { return kind >= Kind::kGs4; }
KVQ_HOST_DEVICE constexpr bool is_trellis(Kind kind) { return kind >= Kind::kGt3; }
static_assert(index_of(Kind::kGt1) == index_of(Kind::kGs4) + 6 && gain_shape::shape_of(Kind::kGt3).trellis);

/// Bits of a code of a kind with gains. A table in a number, as integer::bits_of.
KVQ_HOST_DEVICE constexpr int32_t gain_bits(Kind kind) {
  const auto i = static_cast<uint32_t>(kind) - static_cast<uint32_t>(Kind::kGs4);
  return static_cast<int32_t>(uint32_t{0x1231234} >> (4U * i) & 7U);
}
static_assert(gain_bits(Kind::kGs4) == 4 && gain_bits(Kind::kGs3) == 3 && gain_bits(Kind::kGs2) == 2 &&
              gain_bits(Kind::kGs1) == 1 && gain_bits(Kind::kGt3) == 3 && gain_bits(Kind::kGt2) == 2 &&
              gain_bits(Kind::kGt1) == 1);

KVQ_HOST_DEVICE constexpr int32_t code_bits(Kind kind) {
  if (has_gains(kind)) return gain_bits(kind);
  return kind == Kind::kFloat16 ? 16 : integer::bits_of(kind);
}

/// What codes with gains are relative to. Trained centres have the higher bit.
enum class CentreCode : uint32_t { kNone, kPageMean, kOne, kSeveral };

/// A page's format in 16 bits: kind and Hadamard flag of keys, the same of values, log2(group / 32), the centres of
/// keys and those of values. Kinds are those without centres: codes and gains are the same.
struct FormatCode {
  uint32_t bits = 0;

  static constexpr uint32_t kKeys = 15U;
  static constexpr uint32_t kHadamardKeys = 1U << 4U;
  static constexpr uint32_t kValues = kKeys << 5U;
  static constexpr uint32_t kHadamardValues = 1U << 9U;
  static constexpr uint32_t kKeyCentre = 12;  // the first bit of a CentreCode
  static constexpr uint32_t kValueCentre = 14;

  KVQ_HOST_DEVICE constexpr Kind keys() const { return static_cast<Kind>(bits & 15U); }
  KVQ_HOST_DEVICE constexpr bool hadamard_keys() const { return (bits & kHadamardKeys) != 0; }
  KVQ_HOST_DEVICE constexpr Kind values() const { return static_cast<Kind>((bits >> 5U) & 15U); }
  KVQ_HOST_DEVICE constexpr bool hadamard_values() const { return (bits & kHadamardValues) != 0; }
  KVQ_HOST_DEVICE constexpr int32_t group_shift() const { return static_cast<int32_t>((bits >> 10U) & 3U); }
  KVQ_HOST_DEVICE constexpr CentreCode key_centre() const { return static_cast<CentreCode>(bits >> kKeyCentre & 3U); }
  KVQ_HOST_DEVICE constexpr CentreCode value_centre() const {
    return static_cast<CentreCode>(bits >> kValueCentre & 3U);
  }
  KVQ_HOST_DEVICE constexpr bool page_mean() const { return key_centre() == CentreCode::kPageMean; }
  /// Whether a side is relative to trained centres.
  KVQ_HOST_DEVICE constexpr bool centred_keys() const { return key_centre() >= CentreCode::kOne; }
  KVQ_HOST_DEVICE constexpr bool centred_values() const { return value_centre() >= CentreCode::kOne; }
  KVQ_HOST_DEVICE constexpr bool centred() const { return centred_keys() || centred_values(); }
  /// Whether a page says which of several centres a token has.
  KVQ_HOST_DEVICE constexpr bool key_indices() const { return key_centre() == CentreCode::kSeveral; }
  KVQ_HOST_DEVICE constexpr bool value_indices() const { return value_centre() == CentreCode::kSeveral; }
};

/// One entry of a head's page table.
struct alignas(16) DevicePage {
  uint64_t data;
  int32_t first_position;
  uint16_t format;  // FormatCode
  uint8_t count;
  uint8_t has_positions;  // positions are not consecutive: see SequenceView::positions
};
static_assert(sizeof(DevicePage) == 16);

/// Bytes of one side: codes, then scale and minimum of `scales` groups, or what belongs to gains, rounded up to 64.
struct SideBytes {
  int32_t codes;
  int32_t scales;    // bytes of one of the two planes
  int32_t rest = 0;  // of gains

  KVQ_HOST_DEVICE constexpr int32_t minima_offset() const { return codes + scales; }
  KVQ_HOST_DEVICE constexpr int32_t bytes() const { return (codes + 2 * scales + rest + 63) / 64 * 64; }
};

/// Bytes of the largest gain of keys, their mean's scale or turn, the largest gain of values, and a half of padding.
inline constexpr int32_t kGainHalves = 8;

KVQ_HOST_DEVICE constexpr int32_t value_lanes(int32_t head_dim) { return side_plane(Side::kValues, 1, head_dim).lanes; }

KVQ_HOST_DEVICE constexpr SideBytes side_bytes(Side side, Kind kind, int32_t group, int32_t head_dim) {
  if (kind == Kind::kFloat16) return {static_cast<int32_t>(float16::plane(side, head_dim).bytes()), 0};
  if (has_gains(kind)) {
    const gain_shape::Layout layout{side, gain_bits(kind), head_dim, false, false};
    return {static_cast<int32_t>(layout.code_bytes()), 0, kSlots + kGainHalves};
  }
  const integer::Layout layout{side, integer::bits_of(kind), head_dim, group};
  return {static_cast<int32_t>(layout.code_bytes()), 2 * layout.scales()};
}

KVQ_HOST_DEVICE constexpr SideBytes key_bytes(Kind kind, int32_t head_dim) {
  return side_bytes(Side::kKeys, kind, 32, head_dim);
}

/// Groups have 32 << group_shift channels: no division by what is not known when compiling.
KVQ_HOST_DEVICE constexpr SideBytes value_bytes(Kind kind, int32_t group_shift, int32_t head_dim) {
  if (group_shift == 0) return side_bytes(Side::kValues, kind, 32, head_dim);
  return side_bytes(Side::kValues, kind, group_shift == 1 ? 64 : 128, head_dim);
}

/// The bytes of either side where groups have 32 channels and the head size is a multiple of that: no word is padded.
KVQ_HOST_DEVICE constexpr SideBytes full_bytes(Kind kind, bool keys, int32_t head_dim) {
  if (kind == Kind::kFloat16) return {kSlots * head_dim * 2, 0};
  if (has_gains(kind)) return {kSlots * head_dim * gain_bits(kind) / 8, 0, kSlots + kGainHalves};
  return {kSlots * head_dim * code_bits(kind) / 8, keys ? 2 * head_dim : 2 * kSlots * (head_dim / 32)};
}

/// Where the sides of a page lie in device memory. Gains of both sides, the halves, the mean of keys and the numbers of
/// tokens' centres lie behind the codes of both, so that all codes are aligned; where only one side has them, behind
/// that side's codes.
struct PageBytes {
  SideBytes keys;
  SideBytes values;
  int32_t values_at;
  int32_t bytes;  // of the page
  // From the beginning of the keys:
  int32_t key_gains;
  int32_t key_halves;
  int32_t mean;
  int32_t key_indices;
  // From that of the values:
  int32_t value_gains;
  int32_t value_halves;
  int32_t value_indices;
};

KVQ_HOST_DEVICE constexpr PageBytes page_bytes(FormatCode format, int32_t head_dim) {
  PageBytes page{};
  page.keys = key_bytes(format.keys(), head_dim);
  page.values = value_bytes(format.values(), format.group_shift(), head_dim);
  const int32_t mean = format.page_mean() ? head_dim : 0;
  const int32_t key_indices = format.key_indices() ? kSlots : 0;
  const int32_t value_indices = format.value_indices() ? kSlots : 0;
  page.keys.rest += mean + key_indices;
  page.values.rest += value_indices;
  page.key_gains = page.keys.codes;
  page.value_gains = page.values.codes;
  if (has_gains(format.keys()) && has_gains(format.values())) {
    page.values_at = page.keys.codes;
    page.key_gains += page.values.codes;
    page.value_gains += kSlots;
    page.key_halves = page.key_gains + 2 * kSlots;
    page.value_halves = page.key_halves - page.values_at;
    page.mean = page.key_halves + 2 * kGainHalves;
    page.key_indices = page.mean + mean;
    page.value_indices = page.key_indices + key_indices - page.values_at;
    page.bytes = (page.key_indices + key_indices + value_indices + 15) / 16 * 16;
  } else {
    page.key_halves = page.key_gains + kSlots;
    page.mean = page.key_halves + kGainHalves;
    page.key_indices = page.mean + mean;
    page.value_halves = page.value_gains + kSlots;
    page.value_indices = page.value_halves + kGainHalves;
    page.values_at = page.keys.bytes();
    page.bytes = page.values_at + page.values.bytes();
  }
  return page;
}

// Of the halves.
inline constexpr int32_t kKeyLargest = 0;
inline constexpr int32_t kMeanScale = 1;
inline constexpr int32_t kKeyTurn = 1;  // of keys with trained centres: gain_shape::Layout
inline constexpr int32_t kValueLargest = 2;

/// Gains and numbers of centres lie in the order in which lanes of attention take tokens: four a lane.
KVQ_HOST_DEVICE constexpr int32_t gain_place(int32_t slot) {
  return 4 * (2 * (slot / 8) + slot / 2 % 2) + 2 * (slot / 4 % 2) + slot % 2;
}
/// Bytes of a mean have their highest bit flipped: they are numbers from 0 on.
inline constexpr uint8_t kMeanFlip = 0x80;

/// What kernels take for granted of the formats' layouts, at every head size that they serve.
constexpr bool fits_formats(Kind kind) {
  for (int32_t head_dim = 8; head_dim <= kMaxHeadDim; head_dim += 8) {
    const SideBytes keys = key_bytes(kind, head_dim);
    const SideBytes values = value_bytes(kind, 0, head_dim);
    if (keys.codes % (4 * kSlots) != 0 || values.codes % (4 * value_lanes(head_dim)) != 0) return false;  // whole rows
    if (head_dim % 32 != 0) continue;
    const SideBytes full_keys = full_bytes(kind, true, head_dim);
    const SideBytes full_values = full_bytes(kind, false, head_dim);
    if (full_keys.codes != keys.codes || full_keys.scales != keys.scales || full_values.codes != values.codes ||
        full_values.scales != values.scales) {
      return false;
    }
  }
  return true;
}
static_assert(fits_formats(Kind::kFloat16) && fits_formats(Kind::kInt8) && fits_formats(Kind::kInt4) &&
              fits_formats(Kind::kInt3) && fits_formats(Kind::kInt2) && fits_formats(Kind::kGs4) &&
              fits_formats(Kind::kGs3) && fits_formats(Kind::kGs2) && fits_formats(Kind::kGs1) &&
              fits_formats(Kind::kGt3) && fits_formats(Kind::kGt2) && fits_formats(Kind::kGt1));

// On the device the bytes of a page side are permuted, so that kernels read them as they lie, without bank conflicts
// and without moving halves: 16-byte chunks of codes trade places within a line of 128 bytes, and of every four scales
// or minima the two in the middle are swapped. Both permutations are their own inverse.

/// How the chunks of a row of keys, or of a pair of rows of FP16 keys, are permuted.
KVQ_HOST_DEVICE inline int32_t key_swizzle(int32_t row) { return (row & 1) | ((row & 2) << 1); }

/// Place of 16-byte chunk `i` of the codes of keys.
KVQ_HOST_DEVICE inline int32_t key_chunk(Kind kind, int32_t i) {
  return i ^ key_swizzle(i >> (kind == Kind::kFloat16 ? 4 : 3));
}

/// Rows of values are permuted when they are whole lines and a power of two of them.
KVQ_HOST_DEVICE inline bool swizzles_values(int32_t head_dim) {
  const int32_t lanes = value_lanes(head_dim);
  return lanes >= 32 && (lanes & (lanes - 1)) == 0;
}

/// How the chunks of a row of values are permuted. Rows, or groups of rows, are what one load of a warp covers.
KVQ_HOST_DEVICE inline int32_t value_swizzle(Kind kind, int32_t head_dim, int32_t row) {
  if (!swizzles_values(head_dim)) return 0;
  return 2 * (row >> (kind == Kind::kFloat16 ? 2 : (kind == Kind::kInt8 ? 1 : 0)) & 3);
}

/// Place of chunk `i` of the codes of values.
KVQ_HOST_DEVICE inline int32_t value_chunk(Kind kind, int32_t head_dim, int32_t i) {
  return i ^ value_swizzle(kind, head_dim, i / (value_lanes(head_dim) / 4));
}

/// Place of scale or minimum `i` in its plane.
KVQ_HOST_DEVICE inline int32_t scale_place(int32_t i) {
  const int32_t within = i & 3;
  return within == 1 || within == 2 ? i ^ 3 : i;
}

/// How far one head's list has come. Attention and appending by the device itself go by it alone, so that they can be
/// repeated while a sequence grows.
struct alignas(16) HeadState {
  int32_t pages;          // in use
  int32_t length;         // tokens of the layer
  int32_t next_position;  // of the next token, if it follows the newest
  int32_t room;           // tokens for which pages have been made ahead
};
static_assert(sizeof(HeadState) == 16);

/// The page table of one layer of one sequence.
struct SequenceView {
  DevicePage* pages;   // [kv_heads][capacity]
  HeadState* heads;    // [kv_heads]
  int32_t* positions;  // [kv_heads][capacity][32] of pages that have_positions, or null
  int32_t capacity;
};

/// Pages made ahead for one layer of one sequence.
struct ReserveView {
  const uint64_t* finals;  // [kv_heads][capacity] pages in their final format, by place in the list
  const uint64_t* open;    // [kv_heads][ring] FP16 pages: page i is open in open[i % ring]
  int32_t capacity;
  int32_t ring;
  int32_t sink;    // pages from the first on that stay FP16
  int32_t recent;  // newest pages that stay FP16
  int32_t sealed;  // FormatCode of the others
};

}  // namespace kvq::cuda
