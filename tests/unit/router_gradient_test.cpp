// The router's network and its derivatives, against the paper's definitions in double.
#include "training/router/router_gradient.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "support/allocator.h"
#include "support/random.h"

namespace router_gradient_test {
namespace {

using namespace kvq;

constexpr size_t kExperts = 3;
constexpr size_t kHeadDim = 11;
constexpr RouterLayout kLayout{.experts = kExperts, .head_dim = kHeadDim};

std::vector<double> normals(size_t n, uint64_t seed) {
  kvq_test::Random random(seed);
  std::vector<double> numbers(n);
  for (double& each : numbers) each = random.normal();
  return numbers;
}

/// softmax((SiLU(C·W1) ⊙ (C·W2))·W3)
std::vector<double> probabilities(const std::vector<double>& parameters, const double* key) {
  std::vector<double> hidden(kExperts);
  std::vector<double> result(kExperts);
  for (size_t i = 0; i < kExperts; ++i) {
    double gate = 0;
    double up = 0;
    for (size_t d = 0; d < kHeadDim; ++d) {
      gate += key[d] * parameters[i * kHeadDim + d];
      up += key[d] * parameters[kExperts * kHeadDim + i * kHeadDim + d];
    }
    hidden[i] = gate / (1 + std::exp(-gate)) * up;
  }
  double sum = 0;
  for (size_t to = 0; to < kExperts; ++to) {
    double logit = 0;
    for (size_t from = 0; from < kExperts; ++from) {
      logit += hidden[from] * parameters[2 * kExperts * kHeadDim + from * kExperts + to];
    }
    sum += result[to] = std::exp(logit);
  }
  for (double& each : result) each /= sum;
  return result;
}

void check_slopes(std::vector<double>& parameters, const std::vector<double>& gradient,
                  const std::function<double()>& function) {
  constexpr double kStep = 1e-5;
  double largest = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    CAPTURE(i);
    const double kept = parameters[i];
    parameters[i] = kept + kStep;
    const double above = function();
    parameters[i] = kept - kStep;
    const double below = function();
    parameters[i] = kept;
    const double slope = (above - below) / (2 * kStep);
    CHECK(std::fabs(gradient[i] - slope) < 1e-8 + 1e-6 * std::fabs(slope));
    largest = std::max(largest, std::fabs(slope));
  }
  CHECK(largest > 1e-3);
}

}  // namespace

TEST_CASE("the network trained is the paper's, and the one that routes pages") {
  const std::vector<double> parameters = normals(kLayout.total(), 1);
  RouterNetwork network(kvq_test::test_allocator());
  for (size_t i = 0; i < parameters.size(); ++i) {
    Vector<float>& part = i < kLayout.w2() ? network.w1 : i < kLayout.w3() ? network.w2 : network.w3;
    part.push_back(static_cast<float>(parameters[i]));
  }
  for (uint64_t seed = 2; seed < 40; ++seed) {
    const std::vector<double> key = normals(kHeadDim, seed);
    const std::vector<double> expected = probabilities(parameters, key.data());
    RouterPass<double> pass;
    router_forward(kLayout, parameters.data(), key.data(), pass);
    for (size_t i = 0; i < kExperts; ++i) {
      CHECK(pass.probabilities[i] == doctest::Approx(expected[i]).epsilon(1e-10));
    }
    const std::vector<float> narrow(key.begin(), key.end());
    std::vector<int32_t> votes(kExperts, 0);
    add_votes(network, narrow, votes);
    const auto best = std::max_element(expected.begin(), expected.end()) - expected.begin();
    CHECK(votes[static_cast<size_t>(best)] == 1);
  }
}

TEST_CASE("derivatives of cross-entropy are the slopes of the loss") {
  std::vector<double> parameters = normals(kLayout.total(), 3);
  const std::vector<double> key = normals(kHeadDim, 4);
  constexpr size_t kLabel = 1;
  RouterPass<double> pass;
  router_forward(kLayout, parameters.data(), key.data(), pass);
  std::vector<double> slopes(kExperts);
  for (size_t i = 0; i < kExperts; ++i) slopes[i] = pass.probabilities[i] - (i == kLabel ? 1.0 : 0.0);
  std::vector<double> gradient(kLayout.total(), 0.0);
  router_backward(kLayout, parameters.data(), key.data(), pass, slopes.data(), gradient.data());
  check_slopes(parameters, gradient, [&] { return -std::log(probabilities(parameters, key.data())[kLabel]); });
}

TEST_CASE("derivatives of the paper's loss of a page are its slopes, and the choice has none") {
  constexpr size_t kTokens = 5;
  constexpr double kLambda = 0.3;
  constexpr double kNll = 2.5;
  const std::vector<double> bits = {16.0, 5.0, 2.5};
  std::vector<double> parameters = normals(kLayout.total(), 5);
  const std::vector<double> keys = normals(kTokens * kHeadDim, 6);
  const PaperLoss<double> loss{kLambda, kNll, bits};

  std::vector<RouterPass<double>> passes(kTokens);
  std::vector<double> p(kExperts, 0.0);
  for (size_t t = 0; t < kTokens; ++t) {
    router_forward(kLayout, parameters.data(), keys.data() + t * kHeadDim, passes[t]);
    for (size_t i = 0; i < kExperts; ++i) p[i] += passes[t].probabilities[i] / kTokens;
  }
  std::vector<double> of_p(kExperts);
  loss.slopes(p.data(), of_p.data());
  std::vector<double> gradient(kLayout.total(), 0.0);
  for (size_t t = 0; t < kTokens; ++t) {
    std::vector<double> slopes(kExperts);
    softmax_backward(passes[t], kExperts, of_p.data(), slopes.data());
    for (double& each : slopes) each /= kTokens;
    router_backward(kLayout, parameters.data(), keys.data() + t * kHeadDim, passes[t], slopes.data(), gradient.data());
  }
  const auto expected = [&] {
    std::vector<double> mean(kExperts, 0.0);
    for (size_t t = 0; t < kTokens; ++t) {
      const std::vector<double> of_token = probabilities(parameters, keys.data() + t * kHeadDim);
      for (size_t i = 0; i < kExperts; ++i) mean[i] += of_token[i] / kTokens;
    }
    const auto chosen = static_cast<size_t>(std::max_element(mean.begin(), mean.end()) - mean.begin());
    double memory = 0;
    for (size_t i = 0; i < kExperts; ++i) memory += mean[i] * bits[i] / 16;
    return kLambda * mean[chosen] * kNll / bits[chosen] + (1 - kLambda) * memory;
  };
  CHECK(loss.value(p.data()) == doctest::Approx(expected()).epsilon(1e-12));
  check_slopes(parameters, gradient, expected);
}

}  // namespace router_gradient_test
