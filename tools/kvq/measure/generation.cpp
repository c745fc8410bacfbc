#include "measure/generation.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "terminal/output.h"
#include "terminal/progress.h"

namespace cli {
namespace {

/// Characters at the end of a text that a stop may begin with.
size_t begun(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

std::vector<int32_t> with_bos(const llama::ModelConfig& config, std::vector<int32_t> tokens) {
  if (config.bos_token >= 0) tokens.insert(tokens.begin(), config.bos_token);
  return tokens;
}

std::span<const float> prefill(llama::Session& session, llama::Tokens tokens, int32_t chunk, Progress& progress) {
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

std::string StopTexts::add(const std::string& piece) {
  if (found_) return {};
  kept_ += piece;
  size_t first = std::string::npos;
  size_t most = 0;
  for (const std::string& stop : stops_) {
    first = std::min(first, kept_.find(stop));
    most = std::max(most, begun(kept_, stop));
  }
  found_ = first != std::string::npos;
  if (found_) return std::exchange(kept_, {}).substr(0, first);
  const std::string certain = kept_.substr(0, kept_.size() - most);
  kept_.erase(0, certain.size());
  return certain;
}

std::string StopTexts::finish() { return std::exchange(kept_, {}); }

}  // namespace cli
