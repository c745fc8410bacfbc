// Divergence of next-token distributions.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "llama/threads.h"
#include "measure/perplexity.h"

namespace divergence_test {
namespace {

std::vector<double> softmax(const std::vector<float>& logits) {
  std::vector<double> result;
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  for (const float logit : logits) result.push_back(std::exp(static_cast<double>(logit)) / sum);
  return result;
}

double expected_kl(const std::vector<float>& p_logits, const std::vector<float>& q_logits) {
  const std::vector<double> p = softmax(p_logits);
  const std::vector<double> q = softmax(q_logits);
  double sum = 0.0;
  for (size_t i = 0; i < p.size(); ++i) sum += p[i] * std::log(p[i] / q[i]);
  return sum;
}

std::vector<float> random_logits(std::mt19937_64& random, size_t n, double spread) {
  std::normal_distribution<double> normal(0.0, spread);
  std::vector<float> logits;
  for (size_t i = 0; i < n; ++i) logits.push_back(static_cast<float>(normal(random)));
  return logits;
}

/// Logits of two tokens of which the first has this probability.
std::vector<float> two_point(double probability) {
  return {static_cast<float>(std::log(probability / (1 - probability))), 0.0f};
}

}  // namespace

TEST_CASE("the divergence of a distribution from itself is none, however its logits are shifted") {
  std::mt19937_64 random(1);
  for (const double spread : {0.01, 1.0, 10.0, 1e4}) {
    const std::vector<float> logits = random_logits(random, 1000, spread);
    CHECK(cli::kl_divergence(logits, logits) == 0.0);
  }
  const std::vector<float> logits{-3.0f, 0.5f, 2.0f, 1.25f};
  std::vector<float> shifted = logits;
  for (float& logit : shifted) logit += 64.0f;
  CHECK(cli::kl_divergence(logits, shifted) == 0.0);
}

TEST_CASE("the divergence of two points is what the formula gives by hand") {
  // 3/4 ln(3/4 : 1/2) + 1/4 ln(1/4 : 1/2) = 3/4 ln 3 - ln 2, and the other way around ln 2 - ln 3 / 2
  CHECK(cli::kl_divergence(two_point(0.75), two_point(0.5)) ==
        doctest::Approx(0.75 * std::log(3.0) - std::log(2.0)).epsilon(1e-6));
  CHECK(cli::kl_divergence(two_point(0.5), two_point(0.75)) ==
        doctest::Approx(std::log(2.0) - std::log(3.0) / 2).epsilon(1e-6));
}

TEST_CASE("divergences are those of float64, and none is negative") {
  std::mt19937_64 random(2);
  for (const double spread : {0.1, 1.0, 5.0}) {
    for (const double change : {1e-6, 1e-3, 1.0}) {
      for (const size_t n : {size_t{1}, size_t{2}, size_t{7}, size_t{300}}) {
        CAPTURE(spread);
        CAPTURE(change);
        CAPTURE(n);
        const std::vector<float> p = random_logits(random, n, spread);
        const std::vector<float> noise = random_logits(random, n, change);
        std::vector<float> q = p;
        for (size_t i = 0; i < n; ++i) q[i] += noise[i];
        const double kl = cli::kl_divergence(p, q);
        CHECK(kl >= 0.0);
        CHECK(std::abs(kl - expected_kl(p, q)) <= 1e-9 * kl + 1e-14);
      }
    }
  }
}

TEST_CASE("rounding makes no divergence of nearly the same distributions negative") {
  std::mt19937_64 random(4);
  for (int i = 0; i < 1000; ++i) {
    const std::vector<float> p = random_logits(random, 50, 3.0);
    std::vector<float> q = p;
    for (float& logit : q) logit += 0.1f;  // the same but for how each sum is rounded
    const double kl = cli::kl_divergence(p, q);
    CHECK(kl >= 0.0);
    CHECK(kl < 1e-12);
  }
}

TEST_CASE("logits of ten thousand neither overflow nor lose the divergence") {
  const std::vector<float> p{1e4f, -1e4f, 0.0f};
  const std::vector<float> q{-1e4f, 1e4f, 0.0f};
  CHECK(cli::kl_divergence(p, q) == doctest::Approx(2e4));  // all of P lies where Q is e^-20000
  const std::vector<float> high{1e4f, 1e4f + 1.0f};
  const std::vector<float> low{-1e4f, -1e4f};
  CHECK(cli::kl_divergence(high, low) == doctest::Approx(expected_kl({0.0f, 1.0f}, {0.0f, 0.0f})).epsilon(1e-9));
}

TEST_CASE("divergences of tokens add up to their mean, their 99.9th percentile and the share of equal tops") {
  constexpr size_t kTokens = 2500;  // of which two may exceed the percentile
  constexpr size_t kVocabulary = 5;
  std::mt19937_64 random(3);
  std::vector<float> reference;
  std::vector<float> logits;
  std::vector<double> expected;
  int equal_tops = 0;
  for (size_t i = 0; i < kTokens; ++i) {
    const std::vector<float> p = random_logits(random, kVocabulary, 2.0);
    const std::vector<float> q = random_logits(random, kVocabulary, 2.0);
    reference.insert(reference.end(), p.begin(), p.end());
    logits.insert(logits.end(), q.begin(), q.end());
    expected.push_back(expected_kl(p, q));
    equal_tops += std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin() ? 1 : 0;
  }
  llama::ThreadPool threads(2);
  cli::Divergences divergences;
  for (size_t begin = 0; begin < kTokens; begin += 700) {  // the last part is smaller
    const size_t n = std::min<size_t>(700, kTokens - begin) * kVocabulary;
    divergences.add(threads, std::span(reference).subspan(begin * kVocabulary, n),
                    std::span(logits).subspan(begin * kVocabulary, n), kVocabulary);
  }
  const double sum = std::accumulate(expected.begin(), expected.end(), 0.0);
  CHECK(divergences.mean() == doctest::Approx(sum / kTokens).epsilon(1e-6));
  std::ranges::sort(expected);
  CHECK(divergences.p999() == doctest::Approx(expected[kTokens - 3]).epsilon(1e-6));
  CHECK(divergences.top1_agreement() == static_cast<double>(equal_tops) / kTokens);
  CHECK(equal_tops > 0);
}

}  // namespace divergence_test
