#include "solver/reduced_problem.h"

#include <cmath>

namespace kvq::solver {

ReducedProblem::ReducedProblem(Allocator& allocator, const ChoiceProblem& problem)
    : alternatives(allocator), begins(allocator) {
  std::array<size_t, kResources> costs{};
  size_t n = 0;
  for (size_t cost = 0; cost < kCosts; ++cost) {
    if (cost == problem.goal) continue;
    limits[n] = problem.limits[cost];
    costs[n++] = cost;
  }
  begins.reserve(problem.counts.size() + 1);
  begins.push_back(0);
  Vector<Alternative> of_choice(allocator);
  size_t next = 0;
  for (const int32_t count : problem.counts) {
    of_choice.clear();
    for (int32_t option = 0; option < count; ++option) {
      const Costs& given = problem.options[next++];
      Alternative& each = of_choice.emplace_back(Alternative{given[problem.goal], {}, option});
      for (size_t i = 0; i < kResources; ++i) each.use[i] = std::isinf(limits[i]) ? 0.0 : given[costs[i]];
    }
    keep_undominated(allocator, of_choice);
    alternatives.insert(alternatives.end(), of_choice.begin(), of_choice.end());
    begins.push_back(alternatives.size());
  }
}

}  // namespace kvq::solver
