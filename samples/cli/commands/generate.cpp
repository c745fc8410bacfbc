#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/stopwatch.h"
#include "commands/commands.h"
#include "measure/generation.h"
#include "options/model_options.h"
#include "options/usage_error.h"
#include "terminal/output.h"

namespace cli {
namespace {

struct Options : ModelOptions {
  std::string prompt;
  int32_t max_tokens = 128;
  int32_t chunk = 32;
  double temperature = 0.0;
  double top_p = 0.95;
  uint64_t seed = 1;
};

std::vector<int32_t> prompt_tokens(const Engine& engine, const Options& options) {
  const llama::ModelConfig& config = engine.model.config();
  std::vector<int32_t> tokens = with_bos(config, engine.tokenizer.encode(options.prompt));
  if (tokens.empty()) throw UsageError("--prompt is empty and the model has no token to begin a text with");
  const int64_t total = static_cast<int64_t>(tokens.size()) + options.max_tokens;
  if (total > config.max_positions) {
    throw UsageError("the prompt of " + std::to_string(tokens.size()) + " tokens and --max-tokens " +
                     std::to_string(options.max_tokens) + " exceed the model's " +
                     std::to_string(config.max_positions) + " positions");
  }
  return tokens;
}

std::span<const float> read_prompt(llama::Session& session, std::span<const int32_t> prompt, int32_t chunk) {
  Progress progress("prompt", static_cast<int64_t>(prompt.size()));
  return prefill(session, prompt, chunk, progress);
}

void run(const Options& options) {
  Engine engine = options.load();
  const Spec format = load_spec(engine, options.kv);
  const std::vector<int32_t> prompt = prompt_tokens(engine, options);
  llama::Session session(engine.model, engine.context, format);
  llama::Sampler sampler(options.temperature, options.top_p, options.seed);

  const std::span<const float> logits = read_prompt(session, prompt, options.chunk);
  if (format.evicts()) session.compress();
  if (!options.json) print_text(options.prompt);
  std::optional<Progress> progress;
  if (options.json) progress.emplace("text", options.max_tokens);
  const Stopwatch watch;
  const std::vector<int32_t> tokens =
      generate_tokens(engine.model.config(), session, logits, options.max_tokens, sampler, [&](int32_t token) {
        if (progress) {
          progress->advance(1);
        } else {
          print_text(engine.tokenizer.decode_piece(token));
        }
        return true;
      });
  const double seconds = watch.seconds();
  if (!options.json) return print_text("\n");

  std::string text;
  for (const int32_t token : tokens) text += engine.tokenizer.decode_piece(token);
  nlohmann::ordered_json object;
  object["text"] = text;
  object["tokens"] = tokens;
  object["prompt_tokens"] = prompt.size();
  object["generated_tokens"] = tokens.size();
  object["tokens_per_second"] = static_cast<double>(tokens.size()) / seconds;
  add_sizes(object, session.usage(), engine.model.weights());
  object["device"] = options.compute.device;
  print_json(object);
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Continue a text");
  auto options = std::make_shared<Options>();
  add_model_options(*command, *options);
  command->add_option("--prompt", options->prompt, "Text to continue")->required();
  command->add_option("--max-tokens", options->max_tokens, "Tokens to generate at most")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  add_kv_option(*command, options->kv);
  command->add_option("--temperature", options->temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-p", options->top_p, "With a temperature: choose among the likeliest tokens of this mass")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "With a temperature: start of the random numbers")
      ->capture_default_str();
  add_chunk_option(*command, options->chunk, "Tokens of the prompt that enter the cache at once");
  add_compute_options(*command, options->compute);
  add_device_options(*command, options->compute);
  add_json_flag(*command, options->json);
  command->callback([options] { run(*options); });
}

}  // namespace cli
