#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "llama/model.h"
#include "llama/sampler.h"
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
  void token();

  /// Nothing of less than two tokens.
  std::optional<double> tokens_a_second() const;
  /// ", 143.2 a second", or empty.
  std::string text() const;

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

}  // namespace cli
