// Meaning of the fields of a gain–shape side. Also compiled as device code.
//
// x̂ = centre + gain · H·u: u the levels of the codes, one gain per token, H the Hadamard rotation. The centre is zero,
// the mean of the page's keys, or the nearest trained centre of the head.
#pragma once

#include "formats/page_fields.h"

namespace kvq::gain_shape {

/// A scalar code's level is code − middle.
KVQ_HOST_DEVICE constexpr float middle(int32_t bits) { return static_cast<float>((1 << bits) - 1) / 2.0F; }

}  // namespace kvq::gain_shape
