#pragma once

#include "backend/backend.h"
#include "backend/cpu/append/kernels.h"
#include "core/parallel.h"

namespace kvq::cpu {

void append(const TokenBatch& tokens, std::span<const PageWrite> writes, const AppendKernels& kernels,
            Parallel& parallel, Allocator& scratch);

}  // namespace kvq::cpu
