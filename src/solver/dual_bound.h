// Lagrangian lower bound: limits as prices.
#pragma once

#include "solver/reduced_problem.h"

namespace kvq::solver {

/// Prices of the two resources, and the bound they prove.
struct DualBound {
  Amounts prices{};
  double value = 0.0;  // lower bound of the goal of solutions that keep the limits
};

/// Goal of an alternative plus the price of its use.
template <typename T>
inline double priced(const T& each, const Amounts& prices) {
  return each.goal + prices[0] * each.use[0] + prices[1] * each.use[1];
}

/// Searches the prices with the highest bound, up to rounding.
class DualSearch {
 public:
  DualSearch(Allocator& allocator, const ReducedProblem& problem);

  /// Find the bound; larger than every goal if the limits are far out of reach.
  DualBound run();
  /// Best selection met that keeps the limits; infinite goal if none.
  const Selection& best() const { return best_; }
  /// Selection of the bound, which need not keep the limits.
  const Selection& last() const { return last_; }

 private:
  double evaluate(const Amounts& prices);
  double highest_of_first(double second);
  double highest();

  const ReducedProblem& problem_;
  double greatest_goal_ = 0.0;
  DualBound bound_;
  Selection selection_;
  Selection best_;
  Selection last_;
};

}  // namespace kvq::solver
