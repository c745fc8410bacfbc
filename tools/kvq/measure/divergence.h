#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "llama/threads.h"

namespace cli {

/// Kullback-Leibler divergence D(P || Q) = Σ P ln(P / Q) of the distributions that finite logits stand for, in nats.
double kl_divergence(std::span<const float> p, std::span<const float> q);

/// How far a model's next-token distributions are from those of a reference, over all tokens that were added.
class Divergences {
 public:
  /// Logits after the same tokens, `[tokens, vocabulary]` each.
  void add(llama::ThreadPool& threads, std::span<const float> reference, std::span<const float> logits,
           size_t vocabulary);

  /// Of D(reference || model). There must be a token.
  double mean() const;
  /// The smallest divergence that 99.9 % of the tokens do not exceed. There must be a token.
  double p999() const;
  /// The share of tokens after which both have the same most likely token.
  double top1_agreement() const;

 private:
  std::vector<float> kl_;  // of every token
  int64_t agreeing_ = 0;   // tokens
};

}  // namespace cli
