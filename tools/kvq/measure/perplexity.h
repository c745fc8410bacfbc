#pragma once

#include "llama/model.h"
#include "llama/threads.h"
#include "options/model_options.h"
#include "options/spec.h"
#include "terminal/progress.h"

namespace cli {

/// Kullback-Leibler divergence D(P || Q) = Σ P ln(P / Q) of the distributions that finite logits stand for, in nats.
double kl_divergence(std::span<const float> p, std::span<const float> q);

/// How far a model's next-token distributions are from those of a reference, over all tokens that were added.
class Divergences {
 public:
  /// Logits after the same tokens, `[tokens, vocabulary]` each.
  void add(llama::ThreadPool& threads, std::span<const float> reference, std::span<const float> logits,
           size_t vocabulary);

  /// Mean D(reference || model). There must be a token.
  double mean() const;
  /// The smallest divergence that 99.9 % of the tokens do not exceed. There must be a token.
  double p999() const;
  /// The share of tokens after which both have the same most likely token.
  double top1_agreement() const;

 private:
  std::vector<float> kl_;  // of every token
  int64_t agreeing_ = 0;   // tokens
};

struct PerplexityOptions {
  int32_t context = 2048;
  int32_t windows = 0;  // 0: all
  int32_t chunk = 32;
  bool second_half = false;           // score only tokens of each window's second half
  const Spec* recode_from = nullptr;  // what first halves are kept in until they are recoded; nullptr: in the format
};

/// What is lost beside a reference that runs the same tokens, over those that are scored.
struct ReferenceComparison {
  double perplexity = 0.0;  // of the reference
  double kl_mean = 0.0;     // D(reference || format) of next-token distributions, in nats
  double kl_p999 = 0.0;     // which 99.9 % of the tokens do not exceed
  double top1_agreement = 0.0;
};

struct PerplexityResult {
  double perplexity = 0.0;
  int64_t tokens = 0;                   // scored
  bool second_half = false;             // of each window, those are
  double second_half_perplexity = 0.0;  // of those of second halves alone
  double tokens_per_second = 0.0;       // of all tokens run, without the reference
  std::vector<double> window_mean_nll;  // natural logarithm
  kvq_usage usage{};                    // of the last window, at its end
  std::optional<ReferenceComparison> comparison;
};

/// The windows of `context` tokens that a text begins with, at most `most` unless that is 0; an Error if there is not
/// even one.
std::vector<llama::Tokens> first_windows(llama::Tokens tokens, int32_t context, int32_t most);

/// What eviction may add to perplexity, in percent, before a report warns.
inline constexpr double kMuchLost = 5.0;
/// That warning, a line.
std::string too_much_evicted_text(const std::string& format, double rise_percent, const std::string& reference);

/// Where the half of a window that is scored begins.
inline size_t half_of(size_t window) { return window / 2; }

/// Run what follows the `session.length()` tokens of a window that the session holds, in chunks, and add up the
/// negative log-likelihoods of all but the first of it. `progress` advances by every token run.
double score_rest(llama::Model& model, llama::Session& session, llama::Tokens window, int32_t chunk,
                  Progress& progress);

/// What formats are compared with: a model of its own, or the same one, on a cache that evicts nothing.
struct PerplexityReference {
  Engine& engine;
  const Spec& format;
};

/// Perplexity of each format over non-overlapping windows, each starting an empty sequence and running through the
/// cache in chunks, so that later tokens see compressed pages as decoding would. An incomplete last window is dropped.
/// If a format evicts, or is recoded to, that happens between the halves of each window, and only second halves are
/// scored, of all formats. `progress` advances by every token run.
///
/// \param reference  what to compare with, if anything: it runs each chunk first, and advances `progress` too.
std::vector<PerplexityResult> measure_perplexities(Engine& engine, std::span<const Spec> formats, llama::Tokens tokens,
                                                   PerplexityOptions options, Progress& progress,
                                                   const PerplexityReference* reference = nullptr);

/// Perplexity of one format, compared with nothing.
PerplexityResult measure_perplexity(Engine& engine, const Spec& format, llama::Tokens tokens,
                                    const PerplexityOptions& options, Progress& progress);

/// Perplexity of one window on a cache that exists, which evicts nothing.
PerplexityResult measure_perplexity(llama::Model& model, llama::Session& session, llama::Tokens window, int32_t chunk,
                                    Progress& progress);

}  // namespace cli
