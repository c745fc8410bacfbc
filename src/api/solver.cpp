#include "api/boundary.h"
#include "api/handles.h"
#include "solver/choice_solver.h"
#include "solver/fusion.h"
#include "solver/rate_bound.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

using namespace kvq;
using namespace kvq::api;

struct kvq_plan_fusion {
  kvq_plan_fusion(kvq_context& owner, int32_t n_members, const solver::FusionProblem& problem)
      : context(owner), members(n_members), options(solver::fuse(owner.allocator, problem)) {}

  Kept<kvq_context> context;
  int32_t members;
  Vector<solver::FusedOption> options;
};

namespace {

constexpr int32_t kMaxChoices = 1 << 20;
constexpr int64_t kMaxOptions = 1 << 24;
constexpr int32_t kMaxFusedSchemes = 1024;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

static_assert(int{KVQ_PLAN_BYTES} == int{solver::kBytes});
static_assert(int{KVQ_PLAN_SECONDS} == int{solver::kSeconds});
static_assert(int{KVQ_PLAN_LOSS} == int{solver::kLoss});
static_assert(KVQ_MAX_FUSED == solver::kMostMembers);

kvq_plan_problem default_problem() {
  kvq_plan_problem problem{};
  problem.goal = KVQ_PLAN_LOSS;
  problem.max_bytes = kInfinity;
  problem.max_seconds = kInfinity;
  problem.max_loss = kInfinity;
  problem.tolerance = 1e-4;
  return problem;
}

constexpr double kMost = std::numeric_limits<double>::max();

std::span<const int32_t> checked_counts(const kvq_plan_problem& problem) {
  require_range(problem.n_choices, 1, kMaxChoices, "problem->n_choices");
  require(problem.option_counts, "problem->option_counts");
  const std::span counts(problem.option_counts, static_cast<size_t>(problem.n_choices));
  int64_t all = 0;
  for (int32_t i = 0; i < problem.n_choices; ++i) {
    const int32_t count = counts[static_cast<size_t>(i)];
    if (count < 1) fail(KVQ_E_ARGUMENT, "problem->option_counts[%d] is %d, must be at least 1", i, count);
    all += count;
  }
  if (all > kMaxOptions) {
    fail(KVQ_E_ARGUMENT, "problem->option_counts add up to %lld, must be at most %lld", static_cast<long long>(all),
         static_cast<long long>(kMaxOptions));
  }
  return counts;
}

Vector<solver::Costs> checked_options(Allocator& allocator, const kvq_plan_problem& problem,
                                      std::span<const int32_t> counts) {
  const int64_t n = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  Vector<solver::Costs> options(static_cast<size_t>(n), solver::Costs{}, allocator);
  const auto take = [&](const double* given, solver::Cost cost, const char* name) {
    for (int64_t i = 0; given != nullptr && i < n; ++i) {
      require_amount(given[i], name, kMost, i);
      options[static_cast<size_t>(i)][cost] = given[i];
    }
  };
  take(problem.bytes, solver::kBytes, "problem->bytes");
  take(problem.seconds, solver::kSeconds, "problem->seconds");
  take(problem.loss, solver::kLoss, "problem->loss");
  return options;
}

solver::Costs checked_limits(const kvq_plan_problem& problem) {
  require_amount(problem.max_bytes, "problem->max_bytes", kInfinity);
  require_amount(problem.max_seconds, "problem->max_seconds", kInfinity);
  require_amount(problem.max_loss, "problem->max_loss", kInfinity);
  return {problem.max_bytes, problem.max_seconds, problem.max_loss};
}

std::span<const double> checked_numbers(const double* numbers, int32_t rows, int32_t columns, double most,
                                        const char* name) {
  require(numbers, name);
  const std::span given(numbers, static_cast<size_t>(rows) * static_cast<size_t>(columns));
  for (size_t i = 0; i < given.size(); ++i) require_amount(given[i], name, most, static_cast<int64_t>(i));
  return given;
}

/// Times by group number; infinity for absent groups.
Vector<double> seconds_of_groups(Allocator& allocator, const kvq_plan_fusion_options& options) {
  const int32_t all = (1 << options.n_members) - 1;
  const auto given =
      checked_numbers(options.seconds, options.n_groups, options.n_schemes, kInfinity, "options->seconds");
  const auto schemes = static_cast<size_t>(options.n_schemes);
  Vector<double> seconds(static_cast<size_t>(all) * schemes, kInfinity, allocator);
  int32_t seen = 0;
  for (int32_t i = 0; i < options.n_groups; ++i) {
    const int32_t group = options.groups[i];
    if (group < 1 || group > all) {
      fail(KVQ_E_ARGUMENT, "options->groups[%d] is %d, must be in [1, %d]", i, group, all);
    }
    for (int32_t k = 0; k < i; ++k) {
      if (options.groups[k] == group)
        fail(KVQ_E_ARGUMENT, "options->groups[%d] is %d, the same as groups[%d]", i, group, k);
    }
    seen |= group;
    const auto row = given.subspan(static_cast<size_t>(i) * schemes, schemes);
    std::copy(row.begin(), row.end(),
              seconds.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(group - 1) * schemes));
  }
  if (seen == all) return seconds;
  fail(KVQ_E_ARGUMENT, "options->groups has no group with member %d", std::countr_one(static_cast<uint32_t>(seen)));
}

solver::FusionProblem checked(const kvq_plan_fusion_options& options) {
  require_range(options.n_members, 1, KVQ_MAX_FUSED, "options->n_members");
  require_range(options.n_schemes, 1, kMaxFusedSchemes, "options->n_schemes");
  require_range(options.n_groups, 1, (1 << KVQ_MAX_FUSED) - 1, "options->n_groups");
  require(options.groups, "options->groups");
  return {.members = options.n_members,
          .schemes = options.n_schemes,
          .bytes = checked_numbers(options.bytes, options.n_members, options.n_schemes, kMost, "options->bytes"),
          .loss = checked_numbers(options.loss, options.n_members, options.n_schemes, kMost, "options->loss"),
          .seconds = {}};
}

}  // namespace

void kvq_plan_problem_init(kvq_plan_problem* problem, size_t size) { init_struct(problem, size, default_problem()); }

kvq_status kvq_plan_solve(kvq_context* context, const kvq_plan_problem* problem, int32_t* chosen, int32_t n,
                          kvq_plan_costs* costs, kvq_error* error) {
  return guarded(error, [&] {
    require(context, "context");
    const kvq_plan_problem given = read_struct(problem, default_problem(), "problem");
    require(chosen, "chosen");
    require_struct(costs, sizeof(uint32_t), "costs");
    require_range(given.goal, KVQ_PLAN_BYTES, KVQ_PLAN_LOSS, "problem->goal");
    require_range(given.reserved, 0, 0, "problem->reserved");
    require_within(given.tolerance, 0.0, 1.0, "problem->tolerance");
    const std::span<const int32_t> counts = checked_counts(given);
    require_range(n, given.n_choices, given.n_choices, "n");
    const Vector<solver::Costs> options = checked_options(context->allocator, given, counts);
    const solver::Solution solution = solver::solve(context->allocator, {.goal = static_cast<solver::Cost>(given.goal),
                                                                         .limits = checked_limits(given),
                                                                         .counts = counts,
                                                                         .options = options,
                                                                         .tolerance = given.tolerance});
    std::copy(solution.chosen.begin(), solution.chosen.end(), chosen);
    kvq_plan_costs found{};
    found.bytes = solution.sums[solver::kBytes];
    found.seconds = solution.sums[solver::kSeconds];
    found.loss = solution.sums[solver::kLoss];
    found.bound = solution.bound;
    write_struct(costs, found, "costs");
  });
}

void kvq_plan_fusion_options_init(kvq_plan_fusion_options* options, size_t size) {
  init_struct(options, size, kvq_plan_fusion_options{});
}

kvq_status kvq_plan_fusion_create(kvq_context* context, const kvq_plan_fusion_options* options,
                                  kvq_plan_fusion** result, kvq_error* error) {
  return created(result, error, [&] {
    require(context, "context");
    const kvq_plan_fusion_options given = read_struct(options, kvq_plan_fusion_options{}, "options");
    require(result, "result");
    solver::FusionProblem problem = checked(given);
    const Vector<double> seconds = seconds_of_groups(context->allocator, given);
    problem.seconds = seconds;
    return make_owned<kvq_plan_fusion>(context->allocator, *context, given.n_members, problem);
  });
}

kvq_status kvq_plan_fusion_describe(const kvq_plan_fusion* fusion, kvq_plan_fusion_info* info, kvq_error* error) {
  return guarded(error, [&] {
    require(fusion, "fusion");
    kvq_plan_fusion_info found{};
    found.n_members = fusion->members;
    found.n_groupings = static_cast<int32_t>(fusion->options.size());
    write_struct(info, found, "info");
  });
}

kvq_status kvq_plan_fusion_describe_grouping(const kvq_plan_fusion* fusion, int32_t index, kvq_plan_grouping_info* info,
                                             kvq_error* error) {
  return guarded(error, [&] {
    require(fusion, "fusion");
    require_range(index, 0, static_cast<int64_t>(fusion->options.size()) - 1, "index");
    const solver::FusedOption& option = fusion->options[static_cast<size_t>(index)];
    kvq_plan_grouping_info found{};
    found.bytes = option.costs[solver::kBytes];
    found.seconds = option.costs[solver::kSeconds];
    found.loss = option.costs[solver::kLoss];
    std::copy(option.groups.begin(), option.groups.end(), found.groups);
    std::copy(option.schemes.begin(), option.schemes.end(), found.schemes);
    write_struct(info, found, "info");
  });
}

void kvq_plan_fusion_destroy(kvq_plan_fusion* fusion) { destroy(fusion); }

kvq_status kvq_plan_rates(int32_t n, const double* weights, const double* sensitivities, double least_bits,
                          double total_bits, double* bits, double* loss, kvq_error* error) {
  return guarded(error, [&] {
    require_range(n, 1, kMaxChoices, "n");
    const solver::Rates rates{.weights = checked_numbers(weights, n, 1, kMost, "weights"),
                              .sensitivities = checked_numbers(sensitivities, n, 1, kMost, "sensitivities"),
                              .least_bits = least_bits,
                              .total_bits = total_bits};
    require_amount(least_bits, "least_bits");
    require_amount(total_bits, "total_bits");
    require(bits, "bits");
    require(loss, "loss");
    double all = 0.0;
    for (int32_t i = 0; i < n; ++i) {
      if (weights[i] == 0.0) fail(KVQ_E_ARGUMENT, "weights[%d] is 0, must be above 0", i);
      all += weights[i];
    }
    if (total_bits < least_bits * all) {
      fail(KVQ_E_ARGUMENT, "total_bits is %g, must be at least %g: least_bits of each weight", total_bits,
           least_bits * all);
    }
    *loss = solver::best_rates(rates, {bits, static_cast<size_t>(n)});
  });
}
