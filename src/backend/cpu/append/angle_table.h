#pragma once

#include "backend/cpu/append/kernels.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/rope.h"

#include <span>

namespace kvq::cpu {

/// A Rope table for a slice of an append's tokens, shared by all heads.
///
/// cos and sin in double take longer than all else that is done to a token, so those of many tokens are products:
/// e^{i(b+k)θ} = e^{ibθ}·e^{ikθ}, with b every 32nd position or so and k below 32. Rounded to float they are the same
/// as cos and sin of the angle itself: what is too close to call is computed as such.
class AngleTable {
 public:
  /// For `tokens` tokens in slices of up to `slice`.
  AngleTable(const Rope& rope, TurnKernel turn, int32_t tokens, int32_t slice, Parallel& parallel, Allocator& scratch);

  void fill(std::span<const int32_t> positions);
  const float* row(int32_t token_of_slice) const {
    return rows_.data() + static_cast<size_t>(token_of_slice) * rope_.table_stride();
  }

 private:
  void fill_offsets();
  void fill_span(std::span<const int32_t> positions, float* rows) const noexcept;
  void fill_exact(int32_t position, double* cos_sin) const noexcept;

  const Rope& rope_;
  const TurnKernel turn_;
  Parallel& parallel_;
  Vector<double> offsets_;  // [kSpan, {cos, sin}, pairs], or empty if they would not pay
  Vector<float> rows_;      // [slice, {cos, sin}, pairs]
};

}  // namespace kvq::cpu
