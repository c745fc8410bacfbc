#pragma once

#include "core/memory.h"
#include "formats/codec.h"

#include <array>

namespace kvq::integer {

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

  constexpr PackedPlane low_plane() const { return side_plane(side, bits == 3 ? 2 : bits, head_dim); }
  constexpr PackedPlane high_plane() const { return side_plane(side, 1, head_dim); }  // 3 bits only
  constexpr size_t high_offset() const { return low_plane().bytes(); }
  constexpr size_t code_bytes() const { return low_plane().bytes() + (bits == 3 ? high_plane().bytes() : 0); }

  constexpr int32_t value_groups() const { return (head_dim + group - 1) / group; }
  constexpr int32_t scales() const { return side == Side::kKeys ? head_dim : value_groups() * kPageSlots; }
  constexpr size_t scale_offset() const { return code_bytes(); }
  constexpr size_t min_offset() const { return code_bytes() + 2 * static_cast<size_t>(scales()); }
  constexpr size_t bytes() const { return code_bytes() + 4 * static_cast<size_t>(scales()); }

  /// Which scale a scalar uses.
  constexpr int32_t scale_index(int32_t slot, int32_t channel) const {
    return side == Side::kKeys ? channel : (channel / group) * kPageSlots + slot;
  }
};

constexpr Layout layout(Side side, const SideFormat& format, int32_t head_dim) {
  return {side, format.bits, head_dim, format.group};
}

inline Layout layout(Side side, const PageFormat& format) { return layout(side, format.side(side), format.head_dim); }

size_t bytes(Side side, const PageFormat& format);
void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out);
bool valid(Side side, const PageFormat& format, const std::byte* data);

inline constexpr CodecOperations kOperations = {kDataAlignment, bytes, spans_no_heads, decode, valid};

}  // namespace kvq::integer
