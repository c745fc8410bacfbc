// Values that a code is trained on, where a backend computes.
#pragma once

#include "core/memory.h"
#include "formats/commvq/value_code.h"

#include <cstddef>
#include <span>

namespace kvq {

/// Vectors of length 1, or zeros, [tokens][width], of which the last `held_out` only judge.
struct UnitVectors {
  Vector<float> numbers;
  size_t width;
  size_t held_out;

  size_t tokens() const { return numbers.size() / width; }
  size_t training() const { return tokens() - held_out; }
  const float* row(size_t token) const { return numbers.data() + token * width; }
};

/// Unit vectors x, and the bits and scales that were last found for them. Codes have a channel_scale of 1 and propose
/// bits without a network. Sums are over the vectors that train, taken in the same order every time; of symmetric ones
/// only the lower triangle counts. Everything throws Error.
class ValueSample {
 public:
  virtual ~ValueSample() = default;
  /// Find bits and scales with the least error. Returns the mean squared error of the vectors that judge.
  virtual double encode(const ValueCode& code) = 0;

  /// Σ (x, 1)·(x, 1)ᵀ: [width + 1]².
  virtual void moments(std::span<double> sums) = 0;
  /// Σ f·fᵀ, [bits + 1]², and Σ f·xᵀ, [bits + 1][width], where f is the scale for every bit that is set, 0 for others,
  /// and the scale again behind them.
  virtual void code_products(std::span<double> normal, std::span<double> sides) = 0;
  /// Σ (x, 1)·sᵀ, [width + 1][bits], where s is 1 for every bit that is set and −1 for others.
  virtual void sign_products(std::span<double> sums) = 0;

  /// Unit vectors of what the code leaves of these; `norm` is their mean length before.
  virtual Owned<ValueSample> residuals(Allocator& allocator, const ValueCode& code, double& norm) = 0;
};

}  // namespace kvq
