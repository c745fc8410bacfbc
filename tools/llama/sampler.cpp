#include "sampler.h"

#include <algorithm>
#include <cmath>

namespace llama {

int32_t greedy(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

int32_t Sampler::choose(std::span<const float> logits) {
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

}  // namespace llama
