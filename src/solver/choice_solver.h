// Multiple-choice knapsack: choose one option of every choice, minimise one sum and keep limits of others.
#pragma once

#include "core/memory.h"

#include <array>
#include <cstdint>
#include <limits>
#include <span>

namespace kvq::solver {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Costs of an option, and of a solution as the sum of its options.
enum Cost : uint8_t { kBytes, kSeconds, kLoss };
inline constexpr int kCosts = 3;
using Costs = std::array<double, kCosts>;

/// All costs are finite and not negative.
struct ChoiceProblem {
  Cost goal = kLoss;                // minimised
  Costs limits;                     // of sums; infinity: none. The goal's limit holds too
  std::span<const int32_t> counts;  // [choices] number of options, at least one
  std::span<const Costs> options;   // those of the first choice, then those of the second, …
  double tolerance = 1e-4;          // relative gap allowed between a solution's goal and the optimum
};

struct Solution {
  explicit Solution(Allocator& allocator) : chosen(allocator) {}

  Vector<int32_t> chosen;  // [choices], from 0
  Costs sums{};
  double bound = 0.0;  // lower bound of every solution's goal; at most this one's
};

/// Find a solution within the tolerance. If that takes too many states, `bound` says how far off it may be. Throws
/// KVQ_E_LIMIT, with what is missing, if no solution keeps the limits.
Solution solve(Allocator& allocator, const ChoiceProblem& problem);

}  // namespace kvq::solver
