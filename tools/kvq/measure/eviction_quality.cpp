#include "measure/eviction_quality.h"

#include <algorithm>
#include <cmath>

#include "measure/generation.h"

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

constexpr size_t kComparedTokens = 32;  // after the prompt, whose attention is compared

template <typename Work>
double seconds_of(Work&& work) {
  const Stopwatch watch;
  work();
  return watch.seconds();
}

void compress(llama::Session& session, int32_t budget) {
  if (budget > 0) session.compress(budget);
}

}  // namespace

AttentionRecord record_attention(llama::Model& model, llama::Session session, llama::Tokens tokens) {
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

EvictionQuality::EvictionQuality(Engine& engine, const Spec& format, std::vector<Budget> budgets,
                                 const EvictionOptions& options)
    : engine_(engine),
      budgets_(std::move(budgets)),
      options_(options),
      window_(format.policy.describe().eviction_window),
      session_(engine.model, engine.context, format),
      rows_(std::max<size_t>(budgets_.size(), 1)) {}

void EvictionQuality::add_window(llama::Tokens window, Progress& progress) {
  const llama::Tokens prompt = window.first(half_of(window.size()));
  const llama::Tokens rest = window.subspan(prompt.size());
  prefills_.push_back(seconds_of([&] { prefill(session_, prompt, options_.chunk, progress); }));
  const AttentionRecord whole =
      record_attention(engine_.model, session_.fork(), rest.first(std::min(kComparedTokens, rest.size())));
  for (size_t i = 0; i < rows_.size(); ++i) {
    BudgetQuality& row = rows_[i];
    row.budget = budget_of(i);
    llama::Session session = session_.fork();
    const double seconds = seconds_of([&] { compress(session, row.budget); });
    if (i == 0 && row.budget > 0) compresses_.push_back(seconds);
    row.usage = session.usage();
    row.attention_error += attention_error(engine_.model, session.fork(), whole);
    row.nll += score_rest(engine_.model, session, window, options_.chunk, progress);
  }
  session_.clear();
}

void EvictionQuality::add_needle(const NeedlePrompt& prompt, Progress& progress) {
  const std::span<const float> logits = prefill(session_, prompt.tokens, options_.chunk, progress);
  for (size_t i = 0; i < rows_.size(); ++i) {
    BudgetQuality& row = rows_[i];
    row.needle_budget = budget_of(i);
    llama::Session session = session_.fork();
    compress(session, row.needle_budget);
    if (options_.windows == 0) row.usage = session.usage();
    row.found += finds_key(engine_, session, logits, prompt.key) ? 1 : 0;
  }
  session_.clear();
}

}  // namespace cli
