#include <memory>

#include "commands/commands.h"
#include "commands/compute.h"
#include "commands/spec.h"
#include "commands/usage_error.h"
#include "measure/perplexity.h"
#include "measure/storage_error.h"
#include "measure/text_file.h"
#include "terminal/output.h"
#include "terminal/table.h"

namespace cli {
namespace {

struct Options {
  std::string model;
  std::string weights;
  std::string text;
  std::string kv;
  int32_t context = 2048;
  int32_t windows = 4;
  ComputeOptions compute;
  bool json = false;
};

void print_result(const Options& options, const std::vector<LayerError>& errors, size_t windows) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  Table table({"layer", "key error", "value error"});
  LayerError mean;
  for (size_t i = 0; i < errors.size(); ++i) {
    layers.push_back({{"layer", i}, {"key_error", errors[i].keys}, {"value_error", errors[i].values}});
    table.add_row({std::to_string(i), number_text(errors[i].keys, 5), number_text(errors[i].values, 5)});
    mean.keys += errors[i].keys / static_cast<double>(errors.size());
    mean.values += errors[i].values / static_cast<double>(errors.size());
  }
  if (options.json) {
    nlohmann::ordered_json object;
    object["key_error"] = mean.keys;
    object["value_error"] = mean.values;
    object["layers"] = layers;
    object["windows"] = windows;
    object["context"] = options.context;
    return print_json(object);
  }
  table.add_row({"mean", number_text(mean.keys, 5), number_text(mean.values, 5)});
  print_text(table.text() + "\nsquared error over squared norm with --kv " + options.kv + ", in " +
             std::to_string(windows) + " windows of " + std::to_string(options.context) +
             " tokens; pages left in FP16 do not count\n");
}

void run(const Options& options) {
  Engine engine(options.model, options.compute, options.weights);
  const int32_t positions = engine.model.config().max_positions;
  if (options.context > positions) {
    throw UsageError("--context " + std::to_string(options.context) + " exceeds the model's " +
                     std::to_string(positions) + " positions");
  }
  const std::vector<int32_t> tokens = engine.tokenizer.encode(read_corpus(options.text));
  const auto context = static_cast<size_t>(options.context);
  const int32_t count =
      window_count(static_cast<int64_t>(tokens.size()), {.context = options.context, .windows = options.windows});
  std::vector<std::span<const int32_t>> windows;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    windows.push_back(std::span(tokens).subspan(i * context, context));
  }
  const Spec format = load_spec(engine.context.get(), options.kv);
  Progress progress("error",
                    static_cast<int64_t>(windows.size() * context) * (1 + int64_t{engine.model.config().n_layers}));
  print_result(options, measure_storage_error(engine, format, windows, progress), windows.size());
}

}  // namespace

void add_eval_error(CLI::App& eval) {
  CLI::App* command = eval.add_subcommand("error", "Error of stored keys and values of a text, layer by layer");
  auto options = std::make_shared<Options>();
  command->add_option("--model", options->model, "Model directory")->required();
  add_weights_option(*command, options->weights);
  command->add_option("--text", options->text, "Text file; its tokens are used without BOS")->required();
  command->add_option("--kv", options->kv, kSpecHelp)->required();
  command->add_option("--context", options->context, "Tokens of a window")
      ->check(CLI::Range(2, 1 << 24))
      ->capture_default_str();
  command->add_option("--windows", options->windows, "At most the first N windows")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  add_compute_options(*command, options->compute);
  command->add_flag("--json", options->json, "Print one JSON object");
  command->callback([options] { run(*options); });
}

}  // namespace cli
