// Quantizes a matrix of floats to a packed one.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "core/training_progress.h"
#include "weights/matrix.h"
#include "weights/quantizing.h"

#include <cstdint>

namespace kvq::weights {

struct QuantizeOptions {
  Scheme scheme{};
  uint64_t seed = 1;
  const float* hessian = nullptr;  // [in, in]
  bool feed_back = true;           // errors, by the Hessian
  double damping = 0.01;
  const float* bias = nullptr;  // [out]
};

/// Threads and device that quantize.
struct Quantizers {
  Parallel& parallel;
  Quantizing* device = nullptr;  // finds codes; null: the host's threads do
};

/// The result is the same on any device and number of threads. Throws KVQ_E_ARGUMENT if a number is not finite (in
/// FP16, if that is the scheme), and what Hessian and a device throw; KVQ_E_CANCELLED.
///
/// \param w  weights [out, in] of type `dtype`
Matrix quantize(Allocator& allocator, const Quantizers& by, const QuantizeOptions& options, const void* w,
                kvq_dtype dtype, int32_t out, int32_t in, const TrainingProgress& progress);

}  // namespace kvq::weights
