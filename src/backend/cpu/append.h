#pragma once

#include "backend/backend.h"
#include "core/parallel.h"

namespace kvq::cpu {

void check(const TokenBatch& tokens);
void append(const TokenBatch& tokens, std::span<const PageWrite> writes, Parallel& parallel, Allocator& scratch);

}  // namespace kvq::cpu
