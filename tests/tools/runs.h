#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <span>
#include <vector>

#include "kvq.hpp"
#include "llama/cpu_device.h"
#include "llama/model.h"

constexpr size_t kTokens = 75;  // three pages

inline std::vector<int32_t> random_tokens(size_t n, int32_t vocabulary) {
  std::mt19937_64 random(7);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
  return tokens;
}

/// A context with defaults.
inline kvq::Context make_context(kvq_device device = KVQ_DEVICE_CPU) {
  auto options = kvq::initialised<kvq_context_options>();
  options.device = device;
  return kvq::Context(options);
}

/// Logits of all tokens, which enter in chunks.
inline std::vector<float> run_in_chunks(llama::Session& session, std::span<const int32_t> tokens, size_t chunk) {
  std::vector<float> logits;
  while (!tokens.empty()) {
    const size_t n = std::min(chunk, tokens.size());
    std::ranges::copy(session.forward(tokens.first(n), true), std::back_inserter(logits));
    tokens = tokens.subspan(n);
  }
  return logits;
}

/// Perplexity of the tokens after the first, each by the logits of those before it.
inline double perplexity(const std::vector<float>& logits, const std::vector<int32_t>& tokens) {
  const size_t vocabulary = logits.size() / tokens.size();
  double sum = 0.0;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    sum += llama::negative_log_likelihood(std::span(logits).subspan(i * vocabulary, vocabulary), tokens[i + 1]);
  }
  return std::exp(sum / static_cast<double>(tokens.size() - 1));
}
