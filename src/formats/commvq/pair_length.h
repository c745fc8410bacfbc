// Lengths of channel pairs.
#pragma once

#include <cmath>

namespace kvq {

/// √(x² + y²), rounded like std::hypot of glibc 2.35, which would make the library need that version.
inline float pair_length(float x, float y) {
  const double real = x;
  const double imaginary = y;
  return static_cast<float>(std::sqrt(real * real + imaginary * imaginary));
}

}  // namespace kvq
