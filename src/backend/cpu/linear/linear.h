#pragma once

#include "backend/cpu/linear/kernels.h"
#include "backend/linear.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace kvq::cpu {

using CodebookSource = const weights::Codebook& (*)(const weights::Code& code);

/// A LinearBatch of matrices in host memory.
struct HostLinearBatch {
  std::span<const weights::Matrix* const> matrices;
  const void* x;
  kvq_dtype x_dtype;
  int32_t batch;
  void* const* y;
  kvq_dtype y_dtype;
};

/// Implementation of Linear::multiply(). Results do not depend on the instruction set (except with FP16 weights), the
/// number of threads or the rows multiplied together. Work space stays in the pool and grows with `in`, but not with
/// batches beyond 64 rows.
void linear(const HostLinearBatch& batch, const LinearKernels& kernels, CodebookSource codebook, Parallel& parallel,
            ScratchPool& pool);

}  // namespace kvq::cpu
