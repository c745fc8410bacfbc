#pragma once

#include "backend/cpu/context_codec.h"

namespace kvq::cpu {

/// Gain–shape pages around trained centres.
const ContextCodec& centred_codec();

}  // namespace kvq::cpu
