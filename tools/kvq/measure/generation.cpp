#include "measure/generation.h"

#include <algorithm>

#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace cli {

std::vector<int32_t> with_bos(const llama::ModelConfig& config, std::vector<int32_t> tokens) {
  if (config.bos_token >= 0) tokens.insert(tokens.begin(), config.bos_token);
  return tokens;
}

std::span<const float> prefill(llama::Session& session, std::span<const int32_t> tokens, int32_t chunk,
                               Progress& progress) {
  std::span<const float> logits;
  while (!tokens.empty()) {
    Interrupt::check();
    const size_t n = std::min(static_cast<size_t>(chunk), tokens.size());
    logits = session.forward(tokens.first(n), false);
    tokens = tokens.subspan(n);
    progress.advance(static_cast<int64_t>(n));
  }
  return logits;
}

std::vector<int32_t> generate_tokens(const llama::ModelConfig& config, llama::Session& session,
                                     std::span<const float> logits, int32_t max_tokens, llama::Sampler& sampler,
                                     const std::function<bool(int32_t)>& on_token) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < max_tokens; ++i) {
    const int32_t token = sampler.choose(logits);
    if (std::ranges::find(config.eos_tokens, token) != config.eos_tokens.end()) break;
    tokens.push_back(token);
    if (!on_token(token)) break;
    if (i + 1 < max_tokens) logits = session.forward(std::span(&token, 1), false);
  }
  return tokens;
}

void Pace::token() {
  if (!since_first_) {
    since_first_.emplace();
    return;
  }
  ++more_;
  seconds_ = since_first_->seconds();
}

std::optional<double> Pace::tokens_a_second() const {
  if (more_ == 0) return {};
  return static_cast<double>(more_) / seconds_;
}

std::string Pace::text() const {
  const std::optional<double> pace = tokens_a_second();
  return pace ? ", " + number_text(*pace, 1) + " a second" : "";
}

}  // namespace cli
