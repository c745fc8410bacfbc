#pragma once

#include "backend/cpu/context_codec.h"

namespace kvq::cpu {

/// Implementation of ContextCodec::encode(): a side of a page at a time, on any number of threads.
void encode_centred(const TokenBatch& tokens, std::span<const FilledGroup> groups, const KernelTable& kernels,
                    Parallel& parallel, Allocator& scratch);

}  // namespace kvq::cpu
