// The gradient of a network and its code, against finite differences of the paper's definitions in double.
#include "training/commvq/value_network_gradient.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <random>
#include <vector>

#include "training/adamw.h"

namespace value_network_gradient_test {
namespace {

using namespace kvq;

constexpr size_t kBlocks = 2;
constexpr size_t kTokens = kBlocks * kValueBlock;
constexpr NetworkLayout kLayout{.width = 6, .hidden = 9, .bits = 8};
constexpr double kTemperature = 0.7;

double gelu(double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x))); }

/// A problem small enough for finite differences.
struct Problem {
  explicit Problem(unsigned seed) : random(seed) {
    parameters = normals(kLayout.total(), 0.6);
    for (double& each : part(NetworkPart::kNormGain)) each += 1.0;
    noise = normals(kTokens * kLayout.outputs(), 1.0);
    for (const double each : normals(kTokens * kLayout.width, 1.0)) units.push_back(static_cast<float>(each));
    for (size_t t = 0; t < kTokens; ++t) {
      double sum = 0;
      float* unit = units.data() + t * kLayout.width;
      for (size_t c = 0; c < kLayout.width; ++c) sum += static_cast<double>(unit[c]) * static_cast<double>(unit[c]);
      for (size_t c = 0; c < kLayout.width; ++c) unit[c] /= static_cast<float>(std::sqrt(sum));
    }
  }

  std::vector<double> normals(size_t n, double deviation) {
    std::normal_distribution<double> normal(0.0, deviation);
    std::vector<double> numbers(n);
    for (double& each : numbers) each = normal(random);
    return numbers;
  }
  std::span<double> part(NetworkPart each) { return kLayout.part(std::span<double>(parameters), each); }
  double number(NetworkPart each, size_t i) const { return parameters[kLayout.begin(each) + i]; }

  /// Outputs for one vector, with noise: LayerNorm, linear, GELU, linear.
  std::vector<double> outputs(size_t token) const {
    const size_t width = kLayout.width;
    const float* unit = units.data() + token * width;
    double mean = 0;
    double variance = 0;
    for (size_t c = 0; c < width; ++c) mean += static_cast<double>(unit[c]) / static_cast<double>(width);
    for (size_t c = 0; c < width; ++c) {
      variance += std::pow(static_cast<double>(unit[c]) - mean, 2) / static_cast<double>(width);
    }
    const double deviation = std::sqrt(variance + 1e-5 / static_cast<double>(width));
    std::vector<double> out(kLayout.outputs());
    for (size_t o = 0; o < out.size(); ++o) {
      out[o] = number(NetworkPart::kSecondBias, o) + noise[token * out.size() + o];
    }
    for (size_t h = 0; h < kLayout.hidden; ++h) {
      double sum = number(NetworkPart::kFirstBias, h);
      for (size_t c = 0; c < width; ++c) {
        const double input = (static_cast<double>(unit[c]) - mean) / deviation * number(NetworkPart::kNormGain, c) +
                             number(NetworkPart::kNormBias, c);
        sum += number(NetworkPart::kFirst, h * width + c) * input;
      }
      for (size_t o = 0; o < out.size(); ++o)
        out[o] += number(NetworkPart::kSecond, o * kLayout.hidden + h) * gelu(sum);
    }
    return out;
  }

  /// Bits of one vector: 0 or 1, or their expectations.
  std::vector<double> bits(size_t token, BitChoice choice) const {
    const std::vector<double> out = outputs(token);
    std::vector<double> s(kLayout.bits);
    for (size_t pair = 0; pair < s.size() / 2; ++pair) {
      const double* of_pair = out.data() + 4 * pair;
      double total = 0;
      for (size_t k = 0; k < 4; ++k) total += std::exp(of_pair[k] / kTemperature);
      for (size_t k = 0; k < 4; ++k) {
        const bool largest = of_pair[k] == *std::max_element(of_pair, of_pair + 4);
        const double weight = choice == BitChoice::kSoft ? std::exp(of_pair[k] / kTemperature) / total : largest;
        if (k == 1 || k == 3) s[2 * pair] += weight;
        if (k == 2 || k == 3) s[2 * pair + 1] += weight;
      }
    }
    return s;
  }

  /// |s·C / |s·C| − u|²
  double error(size_t token, const std::vector<double>& s) const {
    std::vector<double> w(kLayout.width);
    double norm = 0;
    for (size_t c = 0; c < w.size(); ++c) {
      for (size_t n = 0; n < s.size(); ++n) w[c] += s[n] * number(NetworkPart::kCodes, n * w.size() + c);
      norm += w[c] * w[c];
    }
    double sum = 0;
    for (size_t c = 0; c < w.size(); ++c) {
      sum += std::pow((norm > 0 ? w[c] / std::sqrt(norm) : 0) - static_cast<double>(units[token * w.size() + c]), 2);
    }
    return sum;
  }

  double mean_error(BitChoice choice) const {
    double sum = 0;
    for (size_t t = 0; t < kTokens; ++t) sum += error(t, bits(t, choice));
    return sum / kTokens;
  }

  /// The library's gradient.
  double compute(BitChoice choice, std::vector<double>& gradient) {
    Allocator allocator({}, UINT64_MAX);
    Parallel parallel(2, nullptr, nullptr);
    NetworkGradient<double> batch(allocator, parallel, kLayout, kBlocks);
    gradient.assign(kLayout.total(), 1e9);
    const auto unit = [&](size_t token) { return units.data() + token * kLayout.width; };
    const auto of_pair = [&](size_t token, size_t pair) {
      std::array<double, 4> added;
      std::copy_n(noise.data() + token * kLayout.outputs() + 4 * pair, 4, added.data());
      return added;
    };
    return batch.compute(std::span<const double>(parameters), unit, of_pair, kTemperature, choice,
                         std::span<double>(gradient));
  }

  /// Compares a part of a gradient with finite differences of a function of the parameters.
  void check_slopes(NetworkPart which, const std::vector<double>& gradient, const std::function<double()>& function) {
    constexpr double kStep = 1e-5;
    CAPTURE(static_cast<int>(which));
    double largest = 0;
    for (size_t i = 0; i < kLayout.size(which); ++i) {
      CAPTURE(i);
      double& parameter = parameters[kLayout.begin(which) + i];
      const double kept = parameter;
      parameter = kept + kStep;
      const double above = function();
      parameter = kept - kStep;
      const double below = function();
      parameter = kept;
      const double slope = (above - below) / (2 * kStep);
      CHECK(std::fabs(gradient[kLayout.begin(which) + i] - slope) < 1e-8 + 1e-6 * std::fabs(slope));
      largest = std::max(largest, std::fabs(slope));
    }
    CHECK(largest > 1e-3);
  }

  std::mt19937 random;
  std::vector<double> parameters;
  std::vector<double> noise;  // [tokens][outputs]
  std::vector<float> units;   // [tokens][width]
};

}  // namespace

TEST_CASE("with soft bits every derivative is the slope of the error") {
  Problem problem(1);
  std::vector<double> gradient;
  const double error = problem.compute(BitChoice::kSoft, gradient);
  CHECK(error == doctest::Approx(problem.mean_error(BitChoice::kSoft)).epsilon(1e-9));
  for (const NetworkPart part : NetworkLayout::kParts) {
    problem.check_slopes(part, gradient, [&] { return problem.mean_error(BitChoice::kSoft); });
  }
}

TEST_CASE("with hard bits the codes' derivative is the slope of the error") {
  Problem problem(2);
  std::vector<double> gradient;
  const double error = problem.compute(BitChoice::kHard, gradient);
  CHECK(error == doctest::Approx(problem.mean_error(BitChoice::kHard)).epsilon(1e-9));
  problem.check_slopes(NetworkPart::kCodes, gradient, [&] { return problem.mean_error(BitChoice::kHard); });
}

TEST_CASE(
    "straight through: the network's derivatives are those of soft bits weighed by the error's slope at hard bits") {
  Problem problem(3);
  std::vector<double> gradient;
  problem.compute(BitChoice::kHard, gradient);
  std::vector<double> slopes;  // [tokens][bits], gradient of the mean error at the hard bits
  for (size_t t = 0; t < kTokens; ++t) {
    std::vector<double> s = problem.bits(t, BitChoice::kHard);
    if (std::all_of(s.begin(), s.end(), [](double bit) { return bit == 0.0; })) {
      slopes.insert(slopes.end(), s.size(), 0.0);  // a zero vector has no direction, and the error no slope there
      continue;
    }
    for (double& bit : s) {
      constexpr double kStep = 1e-5;
      const double kept = bit;
      bit = kept + kStep;
      const double above = problem.error(t, s);
      bit = kept - kStep;
      slopes.push_back((above - problem.error(t, s)) / (2 * kStep) / kTokens);
      bit = kept;
    }
  }
  const auto weighed = [&] {
    double sum = 0;
    for (size_t t = 0; t < kTokens; ++t) {
      const std::vector<double> s = problem.bits(t, BitChoice::kSoft);
      for (size_t n = 0; n < s.size(); ++n) sum += slopes[t * s.size() + n] * s[n];
    }
    return sum;
  };
  for (const NetworkPart part : NetworkLayout::kParts) {
    if (part != NetworkPart::kCodes) problem.check_slopes(part, gradient, weighed);
  }
}

TEST_CASE("a vector of zeros and a code of zeros have errors and no gradient that is not a number") {
  Problem problem(4);
  std::fill(problem.units.begin(), problem.units.begin() + kLayout.width, 0.0F);
  for (double& each : problem.part(NetworkPart::kCodes)) each = 0.0;
  std::vector<double> gradient;
  CHECK(problem.compute(BitChoice::kHard, gradient) == doctest::Approx((kTokens - 1.0) / kTokens).epsilon(1e-6));
  for (const double each : gradient) CHECK(each == 0.0);
}

TEST_CASE("exponentials are those of the C library, GELU rises with its slope") {
  for (double x = -740.0; x <= 0.0; x += 0.37) {
    const double expected = x > -700.0 ? std::exp(x) : 0.0;
    CHECK(network::exponential(x) == doctest::Approx(expected).epsilon(1e-14));
  }
  CHECK(network::exponential(0.0) == 1.0);
  for (double x = -12.0; x <= 12.0; x += 0.11) {
    CHECK(network::Gelu(x).value == doctest::Approx(gelu(x)).epsilon(1e-12));
    CHECK(std::fabs(network::Gelu(x).slope - (gelu(x + 1e-6) - gelu(x - 1e-6)) / 2e-6) < 1e-8);
  }
}

TEST_CASE("a step of AdamW is the paper's algorithm") {
  Allocator allocator({}, UINT64_MAX);
  const AdamWOptions options{.first_decay = 0.8, .second_decay = 0.9, .epsilon = 1e-3};
  AdamW optimizer(allocator, 5, options);
  std::vector<float> parameters = {9.0F, 9.0F, 0.5F, -2.0F, 3.0F};
  std::vector<double> expected(parameters.begin(), parameters.end()), m(5), v(5);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int t = 1; t <= 7; ++t) {
    const double rate = 0.1 / t;
    const std::vector<float> gradient = {normal(random), normal(random), normal(random)};
    optimizer.begin_step();
    optimizer.update(2, std::span<float>(parameters).subspan(2), gradient, rate, 0.05);
    for (size_t i = 2; i < 5; ++i) {
      const auto g = static_cast<double>(gradient[i - 2]);
      m[i] = 0.8 * m[i] + 0.2 * g;
      v[i] = 0.9 * v[i] + 0.1 * g * g;
      const double step = m[i] / (1 - std::pow(0.8, t)) / (std::sqrt(v[i] / (1 - std::pow(0.9, t))) + 1e-3);
      expected[i] -= rate * (step + 0.05 * expected[i]);
      CHECK(static_cast<double>(parameters[i]) == doctest::Approx(expected[i]).epsilon(1e-5));
    }
  }
  CHECK(parameters[0] == 9.0F);
  CHECK(parameters[1] == 9.0F);
}

}  // namespace value_network_gradient_test
