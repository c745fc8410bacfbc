#pragma once

#include "bench/timing.h"
#include "llama/model.h"
#include "llama/sampler.h"
#include "options/model_options.h"
#include "options/spec.h"
#include "terminal/output.h"
#include "terminal/progress.h"

namespace cli {

/// BOS, if the model has one, and the tokens.
std::vector<int32_t> with_bos(const llama::ModelConfig& config, std::vector<int32_t> tokens);

/// Feed `tokens` in chunks of `chunk`, advancing `progress` by each; the logits of the last token. Ends with an Error
/// on an interruption.
std::span<const float> prefill(llama::Session& session, llama::Tokens tokens, int32_t chunk, Progress& progress);

/// Continue from `logits`, those of the session's last token, by up to `max_tokens` tokens; ends early at an
/// end-of-text token, which is not part of the result, and when `on_token` returns false.
std::vector<int32_t> generate_tokens(const llama::ModelConfig& config, llama::Session& session,
                                     std::span<const float> logits, int32_t max_tokens, llama::Sampler& sampler,
                                     const std::function<bool(int32_t)>& on_token);

/// How fast tokens are written. The first one costs nothing: it comes with the logits of the prompt.
class Pace {
 public:
  void token() {
    if (!since_first_) return void(since_first_.emplace());
    ++more_;
    seconds_ = since_first_->seconds();
  }

  /// Nothing of less than two tokens.
  std::optional<double> tokens_a_second() const {
    return more_ > 0 ? std::optional(static_cast<double>(more_) / seconds_) : std::nullopt;
  }
  /// ", 143.2 a second", or empty.
  std::string text() const { return more_ > 0 ? ", " + number_text(*tokens_a_second(), 1) + " a second" : ""; }

 private:
  std::optional<Stopwatch> since_first_;
  int64_t more_ = 0;
  double seconds_ = 0.0;  // until the last one
};

/// Finds where a text that comes in pieces has to end.
class StopTexts {
 public:
  /// None of them is empty.
  explicit StopTexts(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Takes the next piece and returns what of the text is certainly before the first stop.
  std::string add(const std::string& piece);
  /// Whether a stop was found; pieces are ignored then.
  bool found() const { return found_; }
  /// What was kept back because a stop could have begun there.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string kept_;
  bool found_ = false;
};

/// Where two continuations of a prompt first differ: the index of a token, or the shorter one's length if the longer
/// one begins with it; nothing if they are equal.
std::optional<size_t> first_difference(llama::Tokens a, llama::Tokens b);

/// The index by which at least half of the continuations, of which there must be one, have begun to differ; nothing if
/// most never do.
std::optional<size_t> median_difference(std::span<const std::optional<size_t>> differences);

/// Whether the last quarter of `tokens`, rounded down, has a period: a p from 1 to 64 and at most half of the quarter
/// with quarter[i] = quarter[i - p] for every i from p on.
bool ends_in_repetition(llama::Tokens tokens);

struct ContinuationOptions {
  int32_t prompts = 8;
  int32_t prompt_tokens = 512;  // of the text; BOS comes before them if the model has one
  int32_t tokens = 512;         // to generate at most
  int32_t chunk = 32;           // of a prompt
};

/// What a model writes after a prompt, always its likeliest token.
struct Continuation {
  std::vector<int32_t> tokens;
  bool repeats = false;  // reaches its full length and ends in a repetition
};

struct ComparedContinuation {
  size_t begin = 0;  // of the prompt: index of a token of the text
  Continuation format;
  std::optional<Continuation> reference;
  std::optional<size_t> first_difference;  // of the two
};

struct ContinuationResult {
  std::vector<ComparedContinuation> continuations;  // one a prompt
  kvq_usage usage{};                                // of the last one, at its end
};

/// Where prompts begin: at the beginning of each of as many equal parts of a text of so many tokens. An Error if a part
/// is shorter than a prompt.
std::vector<size_t> prompt_begins(size_t tokens, const ContinuationOptions& options);

/// What `progress` advances by for one cache.
int64_t continuation_steps(const ContinuationOptions& options);

/// Continue prompts from a text on a cache of that format, which evicts once after each prompt if it evicts, and on the
/// reference's, if there is one.
ContinuationResult measure_continuations(Engine& engine, const Spec& format, const Spec* reference,
                                         llama::Tokens tokens, const ContinuationOptions& options, Progress& progress);

}  // namespace cli
