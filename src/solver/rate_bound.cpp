#include "solver/rate_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvq::solver {
namespace {

constexpr int kRateBisections = 200;

/// Bits of matrix i if the constant is `level`: max(least, ½ log2(a / weights) + level).
double bits_at(const Rates& rates, size_t i, double level) {
  if (rates.sensitivities[i] <= 0.0) return rates.least_bits;
  return std::max(rates.least_bits, 0.5 * std::log2(rates.sensitivities[i] / rates.weights[i]) + level);
}

double total_at(const Rates& rates, double level) {
  double total = 0.0;
  for (size_t i = 0; i < rates.weights.size(); ++i) total += rates.weights[i] * bits_at(rates, i, level);
  return total;
}

}  // namespace

double best_rates(const Rates& rates, std::span<double> bits) {
  double low = 0.0;
  double high = 0.0;
  for (size_t i = 0; i < bits.size(); ++i) {
    if (rates.sensitivities[i] <= 0.0) continue;
    const double own = 0.5 * std::log2(rates.sensitivities[i] / rates.weights[i]);
    low = std::min(low, rates.least_bits - own);
    high = std::max(high, rates.total_bits / rates.weights[i] - own);
  }
  // With `high`, a single matrix takes all bits there are.
  for (int i = 0; i < kRateBisections && low < high; ++i) {
    const double middle = 0.5 * (low + high);
    if (middle <= low || middle >= high) break;
    (total_at(rates, middle) > rates.total_bits ? high : low) = middle;
  }
  double loss = 0.0;
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = bits_at(rates, i, low);
    loss += rates.sensitivities[i] * std::exp2(-2.0 * bits[i]);
  }
  return loss;
}

}  // namespace kvq::solver
