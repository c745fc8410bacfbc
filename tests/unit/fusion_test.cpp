#include "solver/fusion.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace fusion_test {

using namespace kvq;
using namespace kvq::solver;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Members {
  int32_t members;
  int32_t schemes;
  std::vector<double> bytes;
  std::vector<double> loss;
  std::vector<double> seconds;

  FusionProblem view() const { return {members, schemes, bytes, loss, seconds}; }
  size_t at(int32_t row, int32_t scheme) const { return static_cast<size_t>(row * schemes + scheme); }
};

Members random_members(std::mt19937& random) {
  Members made{static_cast<int32_t>(1 + random() % 4), static_cast<int32_t>(1 + random() % 4), {}, {}, {}};
  const auto fill = [&random](std::vector<double>& numbers, int32_t n) {
    for (int32_t i = 0; i < n; ++i) numbers.push_back(static_cast<double>(random() % 50));
  };
  fill(made.bytes, made.members * made.schemes);
  fill(made.loss, made.members * made.schemes);
  fill(made.seconds, ((1 << made.members) - 1) * made.schemes);
  for (double& each : made.seconds) {
    if (random() % 5 == 0) each = kInfinity;
  }
  return made;
}

/// Every assignment of a label to each member, and of a scheme to each label.
std::vector<Costs> all_costs(const Members& of) {
  std::vector<Costs> all;
  const auto power = [](int32_t base, int32_t exponent) {
    int32_t result = 1;
    for (int32_t i = 0; i < exponent; ++i) result *= base;
    return result;
  };
  for (int32_t labels = 0; labels < power(of.members, of.members); ++labels) {
    std::vector<int32_t> groups(static_cast<size_t>(of.members), 0);
    for (int32_t member = 0, rest = labels; member < of.members; ++member, rest /= of.members) {
      groups[static_cast<size_t>(rest % of.members)] |= 1 << member;
    }
    for (int32_t choice = 0; choice < power(of.schemes, of.members); ++choice) {
      Costs costs{};
      for (int32_t label = 0, rest = choice; label < of.members; ++label, rest /= of.schemes) {
        const int32_t group = groups[static_cast<size_t>(label)];
        const int32_t scheme = rest % of.schemes;
        if (group == 0) continue;
        costs[kSeconds] += of.seconds[of.at(group - 1, scheme)];
        for (int32_t member = 0; member < of.members; ++member) {
          if ((group >> member & 1) == 0) continue;
          costs[kBytes] += of.bytes[of.at(member, scheme)];
          costs[kLoss] += of.loss[of.at(member, scheme)];
        }
      }
      if (!std::isinf(costs[kSeconds])) all.push_back(costs);
    }
  }
  return all;
}

bool beats(const Costs& a, const Costs& b) { return a[0] <= b[0] && a[1] <= b[1] && a[2] <= b[2]; }

}  // namespace

TEST_CASE("groupings are all that no other one beats") {
  Allocator allocator({}, 0);
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    CAPTURE(round);
    const Members members = random_members(random);
    const std::vector<Costs> all = all_costs(members);
    const Vector<FusedOption> options = fuse(allocator, members.view());
    for (const Costs& costs : all) {
      REQUIRE(std::any_of(options.begin(), options.end(),
                          [&](const FusedOption& option) { return beats(option.costs, costs); }));
    }
    for (const FusedOption& option : options) {
      REQUIRE(std::find(all.begin(), all.end(), option.costs) != all.end());
      const auto is_better = [&](const Costs& costs) { return beats(costs, option.costs) && costs != option.costs; };
      REQUIRE(std::none_of(all.begin(), all.end(), is_better));
    }
    REQUIRE(std::is_sorted(options.begin(), options.end(),
                           [](const FusedOption& a, const FusedOption& b) { return a.costs[kLoss] < b.costs[kLoss]; }));
  }
}

TEST_CASE("what an option costs is what its groups and schemes cost") {
  Allocator allocator({}, 0);
  std::mt19937 random(12);
  for (int round = 0; round < 100; ++round) {
    const Members members = random_members(random);
    for (const FusedOption& option : fuse(allocator, members.view())) {
      Costs costs{};
      for (int32_t member = 0; member < members.members; ++member) {
        const int32_t group = option.groups[static_cast<size_t>(member)];
        const int32_t scheme = option.schemes[static_cast<size_t>(member)];
        REQUIRE((group >> member & 1) == 1);
        costs[kBytes] += members.bytes[members.at(member, scheme)];
        costs[kLoss] += members.loss[members.at(member, scheme)];
        if ((group & -group) == 1 << member) costs[kSeconds] += members.seconds[members.at(group - 1, scheme)];
      }
      REQUIRE(costs == option.costs);
    }
  }
}

}  // namespace fusion_test
