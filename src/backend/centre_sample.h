// Vectors that centres are trained on, where a backend computes.
#pragma once

#include "core/memory.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Vectors in an order in which any first ones are a fair sample of all.
struct CentreVectors {
  const float* numbers;  // [n][dim]
  int32_t n;
  int32_t dim;

  const float* operator[](int32_t i) const { return numbers + static_cast<int64_t>(i) * dim; }
  CentreVectors first(int32_t count) const { return {numbers, count, dim}; }
};

/// Vectors x, and which of some centres c was last found nearest to each. Everything throws Error.
class CentreSample {
 public:
  virtual ~CentreSample() = default;
  /// The vectors changed.
  virtual void reload() = 0;
  /// Find for each of the first n vectors the centre, of [centres][dim], for which ‖c‖² / 2 − c·x is least, the first
  /// of equals.
  ///
  /// \param distances  [n] ‖x − c‖²
  virtual void assign(int32_t n, std::span<const float> centres, float* distances) = 0;
  /// Move every centre that is nearest to any of the first n vectors to their mean, and count these. The order of sums
  /// is always the same.
  virtual void move_to_means(int32_t n, std::span<float> centres, std::span<int32_t> counts) = 0;
};

}  // namespace kvq
