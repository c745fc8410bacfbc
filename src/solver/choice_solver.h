// One option of every choice, so that one sum is as small as possible and others keep limits: a multiple-choice
// knapsack.
#pragma once

#include "core/memory.h"

#include <array>
#include <cstdint>
#include <limits>
#include <span>

namespace kvq::solver {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What an option, and a solution as the sum of its options, costs.
enum Cost : uint8_t { kBytes, kSeconds, kLoss };
inline constexpr int kCosts = 3;
using Costs = std::array<double, kCosts>;

/// All costs are finite and not negative.
struct ChoiceProblem {
  Cost goal = kLoss;                // as small as possible
  Costs limits;                     // of sums; infinity: none. That of the goal holds, too
  std::span<const int32_t> counts;  // [choices] options of each, at least one
  std::span<const Costs> options;   // those of the first choice, then those of the second, …
  double tolerance = 1e-4;          // a solution's goal may exceed the smallest there is by this share of it
};

struct Solution {
  explicit Solution(Allocator& allocator) : chosen(allocator) {}

  Vector<int32_t> chosen;  // [choices], from 0
  Costs sums{};
  double bound = 0.0;  // no solution has a smaller goal; at most the goal of this one
};

/// A solution within the tolerance, unless it takes too many states to tell: then `bound` says how far off it may be.
/// Throws KVQ_E_LIMIT, with what is missing, if no solution keeps the limits.
Solution solve(Allocator& allocator, const ChoiceProblem& problem);

}  // namespace kvq::solver
