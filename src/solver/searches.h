// Searches of solutions: by prices of the limits, which also prove a bound, and over all sums that a bound leaves.
#pragma once

#include "solver/reduced_problem.h"

namespace kvq::solver {

/// Prices of the two resources, and the bound they prove.
struct DualBound {
  Amounts prices{};
  double value = -kInfinity;  // lower bound of the goal of solutions that keep the limits
};

/// Goal of an alternative plus the price of its use.
template <typename T>
inline double priced(const T& each, const Amounts& prices) {
  return each.goal + prices[0] * each.use[0] + prices[1] * each.use[1];
}

struct PricedSelections {
  PricedSelections(Allocator& allocator, size_t choices) : best(allocator, choices), last(allocator, choices) {}

  DualBound bound;  // larger than every goal if the limits are far out of reach
  Selection best;   // best selection met that keeps the limits; infinite goal if none
  Selection last;   // selection of the bound, which need not keep the limits
};

/// Find the prices with the highest Lagrangian lower bound, up to rounding.
PricedSelections search_prices(Allocator& allocator, const ReducedProblem& problem);

/// Dynamic programming over choices, by all sums that may still lead to a goal below `wanted`. Replaces `best` by the
/// best such solution, if there is any.
/// \returns a lower bound of all goals: that of the solution, or `wanted` without one; less only if there were too
///          many states.
double search_states(Allocator& allocator, const ReducedProblem& problem, const DualBound& bound, double wanted,
                     Selection& best);

}  // namespace kvq::solver
