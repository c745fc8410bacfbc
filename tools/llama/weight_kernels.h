#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvq.h"

namespace llama {

/// What one instruction set does with numbers as a file holds them: FP32, FP16 or BF16, little-endian, of any
/// alignment.
struct WeightKernels {
  const char* isa;  // as kvq_cpu_isa_name() has it

  /// out = `n` numbers as floats.
  void (*widen)(kvq_dtype dtype, const std::byte* stored, size_t n, float* out);
  /// y[i] = row i · x + beta·y[i] for `count` rows of `n` numbers each, summed in FP32 in an order that depends on `n`
  /// alone. With a beta of 0, y is not read.
  void (*multiply)(kvq_dtype dtype, const std::byte* rows, size_t count, size_t n, const float* x, float beta,
                   float* y);
};

/// Those that the processor at hand can run, best first.
std::span<const WeightKernels> weight_kernels();

}  // namespace llama
