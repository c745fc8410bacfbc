#include "measure/attention_error.h"

#include <cmath>

namespace cli {
namespace {

/// ‖o − recorded‖₁ / ‖recorded‖₁ of one query of one head.
double relative_error(std::span<const float> o, std::span<const float> recorded) {
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < o.size(); ++i) {
    error += std::abs(double{o[i]} - double{recorded[i]});
    norm += std::abs(double{recorded[i]});
  }
  return norm > 0.0 ? error / norm : 0.0;
}

}  // namespace

AttentionRecord record_attention(const llama::ModelConfig& config, llama::Session session,
                                 std::span<const int32_t> tokens) {
  AttentionRecord record{.tokens = static_cast<int32_t>(tokens.size()), .head_dim = config.head_dim, .layers = {}};
  record.layers.resize(static_cast<size_t>(config.n_layers));
  const size_t q_size = tokens.size() * static_cast<size_t>(config.q_heads) * static_cast<size_t>(config.head_dim);
  const size_t kv_size = tokens.size() * static_cast<size_t>(config.kv_heads) * static_cast<size_t>(config.head_dim);
  session.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
    AttentionRecord::Layer& of_layer = record.layers[static_cast<size_t>(layer)];
    of_layer.q.assign(seen.q, seen.q + q_size);
    of_layer.k.assign(seen.k, seen.k + kv_size);
    of_layer.v.assign(seen.v, seen.v + kv_size);
    of_layer.attended.assign(seen.attended, seen.attended + q_size);
  });
  session.forward(tokens, false);
  return record;
}

double attention_error(llama::Session session, const AttentionRecord& record) {
  const auto dim = static_cast<size_t>(record.head_dim);
  double sum = 0.0;
  size_t count = 0;
  std::vector<float> out;
  for (size_t i = 0; i < record.layers.size(); ++i) {
    const AttentionRecord::Layer& layer = record.layers[i];
    out.resize(layer.attended.size());
    session.attend(static_cast<int32_t>(i), record.tokens, layer.q.data(), layer.k.data(), layer.v.data(), out.data());
    for (size_t begin = 0; begin < out.size(); begin += dim, ++count) {
      sum += relative_error(std::span(out).subspan(begin, dim), std::span(layer.attended).subspan(begin, dim));
    }
  }
  return sum / static_cast<double>(count);
}

}  // namespace cli
