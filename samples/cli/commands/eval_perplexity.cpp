#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "measure/perplexity.h"
#include "options/model_options.h"
#include "terminal/output.h"
#include "terminal/text_file.h"

namespace cli {
namespace {

struct Options : ModelOptions {
  std::string text;
  PerplexityOptions perplexity;
  bool per_window = false;
};

void print_result(const Options& options, const PerplexityResult& result, const llama::Weights& weights) {
  if (options.json) {
    nlohmann::ordered_json object;
    object["perplexity"] = result.perplexity;
    object["tokens"] = result.tokens;
    add_sizes(object, result.usage, weights);
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
  const PerplexityOptions& measured = options.perplexity;
  const Spec format = load_spec(engine.context, options.kv);
  const size_t windows = first_windows(tokens, measured.context, measured.windows).size();
  Progress progress("perplexity", static_cast<int64_t>(windows) * measured.context);
  return measure_perplexity(engine, format, tokens, measured, progress);
}

void run(const Options& options) {
  Engine engine = options.load();
  const std::vector<int32_t> tokens = engine.tokenizer.encode(read_corpus(options.text));
  check_context(options.perplexity.context, engine.model.config());
  print_result(options, measure(engine, tokens, options), engine.model.weights());
}

}  // namespace

void add_eval_perplexity(CLI::App& eval) {
  CLI::App* command = eval.add_subcommand("perplexity", "Perplexity of a text, tokens seeing compressed pages");
  auto options = std::make_shared<Options>();
  add_model_options(*command, *options);
  add_text_option(*command, options->text);
  add_kv_option(*command, options->kv);
  add_context_option(*command, options->perplexity.context, 2, "Tokens of a window");
  command->add_option("--windows", options->perplexity.windows, "Only the first N windows (default: all)")
      ->check(CLI::Range(1, 1 << 30));
  add_chunk_option(*command, options->perplexity.chunk);
  add_compute_options(*command, options->compute);
  add_device_options(*command, options->compute);
  command->add_flag(
      "--second-half", options->perplexity.second_half,
      "Score only the second half of each window; always so if --kv evicts, which happens between the halves");
  command->add_flag("--per-window", options->per_window, "Report every window too");
  add_json_flag(*command, options->json);
  command->callback([options] { run(*options); });
}

}  // namespace cli
