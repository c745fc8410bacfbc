// Limits as prices: what no solution can fall short of.
#pragma once

#include "solver/reduced_problem.h"

namespace kvq::solver {

/// Prices of the two resources, and what they prove.
struct DualBound {
  Amounts prices{};
  double value = 0.0;  // no solution that keeps the limits has a smaller goal
};

/// What an alternative costs together with what it uses.
template <typename T>
inline double priced(const T& each, const Amounts& prices) {
  return each.goal + prices[0] * each.use[0] + prices[1] * each.use[1];
}

/// Searches prices whose bound is the highest, but for rounding.
class DualSearch {
 public:
  DualSearch(Allocator& allocator, const ReducedProblem& problem);

  /// The bound; larger than every goal if no solution keeps the limits by far.
  DualBound run();
  /// The best solution met on the way that keeps the limits; its goal is infinite if there was none.
  const Selection& best() const { return best_; }
  /// The one that goes with the bound, which need not keep them.
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
