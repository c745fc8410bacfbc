// From a matrix of floats to a packed one.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "core/training_progress.h"
#include "weights/matrix.h"

#include <cstdint>

namespace kvq::weights {

struct QuantizeOptions {
  Scheme scheme{};
  uint64_t seed = 1;
  const float* hessian = nullptr;  // [in, in]
  bool feed_back = true;           // errors, as the Hessian tells
  double damping = 0.01;
  const float* bias = nullptr;  // [out]
};

/// \param w  weights [out, in] of type `dtype`.
/// Throws KVQ_E_ARGUMENT if a number is not finite (in FP16, if that is the scheme), and what Hessian throws;
/// KVQ_E_CANCELLED. The result does not depend on threads or instruction sets.
Matrix quantize(Allocator& allocator, Parallel& parallel, const QuantizeOptions& options, const void* w,
                kvq_dtype dtype, int32_t out, int32_t in, const TrainingProgress& progress);

}  // namespace kvq::weights
