// Vectors that centres are trained on, held by a backend.
#pragma once

#include "core/memory.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Vectors in random order: any prefix is a fair sample of all.
struct CentreVectors {
  const float* numbers;  // [n][dim]
  int32_t n;
  int32_t dim;

  const float* operator[](int32_t i) const { return numbers + static_cast<int64_t>(i) * dim; }
  CentreVectors first(int32_t count) const { return {numbers, count, dim}; }
};

/// ‖x − y‖²; dim is a multiple of 8. Sums in an order that vectors of eight can follow, the same everywhere.
constexpr float squared_distance(const float* x, const float* y, int32_t dim) {
  float sums[8] = {};
  for (int32_t i = 0; i < dim; i += 8) {
    for (int32_t lane = 0; lane < 8; ++lane) {
      const float difference = x[i + lane] - y[i + lane];
      sums[lane] += difference * difference;
    }
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/// Vectors x and the index of the centre c last found nearest to each. Everything throws Error.
class CentreSample {
 public:
  virtual ~CentreSample() = default;
  /// Read the vectors again after a change.
  virtual void reload() = 0;
  /// Assign to each of the first n vectors the centre, of [centres][dim], with the least ‖c‖² / 2 − c·x; ties go to the
  /// first.
  ///
  /// \param distances  [n] ‖x − c‖²
  virtual void assign(int32_t n, std::span<const float> centres, float* distances) = 0;
  /// Move each centre to the mean of the first n vectors assigned to it, and count these; a centre without vectors
  /// stays. Sums have a fixed order.
  virtual void move_to_means(int32_t n, std::span<float> centres, std::span<int32_t> counts) = 0;
};

}  // namespace kvq
