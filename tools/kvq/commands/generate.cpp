#include <algorithm>
#include <cstdio>

#include "commands/commands.h"
#include "measure/generation.h"
#include "terminal/files.h"

namespace cli {
namespace {

constexpr size_t kMaxPromptBytes = size_t{64} << 20;

struct GenerateOptions : WritingOptions {
  std::string prompt;
  std::string prompt_file;
};

std::string read_prompt_text(const GenerateOptions& options) {
  if (options.prompt_file.empty()) return options.prompt;
  if (options.prompt_file == "-") return read_input(kMaxPromptBytes);
  return read_text(llama::path_of(options.prompt_file), kMaxPromptBytes);
}

std::vector<int32_t> prompt_tokens(const Engine& engine, const GenerateOptions& options, const std::string& text) {
  const llama::ModelConfig& config = engine.model.config();
  std::vector<int32_t> tokens = with_bos(config, engine.tokenizer.encode(text));
  if (tokens.empty()) throw UsageError("the prompt is empty and the model has no token to begin a text with");
  const int64_t total = static_cast<int64_t>(tokens.size()) + options.max_tokens;
  if (total > config.max_positions) {
    throw UsageError("the prompt of " + std::to_string(tokens.size()) + " tokens and --max-tokens " +
                     std::to_string(options.max_tokens) + " exceed the model's " +
                     std::to_string(config.max_positions) + " positions");
  }
  return tokens;
}

void run(const GenerateOptions& options) {
  const std::string prompt_text = read_prompt_text(options);
  Engine engine = options.load();
  tune(engine, options.tuning, options.chunk);
  const Spec format = load_spec(engine, options.kv);
  const std::vector<int32_t> prompt = prompt_tokens(engine, options, prompt_text);
  llama::Session session(engine.model, engine.context, format);
  llama::Sampler sampler = options.sampling.sampler();

  std::optional<Progress> progress(std::in_place, "prompt", static_cast<int64_t>(prompt.size()));
  const std::span<const float> logits = prefill(session, prompt, options.chunk, *progress);
  progress.reset();
  if (format.evicts()) session.compress();
  if (!options.json) print_text(prompt_text);
  if (options.json) progress.emplace("text", options.max_tokens);
  std::string text;
  const auto show = [&](const std::string& more) {
    text += more;
    if (!options.json && !more.empty()) print_text(more);
  };
  StopTexts stops(options.stops);
  Pace pace;
  const std::vector<int32_t> tokens =
      generate_tokens(engine.model.config(), session, logits, options.max_tokens, sampler, [&](int32_t token) {
        pace.token();
        show(stops.add(engine.tokenizer.decode_piece(token)));
        if (progress) progress->advance(1);
        return !stops.found();
      });
  show(stops.finish());
  if (!options.json) {
    print_text("\n");
    const kvq_usage usage = session.usage();
    std::fprintf(stderr, "%zu token%s%s; the cache of %zu takes %s\n", tokens.size(), tokens.size() == 1 ? "" : "s",
                 pace.text().c_str(), prompt.size() + tokens.size(),
                 (usage_text(usage) + fp16_text(usage, options.kv)).c_str());
    return;
  }

  Json object;
  object["text"] = text;
  object["tokens"] = tokens;
  object["prompt_tokens"] = prompt.size();
  object["generated_tokens"] = tokens.size();
  object["tokens_per_second"] = json_of(pace.tokens_a_second());
  add_sizes(object, session.usage(), engine.model.weights());
  object["device"] = options.compute.device;
  print_json(object);
}

}  // namespace

void add_generate(Command app) {
  Command command = app.add_command("generate", "Continue a text");
  auto options = std::make_shared<GenerateOptions>();
  add_model_options(command, *options);
  Command prompt = command.add_alternatives("Prompt");
  prompt.add_option("--prompt", options->prompt, "Text to continue");
  prompt.add_option("--prompt-file", options->prompt_file, "File with the text to continue; -: standard input");
  add_writing_options(command, *options, "Tokens to generate at most",
                      "Tokens of the prompt that enter the cache at once");
  command.on_run([options] { run(*options); });
}

}  // namespace cli
