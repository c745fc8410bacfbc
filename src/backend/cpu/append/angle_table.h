#pragma once

#include "backend/cpu/append/kernels.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/rope.h"

#include <span>

namespace kvq::cpu {

/// Rope table for a slice of an append's tokens, shared by all heads.
///
/// cos and sin in double take longer than all other work on a token, so long appends multiply instead: e^{i(b+k)θ} =
/// e^{ibθ}·e^{ikθ}, with b about every 32nd position and k below 32. Rows rounded to float equal those from cos and sin
/// of the angle itself: products too close to a rounding boundary are recomputed that path.
class AngleTable {
 public:
  AngleTable(const Rope& rope, RotationKernel fill_rotation, int32_t tokens, int32_t slice, Parallel& parallel,
             Allocator& scratch);
  /// Bytes in an allocator's block.
  static uint64_t bytes_of(const Rope& rope, int32_t tokens, int32_t slice);

  void fill(std::span<const int32_t> positions);
  const float* row(int32_t token_of_slice) const {
    return rows_.data() + static_cast<size_t>(token_of_slice) * rope_.table_stride();
  }

 private:
  void fill_offsets();
  void fill_span(std::span<const int32_t> positions, float* rows) const noexcept;
  void fill_exact(int32_t position, double* cos_sin) const noexcept;

  const Rope& rope_;
  const RotationKernel fill_rotation_;
  Parallel& parallel_;
  Vector<double> offsets_;  // [kSpan, {cos, sin}, pairs], or empty if products would not pay
  Vector<float> rows_;      // [slice, {cos, sin}, pairs]
};

}  // namespace kvq::cpu
