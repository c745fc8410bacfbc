// How many bits each matrix would get if codes were as good as codes can be (theorem 3.1 of Q-Palette).
#pragma once

#include <span>

namespace kvq::solver {

/// Matrices whose weights are Gaussian after a rotation: with b bits a weight, no code leaves a squared error below
/// 2^(−2b) of the weights' squares, so no solution loses less than Σ sensitivity · 2^(−2b).
struct Rates {
  std::span<const double> weights;        // of each matrix, above 0
  std::span<const double> sensitivities;  // loss of each at a squared error of 1, not negative
  double least_bits = 0.0;                // of a weight
  double total_bits = 0.0;                // of all weights, at least least_bits each
};

/// The bits of a weight of each matrix with which the loss is smallest.
/// \returns that loss.
double best_rates(const Rates& rates, std::span<double> bits);

}  // namespace kvq::solver
