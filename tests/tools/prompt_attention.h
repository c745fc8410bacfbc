// What the attention of a model is given for a prompt, and what becomes of it in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "llama/model.h"

using Doubles = std::vector<double>;

/// One layer: `[tokens, heads, head_dim]`, before RoPE.
struct PromptTensors {
  std::vector<float> q, k, v;
};

/// Every layer.
inline std::vector<PromptTensors> observe(llama::Model& model, const kvq::Context& context,
                                          std::span<const int32_t> tokens) {
  constexpr size_t kChunk = 100;
  const llama::ModelConfig& config = model.config();
  std::vector<PromptTensors> layers(static_cast<size_t>(config.n_layers));
  llama::Session session(model, context, nullptr);
  session.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
    PromptTensors& of_layer = layers[static_cast<size_t>(layer)];
    const auto q_size = static_cast<size_t>(seen.n) * static_cast<size_t>(config.q_heads * config.head_dim);
    const auto kv_size = static_cast<size_t>(seen.n) * static_cast<size_t>(config.kv_heads * config.head_dim);
    of_layer.q.insert(of_layer.q.end(), seen.q, seen.q + q_size);
    of_layer.k.insert(of_layer.k.end(), seen.k, seen.k + kv_size);
    of_layer.v.insert(of_layer.v.end(), seen.v, seen.v + kv_size);
  });
  for (size_t begin = 0; begin < tokens.size(); begin += kChunk) {
    session.forward(tokens.subspan(begin, std::min(kChunk, tokens.size() - begin)), false);
  }
  return layers;
}

/// A query or key rotated by its position.
inline Doubles rotated(const llama::ModelConfig& config, std::span<const double> row, int32_t position) {
  const auto half = row.size() / 2;
  Doubles result(row.size());
  for (size_t i = 0; i < half; ++i) {
    const double angle = position * double{config.inv_freq[i]};
    result[i] = row[i] * std::cos(angle) - row[half + i] * std::sin(angle);
    result[half + i] = row[i] * std::sin(angle) + row[half + i] * std::cos(angle);
  }
  return result;
}

/// Attention weights of a query for keys `[tokens][head_dim]`, of which it sees those in `seen`: one weight for each of
/// these. Both have been rotated.
inline Doubles attention_weights(const Doubles& q, const Doubles& keys, const std::vector<int32_t>& seen) {
  Doubles weights;
  for (const int32_t slot : seen) {
    const auto row = keys.begin() + slot * static_cast<ptrdiff_t>(q.size());
    weights.push_back(std::inner_product(q.begin(), q.end(), row, 0.0) / std::sqrt(static_cast<double>(q.size())));
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  for (double& weight : weights) weight = std::exp(weight - largest);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  return weights;
}
