#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "commands/commands.h"
#include "terminal/output.h"
#include "terminal/output_file.h"
#include "terminal/table.h"
#include "train/centres_training.h"
#include "train/training.h"

namespace cli {
namespace {

struct TrainCentresOptions : TrainingOptions {
  TrainCentresOptions() { tokens = 65536; }

  int32_t key_centres = 256;
  int32_t value_centres = 256;
};

void print_result(const TrainCentresOptions& options, const TrainedCentres& result, uint64_t file_bytes) {
  const kvq_centres_info info = result.centres.describe();
  const double seconds = std::accumulate(result.layer_seconds.begin(), result.layer_seconds.end(), 0.0);
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  Table table({"layer", "left of keys", "left of values", "seconds"});
  for (int32_t i = 0; i < info.n_layers; ++i) {
    const kvq_centres_layer_info layer = result.centres.describe_layer(i);
    const double layer_seconds = result.layer_seconds[static_cast<size_t>(i)];
    layers.push_back({{"layer", i},
                      {"key_residual", layer.key_residual},
                      {"value_residual", layer.value_residual},
                      {"seconds", layer_seconds}});
    table.add_row({std::to_string(i), number_text(layer.key_residual, 4), number_text(layer.value_residual, 4),
                   number_text(layer_seconds, 1)});
  }
  if (!options.json) {
    table.add_row({"mean", number_text(info.key_residual, 4), number_text(info.value_residual, 4), ""});
    return print_text(table.text() + "\nshares of squared norms; " + std::to_string(info.key_centres) +
                      " centres for the keys and " + std::to_string(info.value_centres) +
                      " for the values of a head, " + bytes_text(info.bytes) + " in memory\ntrained on " + info.note +
                      " in " + number_text(seconds, 0) + " s\nwritten to " + options.out + " (" +
                      bytes_text(file_bytes) + ")\n");
  }
  nlohmann::ordered_json object;
  object["file"] = options.out;
  object["bytes"] = file_bytes;
  object["memory_bytes"] = info.bytes;
  object["key_centres"] = info.key_centres;
  object["value_centres"] = info.value_centres;
  object["key_residual"] = info.key_residual;
  object["value_residual"] = info.value_residual;
  object["tokens"] = info.tokens;
  object["seconds"] = seconds;
  object["layers"] = layers;
  print_json(object);
}

void run(const TrainCentresOptions& options) {
  check_writable(options.out);
  TrainingInputs inputs(options);
  CentresTraining training;
  kvq_centres_trainer_options_init(&training.options, sizeof(training.options));
  training.options.key_centres = options.key_centres;
  training.options.value_centres = options.value_centres;
  training.options.seed = options.seed;
  training.windows = inputs.texts.windows;
  training.note = inputs.texts.note;
  const TrainedCentres result = train_centres(inputs.engine, training);

  const std::vector<std::byte> file = result.centres.save();
  write_file(options.out, file);
  print_result(options, result, file.size());
}

}  // namespace

void add_train_centres(Command train) {
  Command command = train.add_command(
      "centres", "Centres of the keys and values of a model, around which gain-shape formats (gs, gt) store them");
  auto options = std::make_shared<TrainCentresOptions>();
  add_training_inputs(command, *options);
  command.add_option("--key-centres", options->key_centres, "For the keys of a head; 1: their mean, 0: none")
      .range(0, 256)
      .show_default();
  command.add_option("--value-centres", options->value_centres, "The same for values").range(0, 256).show_default();
  add_training_options(command, *options, "File to write");
  command.on_run([options] { run(*options); });
}

}  // namespace cli
