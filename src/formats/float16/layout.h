// Bytes of a side in FP16: one plane. Also compiled as device code.
#pragma once

#include "formats/side_format.h"

namespace kvq::float16 {

/// Two reduction elements per word: element e of a lane is FP16 value `e % 2` of word (e / 2, lane).
KVQ_HOST_DEVICE constexpr PackedPlane plane(Side side, int32_t head_dim) { return side_plane(side, 16, head_dim); }

/// Index, in FP16 values, of one scalar of a token in the plane of its side.
constexpr size_t index(Side side, int32_t head_dim, int32_t slot, int32_t channel) {
  const PackedPlane layout = plane(side, head_dim);
  const int32_t lane = side == Side::kKeys ? slot : channel;
  const int32_t element = side == Side::kKeys ? channel : slot;
  return 2 * layout.word(lane, element) + static_cast<size_t>(element % 2);
}

}  // namespace kvq::float16
