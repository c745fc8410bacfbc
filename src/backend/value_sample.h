// Values that a code is trained on, held by a backend.
#pragma once

#include "core/memory.h"
#include "formats/commvq/value_code.h"

#include <cstddef>
#include <span>

namespace kvq {

/// Vectors of length 1, or zeros, [tokens][width]; the last `held_out` serve only for validation.
struct UnitVectors {
  Vector<float> numbers;
  size_t width;
  size_t held_out;

  size_t tokens() const { return numbers.size() / width; }
  size_t training() const { return tokens() - held_out; }
  const float* row(size_t token) const { return numbers.data() + token * width; }
};

/// Unit vectors x, with the bits and scales last found for them. Codes have a channel_scale of 1 and propose bits
/// without a network. Sums are over the training vectors, in a fixed order; of symmetric matrices only the lower
/// triangle counts. Everything throws Error.
class ValueSample {
 public:
  virtual ~ValueSample() = default;
  /// Find bits and scales with the least error. Returns the mean squared error of the held-out vectors.
  virtual double encode(const ValueCode& code) = 0;

  /// Σ (x, 1)·(x, 1)ᵀ: [width + 1]².
  virtual void moments(std::span<double> sums) = 0;
  /// Σ f·fᵀ, [bits + 1]², and Σ f·xᵀ, [bits + 1][width]; f is the scale for every set bit, 0 for others, followed by
  /// the scale.
  virtual void code_products(std::span<double> normal, std::span<double> sides) = 0;
  /// Σ (x, 1)·sᵀ, [width + 1][bits]; s is 1 for every set bit and −1 for others.
  virtual void sign_products(std::span<double> sums) = 0;

  /// Unit vectors of the code's residuals; `norm`: their mean length before normalisation.
  virtual Owned<ValueSample> residuals(Allocator& allocator, const ValueCode& code, double& norm) = 0;
};

}  // namespace kvq
