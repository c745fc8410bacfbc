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

AttentionRecord record_attention(llama::Model& model, llama::Session session, std::span<const int32_t> tokens) {
  const llama::ModelConfig& config = model.config();
  AttentionRecord record{.tokens = static_cast<int32_t>(tokens.size()), .head_dim = config.head_dim, .layers = {}};
  record.layers.resize(static_cast<size_t>(config.n_layers));
  const size_t q_size = tokens.size() * static_cast<size_t>(config.q_heads) * static_cast<size_t>(config.head_dim);
  const size_t kv_size = tokens.size() * static_cast<size_t>(config.kv_heads) * static_cast<size_t>(config.head_dim);
  session.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
    AttentionRecord::Layer& of_layer = record.layers[static_cast<size_t>(layer)];
    llama::Array host;
    const auto copy = [&](const float* numbers, size_t n, std::vector<float>& to) {
      const std::span<const float> read = model.device().read({numbers, n}, host);
      to.assign(read.begin(), read.end());
    };
    copy(seen.q, q_size, of_layer.q);
    copy(seen.k, kv_size, of_layer.k);
    copy(seen.v, kv_size, of_layer.v);
    copy(seen.attended, q_size, of_layer.attended);
  });
  session.forward(tokens, false);
  return record;
}

double attention_error(llama::Model& model, llama::Session session, const AttentionRecord& record) {
  llama::Device& device = model.device();
  const auto dim = static_cast<size_t>(record.head_dim);
  double sum = 0.0;
  size_t count = 0;
  llama::Array host;
  for (size_t i = 0; i < record.layers.size(); ++i) {
    const AttentionRecord::Layer& layer = record.layers[i];
    const llama::Array q = device.upload(layer.q);
    const llama::Array k = device.upload(layer.k);
    const llama::Array v = device.upload(layer.v);
    const llama::Array attended = device.allocate(layer.attended.size());
    session.attend(static_cast<int32_t>(i), record.tokens, q.data.get(), k.data.get(), v.data.get(),
                   attended.data.get());
    const std::span<const float> out = device.read({attended.data.get(), layer.attended.size()}, host);
    for (size_t begin = 0; begin < out.size(); begin += dim, ++count) {
      sum += relative_error(out.subspan(begin, dim), std::span(layer.attended).subspan(begin, dim));
    }
  }
  return sum / static_cast<double>(count);
}

}  // namespace cli
