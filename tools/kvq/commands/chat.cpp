#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands/commands.h"
#include "measure/conversation.h"
#include "options/model_options.h"
#include "options/tuning.h"
#include "options/command.h"
#include "terminal/optional_json.h"
#include "terminal/output.h"

namespace cli {
namespace {

struct ChatOptions : ModelOptions {
  std::string system;
  std::string prompt;
  std::vector<std::string> stops;
  int32_t max_tokens = 512;
  int32_t chunk = 256;
  std::string tuning;
  SamplingOptions sampling;
};

void print_turn(const Turn& turn, const llama::Session& session, const Engine& engine) {
  nlohmann::ordered_json object;
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
  const bool by_hand = isatty(STDIN_FILENO) == 1;
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
  add_stop_option(command, options->stops);
  command.add_option("--max-tokens", options->max_tokens, "Tokens of an answer at most")
      .range(1, 1 << 24)
      .show_default();
  add_kv_option(command, options->kv);
  add_sampling_options(command, options->sampling);
  add_chunk_option(command, options->chunk, "Tokens of a turn that enter the cache at once");
  add_tuning_option(command, options->tuning);
  add_compute_options(command, options->compute);
  add_device_options(command, options->compute);
  add_json_flag(command, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
