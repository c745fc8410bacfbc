#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "model.h"

namespace planning_test {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

/// Choices whose options have integer costs, which add up exactly.
struct Choices {
  std::vector<int32_t> counts;
  std::vector<double> bytes, seconds, loss;

  explicit Choices(uint64_t seed) {
    kvq_test::Random random(seed);
    counts.resize(4);
    for (int32_t& count : counts) {
      count = random.integer(2, 4);
      for (int32_t i = 0; i < count; ++i) {
        bytes.push_back(random.integer(1, 30));
        seconds.push_back(random.integer(1, 30));
        loss.push_back(random.integer(1, 30));
      }
    }
  }

  kvq_plan_problem problem() const {
    auto problem = kvq::initialised<kvq_plan_problem>();
    problem.n_choices = static_cast<int32_t>(counts.size());
    problem.option_counts = counts.data();
    problem.bytes = bytes.data();
    problem.seconds = seconds.data();
    problem.loss = loss.data();
    problem.tolerance = 0.0;
    return problem;
  }

  /// Smallest loss of all plans within the limits; infinity if there is none.
  double least_loss(double max_bytes, double max_seconds, size_t choice = 0, size_t first = 0) const {
    if (max_bytes < 0.0 || max_seconds < 0.0) return kNever;
    if (choice == counts.size()) return 0.0;
    double least = kNever;
    const size_t end = first + static_cast<size_t>(counts[choice]);
    for (size_t i = first; i < end; ++i) {
      least = std::min(least, loss[i] + least_loss(max_bytes - bytes[i], max_seconds - seconds[i], choice + 1, end));
    }
    return least;
  }
};

}  // namespace

TEST_CASE("a solved plan loses as little as any") {
  const kvq::Context context;
  int n_solved = 0, n_refused = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Choices choices(seed);
    kvq_plan_problem problem = choices.problem();
    problem.max_bytes = static_cast<double>(20 + seed);
    problem.max_seconds = 45.0;
    std::array<int32_t, 4> chosen{};
    const double least = choices.least_loss(problem.max_bytes, problem.max_seconds);
    if (least == kNever) {
      CHECK_FAILS(KVQ_E_LIMIT, "no plan", kvq::Plan::solve(context, problem, chosen));
      ++n_refused;
      continue;
    }
    const kvq_plan_costs costs = kvq::Plan::solve(context, problem, chosen);
    CHECK(costs.loss == least);
    CHECK(costs.bound <= least);
    double bytes = 0.0;
    for (size_t choice = 0, first = 0; choice < chosen.size(); ++choice) {
      bytes += choices.bytes[first + static_cast<size_t>(chosen[choice])];
      first += static_cast<size_t>(choices.counts[choice]);
    }
    CHECK(costs.bytes == bytes);
    ++n_solved;
  }
  CHECK(n_solved > 20);
  CHECK(n_refused > 5);
  std::array<int32_t, 3> few{};
  CHECK_FAILS(KVQ_E_ARGUMENT, "n is 3", kvq::Plan::solve(context, Choices(1).problem(), few));
}

TEST_CASE("rates take all bits, and more where more is lost") {
  const std::array weights{100.0, 300.0}, sensitivities{16.0, 3.0};
  std::array<double, 2> bits{};
  const double loss = kvq::Plan::rates(weights, sensitivities, 0.0, 1200.0, bits);
  CHECK(100.0 * bits[0] + 300.0 * bits[1] == doctest::Approx(1200.0));
  CHECK(bits[0] - bits[1] == doctest::Approx(2.0));  // log2(16 : 3 · 100 : 300) / 2
  CHECK(loss == doctest::Approx(16.0 * std::exp2(-2.0 * bits[0]) + 3.0 * std::exp2(-2.0 * bits[1])));
  CHECK_FAILS(KVQ_E_ARGUMENT, "bits", kvq::Plan::rates(weights, sensitivities, 0.0, 1200.0, std::span(bits).first(1)));
}

TEST_CASE("groups of matrices that are faster together") {
  const kvq::Context context;
  const std::array<int32_t, 3> groups{1, 2, 3};
  const std::array bytes{8.0, 4.0, 8.0, 4.0}, loss{0.0, 1.0, 0.0, 2.0};
  const std::array seconds{3.0, 2.0, 3.0, 2.0, 4.0, 3.0};
  auto options = kvq::initialised<kvq_plan_fusion_options>();
  options.n_members = 2;
  options.n_schemes = 2;
  options.n_groups = 3;
  options.groups = groups.data();
  options.bytes = bytes.data();
  options.loss = loss.data();
  options.seconds = seconds.data();
  const kvq::PlanFusion fusion(context, options);
  std::map<double, double> seconds_by_loss;
  for (int32_t i = 0; i < fusion.describe().n_groupings; ++i) {
    const kvq_plan_grouping_info one = fusion.describe_grouping(i);
    seconds_by_loss[one.loss] = one.seconds;
  }
  // Fuse both in one scheme, or give only the first the smaller one: the second saves as much and loses more.
  CHECK(seconds_by_loss == std::map<double, double>{{0.0, 4.0}, {1.0, 5.0}, {3.0, 3.0}});
  CHECK_FAILS(KVQ_E_ARGUMENT, "index is -1", fusion.describe_grouping(-1));
}

TEST_CASE("a plan is a file, and a cache is made from it") {
  const kvq::Context context;
  const std::array names{"up", "down"}, schemes{"tcx-3", "nuq-4"};
  const kvq::Policy policy = kvq::Policy::load(context, "int4");
  auto content = kvq::initialised<kvq_plan_content>();
  content.n_matrices = 2;
  content.names = names.data();
  content.schemes = schemes.data();
  content.policy = policy;
  content.loss = 0.25;
  content.note = "by hand";
  const std::string yaml = kvq::Plan(context, content).save();
  const kvq::Plan plan = kvq::Plan::load(context, yaml);
  CHECK(plan.save() == yaml);
  CHECK(plan.describe().loss == 0.25);
  CHECK(std::string(plan.describe().note) == "by hand");
  CHECK(std::string(plan.describe_matrix(1).name) == "down");
  CHECK(std::string(plan.scheme("up")) == "tcx-3");
  CHECK(plan.scheme("gate") == nullptr);
  const kvq::Cache cache(context, small_options(), plan.policy());
  CHECK(std::string(cache.describe_layer(0).formats) == "int4");
  CHECK_FAILS(KVQ_E_FORMAT, "line 2", kvq::Plan::load(context, "version: 1\nweights: 5"));
}

TEST_CASE("what a cache will take is known before anything is in it") {
  const kvq::Context context;
  const kvq::Cache cache = small_cache(context, "int4");
  const kvq_usage expected = cache.predict_usage(1, 200, 0);
  kvq::Sequence sequence(cache);
  sequence.reserve(200);
  fill(sequence, 200);
  CHECK(cache.usage().total_bytes == expected.total_bytes);
  CHECK_FAILS(KVQ_E_ARGUMENT, "sequences is 0", cache.predict_usage(0, 200, 0));
}

}  // namespace planning_test
