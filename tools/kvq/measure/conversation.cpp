#include "measure/conversation.h"

#include <algorithm>
#include <utility>

#include "measure/stop_texts.h"

namespace cli {
namespace {

llama::ModelConfig with_eos(llama::ModelConfig config, const Engine& engine, const llama::ChatTemplate& chat_template) {
  const std::optional<int32_t> eos = engine.tokenizer.token_id(chat_template.eos_token());
  if (eos && std::ranges::find(config.eos_tokens, *eos) == config.eos_tokens.end()) config.eos_tokens.push_back(*eos);
  return config;
}

}  // namespace

Conversation::Conversation(Engine& engine, const Spec& format, llama::Sampler sampler, int32_t chunk,
                           int32_t max_tokens, std::vector<std::string> stops)
    : engine_(engine),
      template_(engine.directory),
      evicts_(format.evicts()),
      session_(engine.model, engine.context, format),
      sampler_(std::move(sampler)),
      config_(with_eos(engine.model.config(), engine, template_)),
      chunk_(chunk),
      max_tokens_(max_tokens),
      stops_(std::move(stops)) {}

/// What of a conversation the cache lacks. A template that writes earlier answers otherwise than they were given, as
/// some leave out what was thought, has the whole read anew.
Conversation::Unread Conversation::unread(const std::string& rendered) const {
  Unread unread{.rendered = rendered, .kept = 0, .tokens = {}};
  std::string_view rest = rendered;
  if (!read_.empty() && rest.starts_with(read_)) {
    rest.remove_prefix(read_.size());
    unread.kept = session_.length();
    unread.tokens = pending_;
  }
  const std::vector<int32_t> more = engine_.tokenizer.encode_with_added(rest);
  unread.tokens.insert(unread.tokens.end(), more.begin(), more.end());
  if (unread.tokens.empty()) throw llama::Error("the chat template writes nothing for the model to answer");
  const int64_t total = int64_t{unread.kept} + static_cast<int64_t>(unread.tokens.size()) + max_tokens_;
  if (total > config_.max_positions) {
    throw llama::Error("the conversation and an answer of --max-tokens " + std::to_string(max_tokens_) + " take " +
                       std::to_string(total) + " positions, more than the model's " +
                       std::to_string(config_.max_positions));
  }
  return unread;
}

/// What is to be read for these messages, or why they are refused.
Conversation::Unread Conversation::prompt_of(const std::vector<llama::ChatMessage>& messages) const {
  try {
    return unread(template_.render(messages));
  } catch (const llama::Error& error) {
    throw RefusedTurn(error.what());
  }
}

Turn Conversation::ask(const std::string& text, const std::function<void(const std::string&)>& show) {
  std::vector<llama::ChatMessage> messages = messages_;
  messages.push_back({"user", text});
  const Unread prompt = prompt_of(messages);

  read_.clear();  // until it is known what the cache holds
  if (prompt.kept == 0) session_.clear();
  Turn turn;
  turn.read_tokens = static_cast<int32_t>(prompt.tokens.size());
  std::span<const float> logits;
  {
    Progress progress("prompt", turn.read_tokens);
    logits = prefill(session_, prompt.tokens, chunk_, progress);
  }
  if (evicts_) session_.compress();
  const int32_t begin = session_.length();
  std::string said;  // with the text that ended it
  const auto answer = [&](const std::string& more) {
    turn.text += more;
    if (!more.empty()) show(more);
  };
  StopTexts stops(stops_);
  turn.tokens = generate_tokens(config_, session_, logits, max_tokens_, sampler_, [&](int32_t token) {
    turn.pace.token();
    const std::string piece = engine_.tokenizer.decode_piece(token);
    said += piece;
    answer(stops.add(piece));
    return !stops.found();
  });
  answer(stops.finish());
  pending_.assign(turn.tokens.begin() + (session_.length() - begin), turn.tokens.end());
  read_ = prompt.rendered + said;
  messages.push_back({"assistant", turn.text});
  messages_ = std::move(messages);
  return turn;
}

}  // namespace cli
