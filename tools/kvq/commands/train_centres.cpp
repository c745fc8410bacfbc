#include <numeric>

#include "bench/timing.h"
#include "commands/commands.h"
#include "llama/balance.h"
#include "terminal/files.h"
#include "terminal/progress.h"
#include "train/training.h"

namespace cli {
namespace {

struct TrainedCentres {
  kvq::Centres centres;
  std::vector<double> layer_seconds;
};

struct TrainCentresOptions : TrainingOptions {
  TrainCentresOptions() { tokens = 65536; }

  int32_t key_centres = 256;
  int32_t value_centres = 256;
  bool no_scales = false;
};

void print_result(const TrainCentresOptions& options, const TrainedCentres& result, uint64_t file_bytes) {
  const kvq_centres_info info = result.centres.describe();
  const double seconds = std::accumulate(result.layer_seconds.begin(), result.layer_seconds.end(), 0.0);
  Figures layers;
  for (int32_t i = 0; i < info.n_layers; ++i) {
    const kvq_centres_layer_info layer = result.centres.describe_layer(i);
    layers.begin_row();
    layers.add("layer", "layer", i, std::to_string(i));
    layers.add("left of keys", "key_residual", layer.key_residual, 4);
    layers.add("left of values", "value_residual", layer.value_residual, 4);
    if (info.key_scales != 0) {
      layers.add("noise of\nkeys", "key_noise", layer.key_noise, 2);
      layers.add("\nscaled", "scaled_key_noise", layer.scaled_key_noise, 2);
      layers.add("noise of\nvalues", "value_noise", layer.value_noise, 2);
      layers.add("\nscaled", "scaled_value_noise", layer.scaled_value_noise, 2);
    }
    layers.add("seconds", "seconds", result.layer_seconds[static_cast<size_t>(i)], 1);
  }
  if (options.json) {
    return print_json({{"file", options.out},
                       {"bytes", file_bytes},
                       {"memory_bytes", info.bytes},
                       {"key_centres", info.key_centres},
                       {"value_centres", info.value_centres},
                       {"key_residual", info.key_residual},
                       {"value_residual", info.value_residual},
                       {"tokens", info.tokens},
                       {"seconds", seconds},
                       {"layers", layers.objects()}});
  }
  layers.begin_row(false);
  layers.add("layer", "", {}, "mean");
  layers.add("left of keys", "", info.key_residual, 4);
  layers.add("left of values", "", info.value_residual, 4);
  print_text(layers.table() + "\nshares of squared norms; " + std::to_string(info.key_centres) +
             " centres for the keys and " + std::to_string(info.value_centres) + " for the values of a head, " +
             (info.key_scales != 0 ? "and scales of channels, " : "") + bytes_text(info.bytes) +
             " in memory\ntrained on " + info.note + " in " + number_text(seconds, 0) + " s\n" +
             written_text(options.out, file_bytes));
}

void add_output_projections(const TrainCentresOptions& options, const TrainingInputs& inputs,
                            kvq::CentresTrainer& trainer) {
  const llama::Checkpoint checkpoint(llama::path_of(options.model));
  const llama::ModelConfig& config = inputs.engine.model.config();
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    llama::add_output_projection(trainer, checkpoint, config, layer);
  }
}

/// Run the model over the windows, collect its keys and values, and train the layers one by one.
TrainedCentres train(const TrainCentresOptions& options, TrainingInputs& inputs) {
  if (!inputs.engine.model.config().window_inv_freq.empty()) {
    throw llama::Error(
        "layers of this model differ in RoPE, and centres are trained for one; caches find scales by "
        "themselves (@first) or by the weights (@weights)");
  }
  const Interrupt interrupt;
  auto trainer_options = kvq::initialised<kvq_centres_trainer_options>();
  trainer_options.key_centres = options.key_centres;
  trainer_options.value_centres = options.value_centres;
  trainer_options.seed = options.seed;
  trainer_options.key_scales = trainer_options.value_scales = options.no_scales ? 0 : 1;
  trainer_options.inv_freq = inputs.engine.model.config().inv_freq.data();
  set_model(trainer_options, inputs.engine, inputs.texts.note);
  TrainedCentres result{.centres = nullptr, .layer_seconds = {}};
  try {
    kvq::CentresTrainer trainer(inputs.engine.context, trainer_options);
    if (!options.no_scales) add_output_projections(options, inputs, trainer);
    const int32_t q_heads = inputs.engine.model.config().q_heads;
    collect_tokens(inputs.engine, inputs.texts.windows, !options.no_scales,
                   [&](int32_t layer, int32_t n, const float* q, const float* k, const float* v) {
                     trainer.add(layer, n, k, v, KVQ_F32);
                     if (q != nullptr) trainer.add_queries(layer, n, q_heads, q, KVQ_F32);
                   });
    Progress bar("training", trainer_options.n_layers * kLayerSteps);
    for (int32_t layer = 0; layer < trainer_options.n_layers; ++layer) {
      result.layer_seconds.push_back(train_layer(trainer, layer, bar));
    }
    result.centres = trainer.result();
  } catch (const std::runtime_error&) {
    Interrupt::check();
    throw;
  }
  return result;
}

void run(const TrainCentresOptions& options) {
  check_writable(llama::path_of(options.out));
  TrainingInputs inputs(options);
  const TrainedCentres result = train(options, inputs);
  const std::vector<std::byte> file = result.centres.save();
  write_file(llama::path_of(options.out), file);
  print_result(options, result, file.size());
}

}  // namespace

void add_train_centres(Command train) {
  Command command = train.add_command(
      "centres", "Scales of channels for every format, and centres of keys and values for gain-shape formats (gs, gt)");
  auto options = std::make_shared<TrainCentresOptions>();
  add_training_inputs(command, *options);
  command.add_number("--key-centres", options->key_centres, 0, 256, "For the keys of a head; 1: their mean, 0: none");
  command.add_number("--value-centres", options->value_centres, 0, 256, "The same for values");
  command.add_flag("--no-scales", options->no_scales, "Find centres of keys and values as they are");
  add_training_options(command, *options, "File to write");
  command.on_run([options] { run(*options); });
}

}  // namespace cli
