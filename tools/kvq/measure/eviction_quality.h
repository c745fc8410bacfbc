#pragma once

#include "bench/timing.h"
#include "llama/model.h"
#include "measure/needle.h"
#include "measure/perplexity.h"
#include "options/spec.h"
#include "terminal/progress.h"

namespace cli {

/// What the attention of every layer took and gave for some tokens.
struct AttentionRecord {
  struct Layer {
    std::vector<float> q, k, v;   // [tokens, heads, head_dim], before RoPE
    std::vector<float> attended;  // [tokens, q_heads, head_dim]
  };
  int32_t tokens = 0;
  int32_t head_dim = 0;
  std::vector<Layer> layers;
};

/// Run `tokens` at the end of the session, which is one of the model's.
AttentionRecord record_attention(llama::Model& model, llama::Session session, llama::Tokens tokens);

/// How far attention over the session's cache is from the recorded one when it gets the same queries, keys and values:
/// the mean of ‖o − o_recorded‖₁ / ‖o_recorded‖₁ over layers, queries and query heads.
double attention_error(llama::Model& model, llama::Session session, const AttentionRecord& record);

struct EvictionOptions {
  int32_t context = 4096;  // tokens of a window of text, or of a needle's prompt and answer
  int32_t windows = 4;     // of text; 0: no perplexity
  int32_t needles = 10;    // 0: no retrieval
  uint64_t seed = 1;
  int32_t chunk = 32;
};

struct BudgetQuality {
  int32_t budget = 0;            // tokens that stay of a window's first half; 0: all, or there are no windows
  int32_t needle_budget = 0;     // the same of a needle's prompt
  double nll = 0.0;              // negative log-likelihood of all continuations, summed
  double attention_error = 0.0;  // summed over windows
  int32_t found = 0;             // needles
  kvq_usage usage{};             // of a prompt, once it is compressed: of a window's, if there are any
};

/// A cache's quality when its prompts are compressed, to every budget after the same prefill.
class EvictionQuality {
 public:
  /// \param format   of a cache that evicts, or of one that does not, which is measured as it is.
  /// \param budgets  what prompts are compressed to; none if the cache does not evict.
  EvictionQuality(Engine& engine, const Spec& format, std::vector<Budget> budgets, const EvictionOptions& options);

  /// Read the first half of a window, then compress, and score the second half.
  void add_window(llama::Tokens window, Progress& progress);
  /// Read the prompt, then compress, and answer.
  void add_needle(const NeedlePrompt& prompt, Progress& progress);

  /// One for each budget, or one if there are none.
  const std::vector<BudgetQuality>& rows() const { return rows_; }
  /// Medians over windows: of reading a first half, and of compressing it to the first budget.
  std::optional<double> prefill_seconds() const { return median_of(prefills_); }
  std::optional<double> compress_seconds() const { return median_of(compresses_); }

  /// What `progress` advances by.
  int64_t window_steps() const {
    const auto half = static_cast<int64_t>(half_of(static_cast<size_t>(options_.context)));
    return half + static_cast<int64_t>(rows_.size()) * (options_.context - half);
  }
  int64_t needle_steps() const { return options_.context; }

 private:
  /// For what the session holds; 0: nothing is evicted.
  int32_t budget_of(size_t row) const { return budgets_.empty() ? 0 : budgets_[row].of(session_.length(), window_); }
  static std::optional<double> median_of(const std::vector<double>& seconds) {
    return seconds.empty() ? std::nullopt : std::optional(median(seconds));
  }

  Engine& engine_;
  std::vector<Budget> budgets_;
  EvictionOptions options_;
  int32_t window_;          // newest tokens that always stay
  llama::Session session_;  // reads prompts, its forks are compressed
  std::vector<BudgetQuality> rows_;
  std::vector<double> prefills_;    // seconds
  std::vector<double> compresses_;  // seconds
};

}  // namespace cli
