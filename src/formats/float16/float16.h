#pragma once

#include "core/float16.h"
#include "core/memory.h"
#include "formats/codec.h"

namespace kvq::float16 {

/// Two reduction elements a word: element e of a lane is half `e % 2` of word (e / 2, lane).
constexpr PackedPlane plane(Side side, int32_t head_dim) { return side_plane(side, 16, head_dim); }

/// Index, in halves, of one scalar of a token in the plane of its side.
constexpr size_t index(Side side, int32_t head_dim, int32_t slot, int32_t channel) {
  const PackedPlane layout = plane(side, head_dim);
  const int32_t lane = side == Side::kKeys ? slot : channel;
  const int32_t element = side == Side::kKeys ? channel : slot;
  return 2 * layout.word(lane, element) + static_cast<size_t>(element % 2);
}

/// Make slots [begin, end) of a plane zero.
void clear_slots(Side side, int32_t head_dim, int32_t begin, int32_t end, std::byte* plane);

size_t bytes(Side side, const PageFormat& format);
void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out);
bool valid(Side side, const PageFormat& format, const std::byte* data);

inline constexpr CodecOperations kOperations = {kDataAlignment, bytes, spans_no_heads, decode, valid};

}  // namespace kvq::float16
