#pragma once

#include "backend/cpu/context_codec.h"

namespace kvq::cpu {

/// Implementation of ContextCodec::encode(): a page or a layer at a time, on any number of threads.
void encode_commvq(const TokenBatch& tokens, std::span<const FilledGroup> groups, Parallel& parallel,
                   Allocator& scratch);

}  // namespace kvq::cpu
