#include <memory>
#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "measure/perplexity.h"
#include "measure/storage_error.h"
#include "options/model_options.h"
#include "terminal/output.h"
#include "terminal/table.h"
#include "terminal/text_file.h"

namespace cli {
namespace {

struct EvalErrorOptions : ModelOptions {
  std::string text;
  int32_t context = 2048;
  int32_t windows = 4;
};

void print_result(const EvalErrorOptions& options, const std::vector<LayerError>& errors, size_t windows) {
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

void run(const EvalErrorOptions& options) {
  Engine engine = options.load();
  const llama::ModelConfig& config = engine.model.config();
  check_context(options.context, config);
  const std::vector<int32_t> tokens = engine.tokenizer.encode(read_corpus(options.text));
  const std::vector<std::span<const int32_t>> windows = first_windows(tokens, options.context, options.windows);
  const Spec format = load_spec(engine, options.kv);
  Progress progress("error", static_cast<int64_t>(windows.size()) * options.context * (1 + config.n_layers));
  const std::vector<LayerError> errors = measure_storage_error(engine, format, windows, progress);
  print_result(options, errors, windows.size());
}

}  // namespace

void add_eval_error(Command eval) {
  Command command = eval.add_command("error", "Error of stored keys and values of a text, layer by layer");
  auto options = std::make_shared<EvalErrorOptions>();
  add_model_options(command, *options);
  add_text_option(command, options->text);
  command.add_option("--kv", options->kv, kSpecHelp).required();
  add_context_option(command, options->context, 2, "Tokens of a window");
  command.add_option("--windows", options->windows, "At most the first N windows").range(1, 1 << 30).show_default();
  add_compute_options(command, options->compute);
  add_device_options(command, options->compute);
  add_json_flag(command, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
