// Bits of each matrix for ideal codes (theorem 3.1 of Q-Palette).
#pragma once

#include <span>

namespace kvq::solver {

/// Matrices whose weights are Gaussian after a rotation: with b bits per weight, the squared error of every code is at
/// least 2^(−2b) of the weights' squares, so the loss is at least Σ sensitivity · 2^(−2b).
struct Rates {
  std::span<const double> weights;        // of each matrix, above 0
  std::span<const double> sensitivities;  // loss of each at a squared error of 1, not negative
  double least_bits = 0.0;                // of a weight
  double total_bits = 0.0;                // of all weights, at least least_bits each
};

/// Find the bits per weight of each matrix that minimise the loss.
/// \returns that loss.
double best_rates(const Rates& rates, std::span<double> bits);

}  // namespace kvq::solver
