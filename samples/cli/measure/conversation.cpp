#include "measure/conversation.h"

#include <algorithm>
#include <utility>

#include "bench/stopwatch.h"
#include "llama/error.h"

namespace cli {
namespace {

llama::ModelConfig with_eos(llama::ModelConfig config, const Engine& engine, const llama::ChatTemplate& chat_template) {
  const std::optional<int32_t> eos = engine.tokenizer.token_id(chat_template.eos_token());
  if (eos && std::ranges::find(config.eos_tokens, *eos) == config.eos_tokens.end()) config.eos_tokens.push_back(*eos);
  return config;
}

}  // namespace

Conversation::Conversation(Engine& engine, const Spec& format, llama::Sampler sampler, int32_t chunk,
                           int32_t max_tokens)
    : engine_(engine),
      template_(engine.directory),
      evicts_(format.evicts()),
      session_(engine.model, engine.context, format),
      sampler_(std::move(sampler)),
      config_(with_eos(engine.model.config(), engine, template_)),
      chunk_(chunk),
      max_tokens_(max_tokens) {}

/// What of the conversation the cache lacks. A template that writes earlier answers otherwise than they were given, as
/// some leave out what was thought, has the whole read anew.
std::vector<int32_t> Conversation::unread(const std::string& rendered) {
  std::vector<int32_t> tokens;
  std::string_view rest = rendered;
  if (!read_.empty() && rest.starts_with(read_)) {
    rest.remove_prefix(read_.size());
    tokens = pending_;
  } else if (session_.length() > 0) {
    session_.clear();
  }
  const std::vector<int32_t> more = engine_.tokenizer.encode_with_added(rest);
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

Turn Conversation::ask(const std::string& text, const std::function<void(const std::string&)>& show) {
  messages_.push_back({"user", text});
  const std::string rendered = template_.render(messages_);
  const std::vector<int32_t> prompt = unread(rendered);
  if (prompt.empty()) throw llama::Error("the chat template writes nothing for the model to answer");
  const int64_t total = int64_t{session_.length()} + static_cast<int64_t>(prompt.size()) + max_tokens_;
  if (total > config_.max_positions) {
    throw llama::Error("the conversation and an answer of --max-tokens " + std::to_string(max_tokens_) + " take " +
                       std::to_string(total) + " positions, more than the model's " +
                       std::to_string(config_.max_positions));
  }

  Turn turn;
  turn.read_tokens = static_cast<int32_t>(prompt.size());
  std::span<const float> logits;
  {
    Progress progress("prompt", turn.read_tokens);
    logits = prefill(session_, prompt, chunk_, progress);
  }
  if (evicts_) session_.compress();
  const int32_t begin = session_.length();
  const Stopwatch watch;
  turn.tokens = generate_tokens(config_, session_, logits, max_tokens_, sampler_, [&](int32_t token) {
    const std::string piece = engine_.tokenizer.decode_piece(token);
    turn.text += piece;
    show(piece);
    return true;
  });
  turn.seconds = watch.seconds();
  pending_.assign(turn.tokens.begin() + (session_.length() - begin), turn.tokens.end());
  read_ = rendered + turn.text;
  messages_.push_back({"assistant", turn.text});
  return turn;
}

}  // namespace cli
