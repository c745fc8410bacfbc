#include "solver/rate_bound.h"

#include "solver/choice_solver.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace rate_bound_test {

using namespace kvq;
using namespace kvq::solver;

namespace {

double sum_of_products(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double loss_of(const Rates& rates, std::span<const double> bits) {
  double loss = 0.0;
  for (size_t i = 0; i < bits.size(); ++i) loss += rates.sensitivities[i] * std::exp2(-2.0 * bits[i]);
  return loss;
}

}  // namespace

TEST_CASE("the best rates spend all bits, and no exchange between two matrices loses less") {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  for (const double least : {0.0, 1.5}) {
    for (int round = 0; round < 50; ++round) {
      std::vector<double> weights;
      std::vector<double> sensitivities;
      for (int i = 0; i < 12; ++i) {
        weights.push_back(std::exp(10.0 + 2.0 * normal(random)));
        sensitivities.push_back(i == 5 ? 0.0 : std::exp(2.0 * normal(random)));
      }
      const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
      const Rates rates{weights, sensitivities, least, 2.75 * all};
      std::vector<double> bits(weights.size());
      const double loss = best_rates(rates, bits);
      CHECK(sum_of_products(weights, bits) == doctest::Approx(rates.total_bits).epsilon(1e-9));
      CHECK(loss == doctest::Approx(loss_of(rates, bits)).epsilon(1e-12));
      for (size_t from = 0; from < bits.size(); ++from) {
        for (size_t to = 0; to < bits.size(); ++to) {
          std::vector<double> other = bits;
          const double moved = 0.01 * std::min(weights[from], weights[to]);
          other[from] -= moved / weights[from];
          other[to] += moved / weights[to];
          if (other[from] < least) continue;
          CHECK(loss_of(rates, other) >= loss * (1.0 - 1e-9));
        }
      }
    }
  }
}

TEST_CASE("no plan of quantizers loses less than the best rates") {
  Allocator allocator({}, 0);
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::vector<double> weights;
  std::vector<double> sensitivities;
  std::vector<int32_t> counts;
  std::vector<Costs> options;
  for (int i = 0; i < 40; ++i) {
    weights.push_back(i % 3 == 0 ? 4096.0 : 16384.0);
    sensitivities.push_back(std::exp(normal(random)));
    counts.push_back(15);
    for (int k = 0; k < 15; ++k) {
      const double bits = 1.5 + 0.25 * k;
      // 7 % above the smallest possible error.
      options.push_back({weights.back() * bits / 8.0, 0.0, sensitivities.back() * 1.07 * std::exp2(-2.0 * bits)});
    }
  }
  for (const double mean : {2.0, 2.5, 3.25, 4.0}) {
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<double> bits(weights.size());
    const double bound = best_rates({weights, sensitivities, 1.5, mean * all}, bits);
    const double infinity = std::numeric_limits<double>::infinity();
    const ChoiceProblem problem{.goal = kLoss,
                                .limits = {mean * all / 8.0, infinity, infinity},
                                .counts = counts,
                                .options = options,
                                .tolerance = 1e-4};
    const double loss = solve(allocator, problem).sums[kLoss];
    CHECK(loss >= bound);
    CHECK(loss <= bound * 1.12);  // 7 % plus the loss of quarter-bit steps
  }
}

TEST_CASE("a single matrix takes all bits there are") {
  const std::vector<double> weights = {64.0};
  const std::vector<double> sensitivities = {3.0};
  std::vector<double> bits(1);
  CHECK(best_rates({weights, sensitivities, 0.0, 160.0}, bits) == doctest::Approx(3.0 / 32.0));
  CHECK(bits[0] == doctest::Approx(2.5));
}

}  // namespace rate_bound_test
