#include "measure/eviction_quality.h"

#include <algorithm>
#include <utility>

#include "bench/stopwatch.h"
#include "bench/timing.h"
#include "measure/attention_error.h"
#include "measure/generation.h"
#include "measure/perplexity.h"

namespace cli {
namespace {

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

EvictionQuality::EvictionQuality(Engine& engine, const Spec& format, std::vector<Budget> budgets,
                                 const EvictionOptions& options)
    : engine_(engine),
      budgets_(std::move(budgets)),
      options_(options),
      window_(format.policy.describe().eviction_window),
      session_(engine.model, engine.context, format),
      rows_(std::max<size_t>(budgets_.size(), 1)) {}

int32_t EvictionQuality::budget_of(size_t row) const {
  return budgets_.empty() ? 0 : budgets_[row].of(session_.length(), window_);
}

void EvictionQuality::add_window(std::span<const int32_t> window, Progress& progress) {
  const std::span<const int32_t> prompt = window.first(half_of(window.size()));
  const std::span<const int32_t> rest = window.subspan(prompt.size());
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

std::optional<double> EvictionQuality::prefill_seconds() const {
  return prefills_.empty() ? std::nullopt : std::optional(median(prefills_));
}

std::optional<double> EvictionQuality::compress_seconds() const {
  return compresses_.empty() ? std::nullopt : std::optional(median(compresses_));
}

int64_t EvictionQuality::window_steps() const {
  const auto half = static_cast<int64_t>(half_of(static_cast<size_t>(options_.context)));
  return half + static_cast<int64_t>(rows_.size()) * (options_.context - half);
}

}  // namespace cli
