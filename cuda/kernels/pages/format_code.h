// A page's format as a word for kernels.
#pragma once

#include "formats/head_shape.h"
#include "formats/page_fields.h"

#include <cstdint>

namespace kvq::cuda {

inline constexpr int32_t kSlots = kPageSlots;
// Channels that kernels are compiled for.
inline constexpr int32_t kMaxHeadDim = 256;   // of heads whose keys and values have equally many
inline constexpr int32_t kMaxChannels = 576;  // of either side of any head

/// Code types, rotations and centres of both sides and log2(group / 32) of values, in kBits bits. 0: FP16.
struct FormatCode {
  uint32_t bits = 0;

  static constexpr uint32_t kBits = 24;
  static constexpr uint32_t kMask = (1U << kBits) - 1U;

  // Bits of keys; those of values follow.
  static constexpr uint32_t kCode = (1U << CodeType::kPackedBits) - 1U;
  static constexpr uint32_t kHadamardBit = CodeType::kPackedBits;
  static constexpr uint32_t kPageMeanBit = kHadamardBit + 1;
  static constexpr uint32_t kTrainedBit = kPageMeanBit + 1;
  static constexpr uint32_t kIndicesBit = kPageMeanBit;  // together with kTrainedBit
  static constexpr uint32_t kSideBits = kTrainedBit + 1;
  static constexpr uint32_t kGroupBit = 2 * kSideBits;
  static_assert(kGroupBit + 2 <= kBits);

  static constexpr uint32_t kKeyCode = kCode;
  static constexpr uint32_t kValueCode = kCode << kSideBits;
  static constexpr uint32_t kHadamardValues = 1U << (kSideBits + kHadamardBit);

  /// Bits of one side in the position of keys. `indices`: the side has several trained centres.
  KVQ_HOST_DEVICE static constexpr uint32_t side(CodeType code, bool hadamard, Centre centre, bool indices) {
    const uint32_t centre_bits = centre == Centre::kTrained ? 1U << kTrainedBit | (indices ? 1U << kIndicesBit : 0U)
                                                            : (centre == Centre::kPageMean ? 1U << kPageMeanBit : 0U);
    return code.packed() | (hadamard ? 1U << kHadamardBit : 0U) | centre_bits;
  }
  /// Format of pages with this code on both sides and nothing else.
  KVQ_HOST_DEVICE static constexpr FormatCode both(CodeType code) { return {code.packed() * (1U + (1U << kSideBits))}; }

  KVQ_HOST_DEVICE constexpr bool is_float16() const { return (bits & (kKeyCode | kValueCode)) == 0; }
  KVQ_HOST_DEVICE constexpr CodeType keys() const { return CodeType::unpacked(bits & kCode); }
  KVQ_HOST_DEVICE constexpr CodeType values() const { return CodeType::unpacked(bits >> kSideBits & kCode); }
  KVQ_HOST_DEVICE constexpr CodeType code(bool of_keys) const { return of_keys ? keys() : values(); }
  KVQ_HOST_DEVICE constexpr bool hadamard_keys() const { return has(kHadamardBit); }
  KVQ_HOST_DEVICE constexpr bool hadamard_values() const { return has(kSideBits + kHadamardBit); }
  KVQ_HOST_DEVICE constexpr int32_t group_shift() const { return static_cast<int32_t>(bits >> kGroupBit & 3U); }
  KVQ_HOST_DEVICE constexpr bool page_mean() const { return has(kPageMeanBit) && !has(kTrainedBit); }
  /// Whether a side is relative to trained centres.
  KVQ_HOST_DEVICE constexpr bool centred_keys() const { return has(kTrainedBit); }
  KVQ_HOST_DEVICE constexpr bool centred_values() const { return has(kSideBits + kTrainedBit); }
  KVQ_HOST_DEVICE constexpr bool centred() const { return centred_keys() || centred_values(); }
  /// Whether a page stores the index of each token's centre.
  KVQ_HOST_DEVICE constexpr bool key_indices() const { return has(kIndicesBit) && has(kTrainedBit); }
  KVQ_HOST_DEVICE constexpr bool value_indices() const {
    return has(kSideBits + kIndicesBit) && has(kSideBits + kTrainedBit);
  }
  /// Whether both sides have gains; their bytes then follow the codes of both.
  KVQ_HOST_DEVICE constexpr bool both_have_gains() const { return keys().has_gains() && values().has_gains(); }

  KVQ_HOST_DEVICE constexpr SideLayout key_layout(int32_t head_dim) const {
    return {.side = Side::kKeys,
            .code = keys(),
            .head_dim = head_dim,
            .centre = centred_keys() ? Centre::kTrained : (page_mean() ? Centre::kPageMean : Centre::kNone),
            .has_indices = key_indices()};
  }
  KVQ_HOST_DEVICE constexpr SideLayout value_layout(int32_t head_dim) const {
    return {.side = Side::kValues,
            .code = values(),
            .head_dim = head_dim,
            .group = 32 << group_shift(),
            .centre = centred_values() ? Centre::kTrained : Centre::kNone,
            .has_indices = value_indices()};
  }

 private:
  KVQ_HOST_DEVICE constexpr bool has(uint32_t bit) const { return (bits >> bit & 1U) != 0; }
};

KVQ_HOST_DEVICE constexpr PagePlaces page_places(FormatCode format, HeadShape head) {
  return page_places(format.key_layout(head.keys), format.value_layout(head.values));
}

/// Places of a side with codes and scales of 32 channels only.
KVQ_HOST_DEVICE constexpr SidePlaces side_places(Side side, CodeType code, int32_t head_dim) {
  return side_places(SideLayout{.side = side, .code = code, .head_dim = head_dim});
}

/// side_places for a head size that is a multiple of 32: no word is padded.
KVQ_HOST_DEVICE constexpr SidePlaces full_places(Side side, CodeType code, int32_t head_dim) {
  SidePlaces at{};
  at.codes = kSlots * head_dim * code.bits / 8;
  if (code.is_integer()) at.scales = side == Side::kKeys ? 2 * head_dim : 2 * kSlots * (head_dim / 32);
  at.bytes = (at.codes + 2 * at.scales + (code.has_gains() ? kSlots + 2 * kDeviceNumbers : 0) + 63) / 64 * 64;
  return at;
}

}  // namespace kvq::cuda
