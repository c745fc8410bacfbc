#pragma once

#include "backend/backend.h"
#include "backend/cpu/linear/kernels.h"
#include "backend/cpu/linear/linear_pool.h"
#include "core/parallel.h"

namespace kvq::cpu {

using CodebookSource = const weights::Codebook& (*)(const weights::Code& code);

/// As Backend::linear(). The results do not depend on the instruction set (but for FP16 weights), on the number of
/// threads or on which rows are multiplied together. Work space comes from `allocator`, stays in the pool and grows
/// with `in`, not with the batch beyond 64 rows.
void linear(const LinearBatch& batch, const LinearKernels& kernels, CodebookSource codebook, Parallel& parallel,
            LinearPool& pool, Allocator& allocator);

}  // namespace kvq::cpu
