#include <algorithm>
#include <cstdio>
#include <iostream>

#include "commands/commands.h"
#include "llama/chat_template.h"
#include "llama/system.h"
#include "measure/generation.h"

namespace cli {
namespace {

struct Turn {
  std::string text;
  int32_t read_tokens = 0;  // that entered the cache before the answer
  std::vector<int32_t> tokens;
  Pace pace;
};

class RefusedTurn : public llama::Error {
 public:
  using Error::Error;
};

llama::ModelConfig with_eos(llama::ModelConfig config, const Engine& engine, const llama::ChatTemplate& chat_template) {
  const std::optional<int32_t> eos = engine.tokenizer.token_id(chat_template.eos_token());
  if (eos && std::ranges::find(config.eos_tokens, *eos) == config.eos_tokens.end()) config.eos_tokens.push_back(*eos);
  return config;
}

/// A chat with a model, whose cache keeps what was said: a turn reads no more than what is new.
class Conversation {
 public:
  /// \param stops  texts before which an answer ends.
  Conversation(Engine& engine, const Spec& format, llama::Sampler sampler, int32_t chunk, int32_t max_tokens,
               std::vector<std::string> stops)
      : engine_(engine),
        template_(engine.directory),
        evicts_(format.evicts()),
        session_(engine.model, engine.context, format),
        sampler_(std::move(sampler)),
        config_(with_eos(engine.model.config(), engine, template_)),
        chunk_(chunk),
        max_tokens_(max_tokens),
        stops_(std::move(stops)) {}

  /// Before the first turn.
  void set_system(const std::string& text) { messages_.push_back({"system", text}); }
  /// Ask, and show the answer piece by piece. A RefusedTurn if the template refuses the messages or the model has no
  /// positions left. After any failure the conversation is as if this had not been asked.
  Turn ask(const std::string& text, const std::function<void(const std::string&)>& show);

  const llama::Session& session() const { return session_; }

 private:
  struct Unread {
    std::string rendered;         // the whole conversation
    int32_t kept = 0;             // tokens that the cache has; 0: it is to be cleared
    std::vector<int32_t> tokens;  // that it lacks
  };

  Unread unread(const std::string& rendered) const;
  Unread prompt_of(const std::vector<llama::ChatMessage>& messages) const;

  Engine& engine_;
  llama::ChatTemplate template_;
  bool evicts_;
  llama::Session session_;
  llama::Sampler sampler_;
  llama::ModelConfig config_;  // with the template's end of an answer
  int32_t chunk_;
  int32_t max_tokens_;
  std::vector<std::string> stops_;
  std::vector<llama::ChatMessage> messages_;
  std::string read_;              // what the cache holds, and `pending_`
  std::vector<int32_t> pending_;  // the last token of an answer that was cut off
};

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

struct ChatOptions : WritingOptions {
  ChatOptions() { max_tokens = 512; }

  std::string system;
  std::string prompt;
};

void print_turn(const Turn& turn, const llama::Session& session, const Engine& engine) {
  Json object;
  object["text"] = turn.text;
  object["tokens"] = turn.tokens;
  object["prompt_tokens"] = turn.read_tokens;
  object["generated_tokens"] = turn.tokens.size();
  object["tokens_per_second"] = json_of(turn.pace.tokens_a_second());
  add_sizes(object, session.usage(), engine.model.weights());
  print_json(object);
}

/// The answer, or nothing if somebody is there who reads why not and may ask otherwise.
std::optional<Turn> answer(Conversation& conversation, const std::string& line, bool by_hand) {
  try {
    return conversation.ask(line, print_text);
  } catch (const RefusedTurn& refusal) {
    if (!by_hand) throw;
    std::cerr << "kvq: " << refusal.what() << '\n';
    return {};
  }
}

/// Lines are turns until there are no more or one is "/exit".
void talk(Conversation& conversation, const ChatOptions& options) {
  const bool by_hand = llama::is_terminal(stdin);
  std::string line;
  for (;;) {
    if (by_hand) std::cerr << "> " << std::flush;
    if (!std::getline(std::cin, line) || line == "/exit") break;
    if (line.empty()) continue;
    const std::optional<Turn> turn = answer(conversation, line, by_hand);
    if (!turn) continue;
    print_text("\n");
    const kvq_usage usage = conversation.session().usage();
    std::fprintf(stderr, "[%d tokens read, %zu written%s; the cache takes %s]\n", turn->read_tokens,
                 turn->tokens.size(), turn->pace.text().c_str(),
                 (usage_text(usage) + fp16_text(usage, options.kv)).c_str());
  }
  if (by_hand) std::cerr << '\n';
}

void run(const ChatOptions& options) {
  if (options.json && options.prompt.empty()) throw UsageError("--json is for one turn: give it with --prompt");
  Engine engine = options.load();
  tune(engine, options.tuning, options.chunk);
  const Spec format = load_spec(engine, options.kv);
  Conversation conversation(engine, format, options.sampling.sampler(), options.chunk, options.max_tokens,
                            options.stops);
  if (!options.system.empty()) conversation.set_system(options.system);
  if (options.prompt.empty()) return talk(conversation, options);
  const Turn turn = conversation.ask(options.prompt, [&](const std::string& piece) {
    if (!options.json) print_text(piece);
  });
  if (options.json) return print_turn(turn, conversation.session(), engine);
  print_text("\n");
}

}  // namespace

void add_chat(Command app) {
  Command command = app.add_command("chat", "Talk with a model: a line of standard input is a turn, /exit ends");
  auto options = std::make_shared<ChatOptions>();
  add_model_options(command, *options);
  command.add_option("--system", options->system, "What the model is told before the conversation");
  command.add_option("--prompt", options->prompt, "Answer this and end").not_empty();
  add_writing_options(command, *options, "Tokens of an answer at most",
                      "Tokens of a turn that enter the cache at once");
  command.on_run([options] { run(*options); });
}

}  // namespace cli
