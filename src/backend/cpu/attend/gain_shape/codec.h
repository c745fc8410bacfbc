#pragma once

#include "backend/cpu/context_codec.h"

namespace kvq::cpu {

/// Of gain–shape pages around trained centres.
const ContextCodec& centred_codec();

}  // namespace kvq::cpu
