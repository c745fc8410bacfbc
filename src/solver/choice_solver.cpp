#include "solver/choice_solver.h"
#include "core/error.h"
#include "solver/searches.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvq::solver {
namespace {

constexpr std::array<const char*, kCosts> kLimitNames = {"max_bytes", "max_seconds", "max_loss"};

[[noreturn]] void fail_beyond(size_t cost, double limit, double least) {
  fail(KVQ_E_LIMIT, "%s is %.10g, but no plan takes less than %.10g: %.10g more than there is", kLimitNames[cost],
       limit, least, least - limit);
}

/// Throws unless each limit by itself can be kept.
void check_limits(const ChoiceProblem& problem) {
  Costs least{};
  size_t next = 0;
  for (const int32_t count : problem.counts) {
    Costs of_choice = problem.options[next];
    for (int32_t i = 0; i < count; ++i, ++next) {
      for (size_t cost = 0; cost < kCosts; ++cost) {
        of_choice[cost] = std::min(of_choice[cost], problem.options[next][cost]);
      }
    }
    for (size_t cost = 0; cost < kCosts; ++cost) least[cost] += of_choice[cost];
  }
  for (size_t cost = 0; cost < kCosts; ++cost) {
    if (least[cost] > problem.limits[cost] * (1.0 + kRounding)) fail_beyond(cost, problem.limits[cost], least[cost]);
  }
}

double excess(const Amounts& used, const Amounts& limits) {
  double sum = 0.0;
  for (size_t i = 0; i < kResources; ++i) {
    if (used[i] > limits[i] * (1.0 + kRounding)) sum += used[i] / limits[i] - 1.0;
  }
  return sum;
}

/// Improve a selection by changing one choice at a time: first to keep the limits, then for a smaller goal.
void improve_by_changes(const ReducedProblem& problem, Selection& selection) {
  struct Change {
    double excess;
    double goal;
    size_t choice;
    uint32_t to;
  };
  while (true) {
    Change best{excess(selection.used, problem.limits), selection.goal, 0, UINT32_MAX};
    for (size_t i = 0; i < problem.choices(); ++i) {
      const std::span<const Alternative> choice = problem.choice(i);
      const Alternative& now = choice[selection.chosen[i]];
      for (uint32_t k = 0; k < choice.size(); ++k) {
        const Amounts used = {selection.used[0] - now.use[0] + choice[k].use[0],
                              selection.used[1] - now.use[1] + choice[k].use[1]};
        const Change change{excess(used, problem.limits), selection.goal - now.goal + choice[k].goal, i, k};
        const bool is_better = change.excess < best.excess || (change.excess == best.excess && change.goal < best.goal);
        if (is_better && k != selection.chosen[i]) best = change;
      }
    }
    if (best.to == UINT32_MAX) return;
    selection.chosen[best.choice] = best.to;
    selection.sum_up(problem);
  }
}

Solution solution_of(Allocator& allocator, const ChoiceProblem& problem, const ReducedProblem& reduced,
                     const Selection& selection, double bound) {
  Solution solution(allocator);
  size_t begin = 0;
  for (size_t i = 0; i < reduced.choices(); ++i) {
    const int32_t option = reduced.choice(i)[selection.chosen[i]].option;
    solution.chosen.push_back(option);
    for (size_t cost = 0; cost < kCosts; ++cost) {
      solution.sums[cost] += problem.options[begin + static_cast<size_t>(option)][cost];
    }
    begin += static_cast<size_t>(problem.counts[i]);
  }
  solution.bound = std::clamp(bound, 0.0, solution.sums[problem.goal]);
  return solution;
}

}  // namespace

Solution solve(Allocator& allocator, const ChoiceProblem& problem) {
  check_limits(problem);
  const ReducedProblem reduced(allocator, problem);
  auto [bound, best, near] = search_prices(allocator, reduced);
  improve_by_changes(reduced, near);
  if (keeps(near.used, reduced.limits) && near.goal < best.goal) best = near;
  if (!std::isinf(best.goal)) improve_by_changes(reduced, best);

  // Solutions within the tolerance of the best known are not searched.
  const bool is_kept = !std::isinf(best.goal);
  const double wanted = is_kept ? best.goal * (1.0 - problem.tolerance) : kInfinity;
  double proven = bound.value;
  if (bound.value < wanted) proven = std::max(proven, search_states(allocator, reduced, bound, wanted, best));
  if (std::isinf(best.goal)) {
    fail(KVQ_E_LIMIT, "no plan was found that keeps max_bytes %.10g, max_seconds %.10g and max_loss %.10g together",
         problem.limits[kBytes], problem.limits[kSeconds], problem.limits[kLoss]);
  }
  Solution solution = solution_of(allocator, problem, reduced, best, proven);
  const double limit = problem.limits[problem.goal];
  if (solution.sums[problem.goal] > limit * (1.0 + kRounding)) {
    fail_beyond(problem.goal, limit, solution.sums[problem.goal]);
  }
  return solution;
}

}  // namespace kvq::solver
