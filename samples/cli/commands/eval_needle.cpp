#include <memory>

#include "commands/commands.h"
#include "commands/compute.h"
#include "commands/spec.h"
#include "commands/usage_error.h"
#include "measure/filler.h"
#include "measure/needle.h"
#include "terminal/output.h"

namespace cli {
namespace {

constexpr int32_t kMinContext = 64;

struct Options {
  std::string model;
  std::string weights;
  std::string text;
  std::string kv = "fp16";
  NeedleOptions needle;
  bool compress_before_question = false;
  ComputeOptions compute;
  bool json = false;
};

void print_result(const Options& options, const NeedleResult& result, const llama::Weights& weights) {
  const double accuracy = static_cast<double>(result.found) / options.needle.samples;
  if (options.json) {
    nlohmann::ordered_json object;
    object["accuracy"] = accuracy;
    object["samples"] = options.needle.samples;
    add_usage(object, result.usage);
    add_weight_bits(object, weights);
    object["context"] = options.needle.context;
    object["seed"] = options.needle.seed;
    object["device"] = options.compute.device;
    return print_json(object);
  }
  std::string depths;
  for (const bool found : result.found_at) depths += found ? '+' : '-';
  print_text("found  " + std::to_string(result.found) + " of " + std::to_string(options.needle.samples) +
             " keys with --kv " + options.kv + " in prompts of " + std::to_string(options.needle.context) +
             " tokens\n" +                                              //
             "depth  begin " + depths + " end (+ found, - missed)\n" +  //
             "cache  " + usage_text(result.usage) + "\n");
}

NeedleResult measure(Engine& engine, const Options& options) {
  const Spec format = load_spec(engine.context.get(), options.kv);
  const std::vector<int32_t> filler =
      filler_tokens(engine, options.model, options.text, options.needle.context, options.needle.seed);
  llama::Session session(engine.model, engine.context.get(), format);
  Progress progress("needle", int64_t{options.needle.samples} * options.needle.context);
  NeedleOptions chosen = options.needle;
  if (format.evicts()) {
    chosen.compress = options.compress_before_question ? NeedleOptions::Compress::kBeforeQuestion
                                                       : NeedleOptions::Compress::kAfterPrompt;
  }
  return measure_needle(engine.model, engine.tokenizer, session, filler, chosen, progress);
}

void run(const Options& options) {
  Engine engine(options.model, options.compute, options.weights);
  if (options.needle.context > engine.model.config().max_positions) {
    throw UsageError("--context " + std::to_string(options.needle.context) + " exceeds the model's " +
                     std::to_string(engine.model.config().max_positions) + " positions");
  }
  print_result(options, measure(engine, options), engine.model.weights());
}

}  // namespace

void add_eval_needle(CLI::App& eval) {
  CLI::App* command = eval.add_subcommand("needle", "Retrieval of a five-digit key hidden in filler text");
  auto options = std::make_shared<Options>();
  command->add_option("--model", options->model, "Model directory")->required();
  add_weights_option(*command, options->weights);
  command->add_option("--text", options->text, "Filler prose (default: the model's sample.txt, else made up)");
  command->add_option("--kv", options->kv, kSpecHelp)->capture_default_str();
  command->add_option("--context", options->needle.context, "Tokens of the prompt and the answer")
      ->check(CLI::Range(kMinContext, 1 << 24))
      ->capture_default_str();
  command->add_option("--samples", options->needle.samples, "Keys to hide, one a prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--seed", options->needle.seed, "Start of the random numbers")->capture_default_str();
  command->add_option("--chunk", options->needle.chunk, "Tokens that enter the cache at once")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_flag("--compress-before-question", options->compress_before_question,
                    "If --kv evicts: before the question arrives instead of after the whole prompt, which is harder");
  add_compute_options(*command, options->compute);
  add_device_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { run(*options); });
}

}  // namespace cli
