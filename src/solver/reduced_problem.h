// Problem reduced to its undominated options.
#pragma once

#include "solver/choice_solver.h"
#include "solver/pareto.h"

namespace kvq::solver {

/// Option of a choice. `use` is 0 for a resource without limit.
struct Alternative {
  double goal;
  Amounts use;
  int32_t option;  // its number
};

/// Undominated options of every choice.
struct ReducedProblem {
  ReducedProblem(Allocator& allocator, const ChoiceProblem& problem);

  size_t choices() const { return begins.size() - 1; }
  std::span<const Alternative> choice(size_t i) const {
    return std::span(alternatives).subspan(begins[i], begins[i + 1] - begins[i]);
  }

  Amounts limits{};  // infinity: none
  Vector<Alternative> alternatives;
  Vector<size_t> begins;  // [choices + 1]
};

/// Relative rounding of sums in another order.
inline constexpr double kRounding = 1e-12;

inline bool keeps(const Amounts& used, const Amounts& limits) {
  return used[0] <= limits[0] * (1.0 + kRounding) && used[1] <= limits[1] * (1.0 + kRounding);
}

/// One alternative of every choice.
struct Selection {
  Selection(Allocator& allocator, size_t choices) : chosen(choices, 0, allocator) {}

  void add(const Alternative& each) {
    goal += each.goal;
    for (size_t i = 0; i < kResources; ++i) used[i] += each.use[i];
  }
  /// Sums of the chosen alternatives.
  void sum_up(const ReducedProblem& problem) {
    goal = 0.0;
    used = {};
    for (size_t i = 0; i < chosen.size(); ++i) add(problem.choice(i)[chosen[i]]);
  }

  Vector<uint32_t> chosen;  // [choices]
  double goal = 0.0;
  Amounts used{};
};

}  // namespace kvq::solver
