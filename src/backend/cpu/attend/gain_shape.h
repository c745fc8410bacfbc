#pragma once

#include "backend/cpu/append/kernels.h"

namespace kvq::cpu {

/// The reference as a kernel.
void encode_gain_shape(Side side, const SideFormat& format, int32_t head_dim, const std::byte* float16, int32_t used,
                       std::byte* out);

}  // namespace kvq::cpu
