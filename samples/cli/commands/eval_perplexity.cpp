#include <memory>

#include "commands/commands.h"
#include "commands/compute.h"
#include "commands/spec.h"
#include "commands/usage_error.h"
#include "measure/perplexity.h"
#include "measure/text_file.h"
#include "terminal/output.h"

namespace cli {
namespace {

struct Options {
  std::string model;
  std::string weights;
  std::string text;
  std::string kv = "fp16";
  PerplexityOptions perplexity;
  ComputeOptions compute;
  bool per_window = false;
  bool json = false;
};

void print_result(const Options& options, const PerplexityResult& result, const llama::Weights& weights) {
  if (options.json) {
    nlohmann::ordered_json object;
    object["perplexity"] = result.perplexity;
    object["tokens"] = result.tokens;
    add_usage(object, result.usage);
    add_weight_bits(object, weights);
    object["tokens_per_second"] = result.tokens_per_second;
    object["windows"] = result.window_mean_nll.size();
    object["context"] = options.perplexity.context;
    object["chunk"] = options.perplexity.chunk;
    object["device"] = options.compute.device;
    if (options.per_window) object["window_mean_nll"] = result.window_mean_nll;
    print_json(object);
    return;
  }
  if (options.per_window) {
    for (size_t i = 0; i < result.window_mean_nll.size(); ++i) {
      print_text("window " + std::to_string(i) + ": mean negative log-likelihood " +
                 number_text(result.window_mean_nll[i], 6) + "\n");
    }
  }
  print_text("perplexity " + number_text(result.perplexity, 4) + " with --kv " + options.kv + " over " +
             std::to_string(result.tokens) + " tokens in " + std::to_string(result.window_mean_nll.size()) +
             " windows of " + std::to_string(options.perplexity.context) + "\n" +  //
             "cache      " + usage_text(result.usage) + "\n" +                     //
             "weights    " + weight_bits_text(weights) + "\n" + "speed      " +
             number_text(result.tokens_per_second, 0) + " tokens per second\n");
}

PerplexityResult measure(Engine& engine, std::span<const int32_t> tokens, const Options& options) {
  const Spec format = load_spec(engine.context.get(), options.kv);
  llama::Session session(engine.model, engine.context.get(), format);
  const int64_t windows = window_count(static_cast<int64_t>(tokens.size()), options.perplexity);
  Progress progress("perplexity", windows * options.perplexity.context);
  PerplexityOptions chosen = options.perplexity;
  chosen.compress = format.evicts();
  chosen.second_half = chosen.second_half || chosen.compress;
  return measure_perplexity(engine.model, session, tokens, chosen, progress);
}

void run(const Options& options) {
  Engine engine(options.model, options.compute, options.weights);
  const std::vector<int32_t> tokens = engine.tokenizer.encode(read_corpus(options.text));
  if (options.perplexity.context > engine.model.config().max_positions) {
    throw UsageError("--context " + std::to_string(options.perplexity.context) + " exceeds the model's " +
                     std::to_string(engine.model.config().max_positions) + " positions");
  }
  print_result(options, measure(engine, tokens, options), engine.model.weights());
}

}  // namespace

void add_eval_perplexity(CLI::App& eval) {
  CLI::App* command = eval.add_subcommand("perplexity", "Perplexity of a text, tokens seeing compressed pages");
  auto options = std::make_shared<Options>();
  command->add_option("--model", options->model, "Model directory")->required();
  add_weights_option(*command, options->weights);
  command->add_option("--text", options->text, "Text file; its tokens are used without BOS")->required();
  command->add_option("--kv", options->kv, kSpecHelp)->capture_default_str();
  command->add_option("--context", options->perplexity.context, "Tokens of a window")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  command->add_option("--windows", options->perplexity.windows, "Only the first N windows (default: all)")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--chunk", options->perplexity.chunk, "Tokens that enter the cache at once")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  add_compute_options(*command, options->compute);
  add_device_options(*command, options->compute);
  command->add_flag(
      "--second-half", options->perplexity.second_half,
      "Score only the second half of each window; always so if --kv evicts, which happens between the halves");
  command->add_flag("--per-window", options->per_window, "Report every window too");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { run(*options); });
}

}  // namespace cli
