#pragma once

#include <cstdint>

namespace kvq::centres {

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

}  // namespace kvq::centres
