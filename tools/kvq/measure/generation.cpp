#include "measure/generation.h"

#include <algorithm>
#include <limits>

#include "llama/error.h"

namespace cli {
namespace {

/// Characters at the end of a text that a stop may begin with.
size_t begun(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

class Writer {
 public:
  Writer(Engine& engine, const Spec& format)
      : config_(engine.model.config()), session_(engine.model, engine.context, format), evicts_(format.evicts()) {}

  Continuation write(llama::Tokens prompt, const ContinuationOptions& options, Progress& progress) {
    session_.clear();
    const std::span<const float> logits = prefill(session_, prompt, options.chunk, progress);
    if (evicts_) session_.compress();
    llama::Sampler greedy(0.0, 1.0, 0);
    Continuation continuation;
    continuation.tokens = generate_tokens(config_, session_, logits, options.tokens, greedy, [&](int32_t) {
      progress.advance(1);
      return true;
    });
    const bool ended = continuation.tokens.size() < static_cast<size_t>(options.tokens);
    continuation.repeats = !ended && ends_in_repetition(continuation.tokens);
    return continuation;
  }

  kvq_usage usage() const { return session_.usage(); }

 private:
  const llama::ModelConfig& config_;
  llama::Session session_;
  bool evicts_;
};

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

std::optional<size_t> first_difference(llama::Tokens a, llama::Tokens b) {
  if (std::ranges::equal(a, b)) return std::nullopt;
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

std::optional<size_t> median_difference(std::span<const std::optional<size_t>> differences) {
  constexpr size_t kNever = std::numeric_limits<size_t>::max();
  std::vector<size_t> sorted;
  for (const auto& difference : differences) sorted.push_back(difference.value_or(kNever));
  std::ranges::sort(sorted);
  const size_t middle = sorted[(sorted.size() - 1) / 2];
  return middle == kNever ? std::nullopt : std::optional(middle);
}

bool ends_in_repetition(llama::Tokens tokens) {
  constexpr size_t kLongestPeriod = 64;
  const llama::Tokens quarter = tokens.last(tokens.size() / 4);
  const size_t longest = std::min(kLongestPeriod, quarter.size() / 2);
  for (size_t period = 1; period <= longest; ++period) {
    if (std::ranges::equal(quarter.subspan(period), quarter.first(quarter.size() - period))) return true;
  }
  return false;
}

std::vector<size_t> prompt_begins(size_t tokens, const ContinuationOptions& options) {
  const auto prompts = static_cast<size_t>(options.prompts);
  if (tokens / prompts < static_cast<size_t>(options.prompt_tokens)) {
    throw llama::Error("the text has " + std::to_string(tokens) + " tokens, fewer than --prompts " +
                       std::to_string(prompts) + " of --prompt-tokens " + std::to_string(options.prompt_tokens));
  }
  std::vector<size_t> begins;
  for (size_t i = 0; i < prompts; ++i) begins.push_back(i * tokens / prompts);
  return begins;
}

int64_t continuation_steps(const ContinuationOptions& options) {
  return options.prompts * (int64_t{options.prompt_tokens} + options.tokens);
}

ContinuationResult measure_continuations(Engine& engine, const Spec& format, const Spec* reference,
                                         llama::Tokens tokens, const ContinuationOptions& options, Progress& progress) {
  Writer writer(engine, format);
  std::optional<Writer> beside;
  if (reference != nullptr) beside.emplace(engine, *reference);
  ContinuationResult result;
  for (const size_t begin : prompt_begins(tokens.size(), options)) {
    const auto text = tokens.subspan(begin, static_cast<size_t>(options.prompt_tokens));
    const std::vector<int32_t> prompt = with_bos(engine.model.config(), {text.begin(), text.end()});
    ComparedContinuation& compared = result.continuations.emplace_back();
    compared.begin = begin;
    if (beside) compared.reference = beside->write(prompt, options, progress);
    compared.format = writer.write(prompt, options, progress);
    if (beside) compared.first_difference = first_difference(compared.reference->tokens, compared.format.tokens);
  }
  result.usage = writer.usage();
  return result;
}

}  // namespace cli
