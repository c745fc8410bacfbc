#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace llama {

/// Index of the largest logit; of equal ones the first.
inline int32_t greedy(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Chooses tokens at random from the most likely ones. The same seed gives the same choices everywhere.
class Sampler {
 public:
  /// \param temperature  0: always the likeliest token.
  /// \param top_p        in (0, 1]: only the likeliest tokens that together have this probability.
  Sampler(double temperature, double top_p, uint64_t seed) : temperature_(temperature), top_p_(top_p), random_(seed) {}

  int32_t choose(std::span<const float> logits) {
    const int32_t best = greedy(logits);
    if (temperature_ <= 0.0) return best;

    const double top = logits[static_cast<size_t>(best)];
    double total = 0.0;
    candidates_.clear();
    for (size_t i = 0; i < logits.size(); ++i) {
      candidates_.push_back({static_cast<int32_t>(i), std::exp((logits[i] - top) / temperature_)});
      total += candidates_.back().weight;
    }
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
    });

    size_t kept = 0;
    double mass = 0.0;
    while (kept < candidates_.size() && (kept == 0 || mass < top_p_ * total)) mass += candidates_[kept++].weight;

    const double uniform = static_cast<double>(random_() >> 11) * 0x1p-53;
    double left = uniform * mass;
    for (size_t i = 0; i + 1 < kept; ++i) {
      if (left < candidates_[i].weight) return candidates_[i].token;
      left -= candidates_[i].weight;
    }
    return candidates_[kept - 1].token;
  }

 private:
  struct Candidate {
    int32_t token;
    double weight;
  };

  double temperature_;
  double top_p_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;
};

}  // namespace llama
