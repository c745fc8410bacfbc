#pragma once

#include "backend/cpu/context_codec.h"

namespace kvq::cpu {

/// CommVQ on the CPU.
const ContextCodec& commvq_codec();

}  // namespace kvq::cpu
