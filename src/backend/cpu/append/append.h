#pragma once

#include "backend/cpu/dispatch/kernels.h"
#include "backend/pages.h"
#include "core/parallel.h"

namespace kvq::cpu {

/// Implementation of Pages::append() for pages in host memory.
void append(const TokenBatch& tokens, const PageWrites& writes, const KernelTable& kernels, Parallel& parallel,
            Allocator& scratch);

/// Implementation of Pages::append_bytes().
uint64_t append_bytes(const ExpectedAppend& expected, const KernelTable& kernels, const Parallel& parallel);

}  // namespace kvq::cpu
