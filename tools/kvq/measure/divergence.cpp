#include "measure/divergence.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <compare>
#include <numeric>

#include "llama/sampler.h"

namespace cli {

// With a = p - max p, b = q - max q and Z the sum of their exponentials, ln P = a - ln Z_p and ln Q = b - ln Z_q.
double kl_divergence(std::span<const float> p, std::span<const float> q) {
  const double p_top = *std::ranges::max_element(p);
  const double q_top = *std::ranges::max_element(q);
  double p_sum = 0.0;
  double q_sum = 0.0;
  double weighted = 0.0;  // sum of e^a (a - b)
  for (size_t i = 0; i < p.size(); ++i) {
    const double a = p[i] - p_top;
    const double b = q[i] - q_top;
    const double weight = std::exp(a);
    p_sum += weight;
    q_sum += std::exp(b);
    weighted += weight * (a - b);
  }
  const double divergence = weighted / p_sum + std::log(q_sum) - std::log(p_sum);
  return std::max(divergence, 0.0);  // rounding may leave a little less
}

void Divergences::add(llama::ThreadPool& threads, std::span<const float> reference, std::span<const float> logits,
                      size_t vocabulary) {
  const size_t first = kl_.size();
  const size_t tokens = logits.size() / vocabulary;
  kl_.resize(first + tokens);
  std::atomic<int64_t> agreeing = 0;
  threads.run(static_cast<int32_t>(tokens), [&](int32_t i) {
    const auto token = static_cast<size_t>(i);
    const std::span<const float> p = reference.subspan(token * vocabulary, vocabulary);
    const std::span<const float> q = logits.subspan(token * vocabulary, vocabulary);
    kl_[first + token] = static_cast<float>(kl_divergence(p, q));
    if (llama::greedy(p) == llama::greedy(q)) ++agreeing;
  });
  agreeing_ += agreeing;
}

double Divergences::mean() const {
  return std::accumulate(kl_.begin(), kl_.end(), 0.0) / static_cast<double>(kl_.size());
}

double Divergences::p999() const {
  std::vector<float> sorted = kl_;
  const size_t exceeding = sorted.size() / 1000;
  const auto at = sorted.end() - 1 - static_cast<std::ptrdiff_t>(exceeding);
  // A broken model's NaN has a place in this order too.
  std::nth_element(sorted.begin(), at, sorted.end(), [](float a, float b) { return std::strong_order(a, b) < 0; });
  return *at;
}

double Divergences::top1_agreement() const { return static_cast<double>(agreeing_) / static_cast<double>(kl_.size()); }

}  // namespace cli
