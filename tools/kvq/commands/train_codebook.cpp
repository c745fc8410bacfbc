#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "options/spec.h"
#include "terminal/output.h"
#include "terminal/output_file.h"
#include "terminal/table.h"
#include "train/codebook_training.h"
#include "train/training.h"

namespace cli {
namespace {

struct TrainCodebookOptions : TrainingOptions {
  int32_t bits = 0;
  std::string scope = "layer";
  std::string value_method = "least-squares";
  int32_t value_rounds = 0;  // 0: the library's choice
  int32_t key_stages = 0;    // 0: those of `bits`
  int32_t key_codes = 64;
  int32_t key_group = 0;  // 0: one group a head
};

/// Mean key errors of the first stage, the first two, the first four, … and all.
std::string stages_text(const kvq::Codebook& codebook) {
  const kvq_codebook_info info = codebook.describe();
  std::string counts;
  std::string errors;
  for (int32_t next = 1; next < 2 * info.key_stages; next *= 2) {
    const int32_t stages = std::min(next, info.key_stages);
    double sum = 0.0;
    for (int32_t i = 0; i < info.n_layers; ++i) {
      sum += codebook.describe_layer(i).key_stage_errors[stages - 1];
    }
    counts += (counts.empty() ? "" : ", ") + std::to_string(stages);
    errors += (errors.empty() ? "" : ", ") + number_text(sum / info.n_layers, 4);
  }
  return "key error after " + counts + " stages: " + errors;
}

void print_result(const TrainCodebookOptions& options, const TrainedCodebook& result, uint64_t file_bytes) {
  const kvq_codebook_info info = result.codebook.describe();
  double seconds = 0.0;
  for (const double each : result.layer_seconds) seconds += std::max(each, 0.0);
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  Table table({"layer", "key error", "value error", "seconds"});
  for (int32_t i = 0; i < info.n_layers; ++i) {
    const kvq_codebook_layer_info layer = result.codebook.describe_layer(i);
    const double layer_seconds = result.layer_seconds[static_cast<size_t>(i)];
    const bool resumed = layer_seconds < 0.0;
    layers.push_back(
        {{"layer", i},
         {"key_error", layer.key_error},
         {"key_stage_errors", std::span(layer.key_stage_errors).first(static_cast<size_t>(info.key_stages))},
         {"value_error", layer.value_error},
         {"seconds", std::max(layer_seconds, 0.0)},
         {"resumed", resumed}});
    table.add_row({std::to_string(i), number_text(layer.key_error, 5), number_text(layer.value_error, 5),
                   resumed ? "kept" : number_text(layer_seconds, 1)});
  }
  if (!options.json) {
    table.add_row({"mean", number_text(info.key_error, 5), number_text(info.value_error, 5), ""});
    return print_text(table.text() + "\n" + stages_text(result.codebook) + "\nkeys " +
                      number_text(info.key_true_bits, 2) + ", values " + number_text(info.value_true_bits, 2) +
                      " bits per scalar; trained on " + info.note + " in " + number_text(seconds, 0) +
                      " s\nwritten to " + options.out + " (" + bytes_text(file_bytes) + ")\n");
  }
  nlohmann::ordered_json object;
  object["file"] = options.out;
  object["bytes"] = file_bytes;
  object["key_bits"] = info.key_true_bits;
  object["value_bits"] = info.value_true_bits;
  object["bits"] = (info.key_true_bits + info.value_true_bits) / 2.0;
  object["key_error"] = info.key_error;
  object["value_error"] = info.value_error;
  object["tokens"] = info.tokens;
  object["seconds"] = seconds;
  object["layers"] = layers;
  print_json(object);
}

CodebookTraining plan_training(const TrainingInputs& inputs, const TrainCodebookOptions& options) {
  const llama::ModelConfig& config = inputs.engine.model.config();
  CodebookTraining training;
  kvq_codebook_trainer_options_init(&training.options, sizeof(training.options));
  training.options.key_stages = options.key_stages > 0 ? options.key_stages : key_stages(options.bits, config.head_dim);
  training.options.key_codes = options.key_codes;
  training.options.key_group = options.key_group;
  training.options.value_bits = options.bits;
  training.options.value_scope = options.scope == "head" ? KVQ_SCOPE_HEAD : KVQ_SCOPE_LAYER;
  training.options.value_method = options.value_method == "network" ? KVQ_VALUES_NETWORK : KVQ_VALUES_LEAST_SQUARES;
  training.options.value_rounds = options.value_rounds;
  training.options.key_norms = training.options.value_scope;
  training.options.seed = options.seed;
  training.windows = inputs.texts.windows;
  training.note = inputs.texts.note;
  training.partial = options.out + ".partial";
  return training;
}

void run(const TrainCodebookOptions& options) {
  check_writable(options.out);
  TrainingInputs inputs(options);
  const CodebookTraining training = plan_training(inputs, options);
  const TrainedCodebook result = train_codebook(inputs.engine, training);

  const std::vector<std::byte> file = result.codebook.save();
  write_file(options.out, file);
  std::error_code ignored;
  std::filesystem::remove(training.partial, ignored);
  print_result(options, result, file.size());
}

}  // namespace

void add_train_codebook(Command train) {
  Command command = train.add_command("codebook", "CommVQ codebooks for the keys and values of a model");
  auto options = std::make_shared<TrainCodebookOptions>();
  add_training_inputs(command, *options);
  command.add_option("--bits", options->bits, "Bits of a scalar, about").required().not_empty().one_of({1, 2});
  command
      .add_option("--scope", options->scope, "Value codes and key norms of a layer's heads together, or of each head")
      .one_of({"layer", "head"})
      .show_default();
  command
      .add_option("--value-method", options->value_method,
                  "Train codes for values by least squares, or with a network that proposes bits (the paper's way)")
      .one_of({"least-squares", "network"})
      .show_default();
  command
      .add_option("--value-rounds", options->value_rounds,
                  "Rounds of least squares, or of 50 steps of the network each (default: the library's choice)")
      .range(1, 1000);
  command.add_option("--key-stages", options->key_stages, "Stages of codes for keys (default: as many as --bits allow)")
      .range(1, 64);
  command.add_option("--key-codes", options->key_codes, "Codes of a stage, a power of two")
      .not_empty()
      .one_of({2, 4, 8, 16, 32, 64, 128, 256})
      .show_default();
  command.add_option("--key-group", options->key_group, "Pairs of channels that share indices (default: a head's)")
      .range(1, 128);
  add_training_options(
      command, *options,
      "File to write; finished layers are kept in FILE.partial meanwhile, and taken up by the next run");
  command.on_run([options] { run(*options); });
}

}  // namespace cli
