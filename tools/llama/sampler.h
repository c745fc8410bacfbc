#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace llama {

/// Index of the largest logit; of equal ones the first.
int32_t greedy(std::span<const float> logits);

/// Chooses tokens at random from the most likely ones. The same seed gives the same choices everywhere.
class Sampler {
 public:
  /// \param temperature  0: always the likeliest token.
  /// \param top_p        in (0, 1]: only the likeliest tokens that together have this probability.
  Sampler(double temperature, double top_p, uint64_t seed) : temperature_(temperature), top_p_(top_p), random_(seed) {}

  int32_t choose(std::span<const float> logits);

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
