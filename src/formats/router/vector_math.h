// Hot loops of routing and its training.
#pragma once

#include <array>
#include <cstddef>

namespace kvq {

/// Eight partial sums, which compilers keep in vectors: the same result on every machine.
template <typename Real>
Real dot_product(const Real* a, const Real* b, size_t n) {
  constexpr size_t kLanes = 8;
  std::array<Real, kLanes> sums{};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) sums[i % kLanes] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

/// out += factor · x
template <typename Real>
void add_scaled(Real factor, const Real* x, size_t n, Real* out) {
  for (size_t i = 0; i < n; ++i) out[i] += factor * x[i];
}

}  // namespace kvq
