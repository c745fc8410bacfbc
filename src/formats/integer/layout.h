// Bytes of a side in integers. Device code includes this too.
#pragma once

#include "formats/side_format.h"

namespace kvq::integer {

/// Bits of a code; 0 for other kinds.
KVQ_HOST_DEVICE constexpr int32_t bits_of(Kind kind) {
  // A table in a number: kernels would take longer over branches or memory.
  if (kind > Kind::kInt2) return 0;
  return static_cast<int32_t>(uint64_t{0x0002030408'00} >> (8U * static_cast<uint32_t>(kind))) & 0xFF;
}
static_assert(bits_of(Kind::kInt8) == 8 && bits_of(Kind::kInt4) == 4 && bits_of(Kind::kInt3) == 3 &&
              bits_of(Kind::kInt2) == 2 && bits_of(Kind::kFloat16) == 0 && bits_of(Kind::kCommvq) == 0);

/// Asymmetric integer codes, KIVI's grouping: x̂ = code · scale + min.
///
/// Bytes of a side: the code planes, then `scale` fp16, then `min` fp16. Keys share a scale per channel over the 32
/// tokens of the page (`[head_dim]`), values per token over `group` channels (`[groups][32]`).
/// Three-bit codes are a 2-bit plane of the low bits followed by a 1-bit plane of the high bit.
struct Layout {
  Side side;
  int32_t bits;
  int32_t head_dim;
  int32_t group;

  KVQ_HOST_DEVICE constexpr PackedPlane low_plane() const { return side_plane(side, bits == 3 ? 2 : bits, head_dim); }
  KVQ_HOST_DEVICE constexpr PackedPlane high_plane() const { return side_plane(side, 1, head_dim); }  // 3 bits only
  KVQ_HOST_DEVICE constexpr size_t high_offset() const { return low_plane().bytes(); }
  KVQ_HOST_DEVICE constexpr size_t code_bytes() const {
    return low_plane().bytes() + (bits == 3 ? high_plane().bytes() : 0);
  }

  KVQ_HOST_DEVICE constexpr int32_t value_groups() const { return (head_dim + group - 1) / group; }
  KVQ_HOST_DEVICE constexpr int32_t scales() const {
    return side == Side::kKeys ? head_dim : value_groups() * kPageSlots;
  }
  KVQ_HOST_DEVICE constexpr size_t scale_offset() const { return code_bytes(); }
  KVQ_HOST_DEVICE constexpr size_t min_offset() const { return code_bytes() + 2 * static_cast<size_t>(scales()); }
  KVQ_HOST_DEVICE constexpr size_t bytes() const { return code_bytes() + 4 * static_cast<size_t>(scales()); }

  /// Which scale a scalar uses.
  constexpr int32_t scale_index(int32_t slot, int32_t channel) const {
    return side == Side::kKeys ? channel : (channel / group) * kPageSlots + slot;
  }
};

constexpr Layout layout(Side side, const SideFormat& format, int32_t head_dim) {
  return {side, bits_of(format.kind), head_dim, format.group};
}

}  // namespace kvq::integer
