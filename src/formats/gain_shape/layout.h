// What the fields of a side in gain–shape codes mean. Device code includes this too.
//
// x̂ = centre + gain · H·u: u the levels of the codes, one gain a token, H the Hadamard rotation. The centre is nothing,
// the mean of the page's keys, or the nearest of the trained centres of the head.
#pragma once

#include "formats/page_fields.h"

namespace kvq::gain_shape {

/// A code of a scalar shape stands for code − middle.
KVQ_HOST_DEVICE constexpr float middle(int32_t bits) { return static_cast<float>((1 << bits) - 1) / 2.0F; }

}  // namespace kvq::gain_shape
