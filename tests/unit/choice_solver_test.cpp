// The multiple-choice knapsack against brute force on small problems, and against GLPK on larger ones.
#include "solver/choice_solver.h"

#include "core/error.h"

#include <doctest/doctest.h>
#if defined(KVQ_TEST_GLPK)
#include <glpk.h>
#endif

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace choice_solver_test {

using namespace kvq;
using namespace kvq::solver;

namespace {

struct Problem {
  Cost goal = kLoss;
  Costs limits = {kInfinity, kInfinity, kInfinity};
  std::vector<int32_t> counts;
  std::vector<Costs> options;

  ChoiceProblem view(double tolerance) const {
    return {.goal = goal, .limits = limits, .counts = counts, .options = options, .tolerance = tolerance};
  }
};

bool keeps(const Costs& sums, const Costs& limits) {
  for (size_t i = 0; i < kCosts; ++i) {
    if (sums[i] > limits[i]) return false;
  }
  return true;
}

/// Smallest goal of all solutions within the limits; infinity if there is none.
double brute_force(const Problem& problem, size_t choice = 0, size_t begin = 0, Costs sums = {}) {
  if (choice == problem.counts.size()) return keeps(sums, problem.limits) ? sums[problem.goal] : kInfinity;
  double best = kInfinity;
  const auto count = static_cast<size_t>(problem.counts[choice]);
  for (size_t i = begin; i < begin + count; ++i) {
    Costs next = sums;
    for (size_t cost = 0; cost < kCosts; ++cost) next[cost] += problem.options[i][cost];
    best = std::min(best, brute_force(problem, choice + 1, begin + count, next));
  }
  return best;
}

/// Small integers give many ties.
Problem small_problem(std::mt19937& random) {
  Problem problem;
  problem.goal = static_cast<Cost>(random() % kCosts);
  const auto choices = 1 + random() % 5;
  for (size_t i = 0; i < choices; ++i) {
    problem.counts.push_back(static_cast<int32_t>(1 + random() % 5));
    for (int32_t k = 0; k < problem.counts.back(); ++k) {
      problem.options.push_back(
          {static_cast<double>(random() % 20), static_cast<double>(random() % 20), static_cast<double>(random() % 20)});
    }
  }
  for (double& limit : problem.limits) {
    if (random() % 3 != 0) limit = static_cast<double>(random() % (12 * choices));
  }
  return problem;
}

/// Matrices like those of a model with `layers` layers: bytes, times and losses of 40 schemes.
Problem model_problem(size_t layers, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Problem problem;
  for (size_t i = 0; i < 7 * layers; ++i) {
    const double weights = std::array{16777216.0, 4194304.0, 58720256.0}[random() % 3];
    const double sensitivity = std::exp(1.5 * normal(random));
    problem.counts.push_back(40);
    for (int k = 0; k < 40; ++k) {
      const double bits = 1.5 + k % 20 * 0.25;
      const double family = k < 20 ? 1.0 : 1.3;
      problem.options.push_back({std::floor(weights * bits / 8.0) + 64.0,
                                 weights * (0.3 + bits) * 1e-12 * (k < 20 ? 1.5 : 1.0) * std::exp(0.1 * normal(random)),
                                 sensitivity * family * std::exp2(-2.0 * bits) * std::exp(0.05 * normal(random))});
    }
  }
  return problem;
}

double sum_at_bits(const Problem& problem, Cost cost, int option) {
  double sum = 0.0;
  for (size_t i = 0; i < problem.options.size(); i += 40) sum += problem.options[i + static_cast<size_t>(option)][cost];
  return sum;
}

#if defined(KVQ_TEST_GLPK)
/// The optimum of GLPK's branch and cut, to 0.01 %.
double glpk_optimum(const Problem& problem) {
  glp_term_out(GLP_OFF);
  glp_prob* program = glp_create_prob();
  glp_set_obj_dir(program, GLP_MIN);
  const auto choices = static_cast<int>(problem.counts.size());
  const auto options = static_cast<int>(problem.options.size());
  glp_add_rows(program, choices + static_cast<int>(kCosts));
  glp_add_cols(program, options);
  // One option of each choice, and costs in units of their limit.
  std::vector<int> rows(1);
  std::vector<int> columns(1);
  std::vector<double> values(1);
  int next = 1;
  for (int i = 1; i <= choices; ++i) {
    glp_set_row_bnds(program, i, GLP_FX, 1.0, 1.0);
    for (int k = 0; k < problem.counts[static_cast<size_t>(i - 1)]; ++k, ++next) {
      const Costs& costs = problem.options[static_cast<size_t>(next - 1)];
      glp_set_col_kind(program, next, GLP_BV);
      glp_set_obj_coef(program, next, costs[problem.goal]);
      rows.push_back(i);
      columns.push_back(next);
      values.push_back(1.0);
      for (size_t cost = 0; cost < kCosts; ++cost) {
        if (std::isinf(problem.limits[cost])) continue;
        rows.push_back(choices + 1 + static_cast<int>(cost));
        columns.push_back(next);
        values.push_back(costs[cost] / problem.limits[cost]);
      }
    }
  }
  for (size_t cost = 0; cost < kCosts; ++cost) {
    const bool is_limited = !std::isinf(problem.limits[cost]);
    glp_set_row_bnds(program, choices + 1 + static_cast<int>(cost), is_limited ? GLP_UP : GLP_FR, 0.0, 1.0);
  }
  glp_load_matrix(program, static_cast<int>(values.size()) - 1, rows.data(), columns.data(), values.data());
  glp_iocp parameters;
  glp_init_iocp(&parameters);
  parameters.presolve = GLP_ON;
  parameters.mip_gap = 1e-4;
  parameters.tm_lim = 20000;
  glp_intopt(program, &parameters);
  const double optimum = glp_mip_status(program) == GLP_UNDEF ? kInfinity : glp_mip_obj_val(program);
  glp_delete_prob(program);
  return optimum;
}
#endif

}  // namespace

TEST_CASE("plans of small problems are as good as the best of all") {
  Allocator allocator({}, 0);
  std::mt19937 random(1);
  int kept = 0;
  for (int i = 0; i < 4000; ++i) {
    CAPTURE(i);
    const Problem problem = small_problem(random);
    const double best = brute_force(problem);
    if (std::isinf(best)) {
      CHECK_THROWS_AS(solve(allocator, problem.view(0.0)), Error);
      continue;
    }
    ++kept;
    const Solution solution = solve(allocator, problem.view(0.0));
    REQUIRE(solution.sums[problem.goal] == best);
    REQUIRE(solution.bound == doctest::Approx(best).epsilon(1e-9));
    REQUIRE(keeps(solution.sums, problem.limits));
    Costs sums{};
    size_t begin = 0;
    for (size_t choice = 0; choice < problem.counts.size(); ++choice) {
      for (size_t cost = 0; cost < kCosts; ++cost) {
        sums[cost] += problem.options[begin + static_cast<size_t>(solution.chosen[choice])][cost];
      }
      begin += static_cast<size_t>(problem.counts[choice]);
    }
    REQUIRE(sums == solution.sums);
  }
  CHECK(kept > 1000);
  CHECK(kept < 3000);
}

TEST_CASE("plans of a model's size are within 0.1 % of GLPK's optimum") {
  Allocator allocator({}, 0);
  for (const uint32_t seed : {1U, 2U, 3U}) {
    for (const bool timed : {false, true}) {
      CAPTURE(seed);
      CAPTURE(timed);
      Problem problem = model_problem(timed ? 4 : 8, seed);
      problem.limits[kBytes] = sum_at_bits(problem, kBytes, 6);  // 3 bits a weight
      if (timed) problem.limits[kSeconds] = 0.95 * sum_at_bits(problem, kSeconds, 26);
      const Solution solution = solve(allocator, problem.view(1e-4));
      CHECK(solution.sums[kBytes] <= problem.limits[kBytes]);
      CHECK(solution.sums[kSeconds] <= problem.limits[kSeconds]);
      CHECK(solution.sums[kLoss] <= solution.bound * 1.001);
#if defined(KVQ_TEST_GLPK)
      const double optimum = glpk_optimum(problem);
      CHECK(solution.sums[kLoss] <= optimum * 1.001);
      CHECK(solution.bound <= optimum * (1.0 + 1e-9));
#endif
    }
  }
#if !defined(KVQ_TEST_GLPK)
  MESSAGE("skipped: comparison with GLPK's optimum, which this build is without");
#endif
}

TEST_CASE("each cost can be the goal, with limits of the others") {
  Allocator allocator({}, 0);
  Problem problem = model_problem(2, 4);
  const Solution free = solve(allocator, problem.view(1e-4));
  problem.goal = kBytes;
  problem.limits[kLoss] = 0.3;
  const Solution small = solve(allocator, problem.view(1e-4));
  CHECK(small.sums[kLoss] <= 0.3);
  // The smallest solution's cost suffices for the same loss, and slightly less does not.
  problem.goal = kLoss;
  problem.limits = {small.sums[kBytes], kInfinity, kInfinity};
  CHECK(solve(allocator, problem.view(1e-4)).sums[kLoss] <= 0.3 * (1.0 + 1e-4));
  problem.limits[kBytes] = 0.999 * small.bound;
  CHECK(solve(allocator, problem.view(1e-4)).bound > 0.3 * (1.0 - 1e-4));
  CHECK(free.sums[kLoss] < 0.3);
}

TEST_CASE("a limit that nothing keeps is named with what is missing") {
  Allocator allocator({}, 0);
  Problem problem;
  problem.counts = {2, 1};
  problem.options = {{10, 5, 1}, {20, 1, 0}, {5, 5, 5}};
  const auto message = [&] {
    try {
      solve(allocator, problem.view(0.0));
    } catch (const Error& error) {
      CHECK(error.status() == KVQ_E_LIMIT);
      return std::string(error.what());
    }
    return std::string();
  };
  problem.limits[kBytes] = 12;
  CHECK(message() == "max_bytes is 12, but no plan takes less than 15: 3 more than there is");
  problem.limits = {kInfinity, kInfinity, 4};
  CHECK(message() == "max_loss is 4, but no plan takes less than 5: 1 more than there is");
  problem.limits = {16, 7, kInfinity};  // either, not both
  CHECK(message() == "no plan was found that keeps max_bytes 16, max_seconds 7 and max_loss inf together");
}

}  // namespace choice_solver_test
