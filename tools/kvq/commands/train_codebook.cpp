#include <algorithm>

#include "bench/timing.h"
#include "commands/commands.h"
#include "llama/mapped_file.h"
#include "terminal/files.h"
#include "terminal/progress.h"
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
  std::string scales;     // a file, "weights", or empty: none
};

struct TrainedCodebook {
  kvq::Codebook codebook;
  std::vector<double> layer_seconds;  // negative: the layer was finished by an earlier run
};

std::filesystem::path partial_of(const TrainCodebookOptions& options) {
  return llama::path_of(options.out + ".partial");
}

kvq_codebook_trainer_options trainer_options_of(const TrainCodebookOptions& options, const TrainingInputs& inputs,
                                                const kvq_centres* scales) {
  const int32_t head_dim = inputs.engine.model.config().head_dim;
  auto result = kvq::initialised<kvq_codebook_trainer_options>();
  result.key_stages = options.key_stages > 0 ? options.key_stages : key_stages(options.bits, head_dim);
  result.key_codes = options.key_codes;
  result.key_group = options.key_group;
  result.value_bits = options.bits;
  result.value_scope = options.scope == "head" ? KVQ_SCOPE_HEAD : KVQ_SCOPE_LAYER;
  result.value_method = options.value_method == "network" ? KVQ_VALUES_NETWORK : KVQ_VALUES_LEAST_SQUARES;
  result.value_rounds = options.value_rounds;
  result.key_norms = result.value_scope;
  result.seed = options.seed;
  result.scales = scales;
  set_model(result, inputs.engine, inputs.texts.note);
  return result;
}

void resume(kvq_context* context, kvq::CodebookTrainer& trainer, const std::filesystem::path& partial) {
  std::error_code ignored;
  if (!std::filesystem::exists(partial, ignored)) return;
  try {
    const llama::MappedFile file(partial);
    const kvq::Codebook codebook = kvq::Codebook::load(context, file.bytes());
    trainer.resume(codebook);
  } catch (const kvq::Error& error) {
    throw llama::Error(partial.string() + " holds other work: " + error.what() + "; remove it or choose another --out");
  }
}

std::vector<bool> finished_layers(const kvq::CodebookTrainer& trainer, int32_t n_layers) {
  const kvq::Codebook codebook = trainer.result();
  std::vector<bool> finished;
  for (int32_t i = 0; i < n_layers; ++i) {
    finished.push_back(codebook.describe_layer(i).present != 0);
  }
  return finished;
}

/// Of a cache that will use the codebooks; nullptr: none.
kvq::Centres load_scales(const Engine& engine, const std::string& scales) {
  if (scales.empty()) return nullptr;
  kvq::Centres centres = load_spec(engine, "fp16@" + scales, "--scales").centres;
  if (centres == nullptr) throw UsageError("--scales " + scales + ": must be \"weights\" or a file of scales");
  return centres;
}

/// Run the model over the windows, collect the keys and values of the layers that are not in `partial` yet, and train
/// them one by one. After an interruption and every other failure `partial` holds the layers finished so far.
TrainedCodebook train_layers(const TrainCodebookOptions& options, TrainingInputs& inputs) {
  Engine& engine = inputs.engine;
  const std::filesystem::path partial = partial_of(options);
  const kvq::Centres scales = load_scales(engine, options.scales);
  const kvq_codebook_trainer_options trainer_options = trainer_options_of(options, inputs, scales);
  const int32_t n_layers = trainer_options.n_layers;
  kvq::CodebookTrainer trainer(engine.context, trainer_options);
  resume(engine.context, trainer, partial);
  const std::vector<bool> finished = finished_layers(trainer, n_layers);
  TrainedCodebook result{.codebook = nullptr, .layer_seconds = std::vector<double>(finished.size(), -1.0)};
  if (std::ranges::find(finished, false) != finished.end()) {
    collect_tokens(engine, inputs.texts.windows, false,
                   [&](int32_t layer, int32_t n, const float* /*q*/, const float* k, const float* v) {
                     if (!finished[static_cast<size_t>(layer)]) trainer.add(layer, n, k, v, KVQ_F32);
                   });
  }
  Progress bar("training", n_layers * kLayerSteps);
  for (int32_t layer = 0; layer < n_layers; ++layer) {
    if (finished[static_cast<size_t>(layer)]) {
      bar.advance(kLayerSteps);
      continue;
    }
    result.layer_seconds[static_cast<size_t>(layer)] = train_layer(trainer, layer, bar);
    write_file(partial, trainer.result().save());
  }
  result.codebook = trainer.result();
  return result;
}

TrainedCodebook train(const TrainCodebookOptions& options, TrainingInputs& inputs) {
  const Interrupt interrupt;
  try {
    return train_layers(options, inputs);
  } catch (const std::runtime_error&) {
    if (!Interrupt::requested()) throw;
  }
  std::error_code ignored;
  const std::filesystem::path partial = partial_of(options);
  if (!std::filesystem::exists(partial, ignored)) throw Interrupted();
  throw llama::Error("interrupted; the same command goes on from the layers kept in " + partial.string());
}

/// Mean key errors of the first stage, the first two, the first four, … and all.
std::string stages_text(const kvq::Codebook& codebook) {
  const kvq_codebook_info info = codebook.describe();
  std::vector<std::string> counts;
  std::vector<std::string> errors;
  for (int32_t next = 1; next < 2 * info.key_stages; next *= 2) {
    const int32_t stages = std::min(next, info.key_stages);
    double sum = 0.0;
    for (int32_t i = 0; i < info.n_layers; ++i) sum += codebook.describe_layer(i).key_stage_errors[stages - 1];
    counts.push_back(std::to_string(stages));
    errors.push_back(number_text(sum / info.n_layers, 4));
  }
  return "key error after " + joined(counts) + " stages: " + joined(errors);
}

void print_result(const TrainCodebookOptions& options, const TrainedCodebook& result, uint64_t file_bytes) {
  const kvq_codebook_info info = result.codebook.describe();
  double seconds = 0.0;
  Figures layers;
  for (int32_t i = 0; i < info.n_layers; ++i) {
    const kvq_codebook_layer_info layer = result.codebook.describe_layer(i);
    const double layer_seconds = result.layer_seconds[static_cast<size_t>(i)];
    const bool resumed = layer_seconds < 0.0;
    seconds += std::max(layer_seconds, 0.0);
    layers.begin_row();
    layers.add("layer", "layer", i, std::to_string(i));
    layers.add("key error", "key_error", layer.key_error, 5);
    const auto stages = std::span(layer.key_stage_errors).first(static_cast<size_t>(info.key_stages));
    layers.add("", "key_stage_errors", stages, "");
    layers.add("value error", "value_error", layer.value_error, 5);
    layers.add("seconds", "seconds", std::max(layer_seconds, 0.0), resumed ? "kept" : number_text(layer_seconds, 1));
    layers.add("", "resumed", resumed, "");
  }
  if (options.json) {
    return print_json({{"file", options.out},
                       {"bytes", file_bytes},
                       {"key_bits", info.key_true_bits},
                       {"value_bits", info.value_true_bits},
                       {"bits", (info.key_true_bits + info.value_true_bits) / 2.0},
                       {"key_error", info.key_error},
                       {"value_error", info.value_error},
                       {"tokens", info.tokens},
                       {"seconds", seconds},
                       {"layers", layers.objects()}});
  }
  layers.begin_row(false);
  layers.add("layer", "", {}, "mean");
  layers.add("key error", "", info.key_error, 5);
  layers.add("value error", "", info.value_error, 5);
  print_text(layers.table() + "\n" + stages_text(result.codebook) + "\nkeys " + number_text(info.key_true_bits, 2) +
             ", values " + number_text(info.value_true_bits, 2) + " bits per scalar; trained on " + info.note + " in " +
             number_text(seconds, 0) + " s\n" + written_text(options.out, file_bytes));
}

void run(const TrainCodebookOptions& options) {
  check_writable(llama::path_of(options.out));
  TrainingInputs inputs(options);
  const TrainedCodebook result = train(options, inputs);
  const std::vector<std::byte> file = result.codebook.save();
  write_file(llama::path_of(options.out), file);
  std::error_code ignored;
  std::filesystem::remove(partial_of(options), ignored);
  print_result(options, result, file.size());
}

}  // namespace

void add_train_codebook(Command train) {
  Command command = train.add_command("codebook", "CommVQ codebooks for the keys and values of a model");
  auto options = std::make_shared<TrainCodebookOptions>();
  add_training_inputs(command, *options);
  command.add_option("--bits", options->bits, "Bits of a scalar, about").required().not_empty().one_of({1, 2});
  command.add_choice("--scope", options->scope, {"layer", "head"},
                     "Value codes and key norms of a layer's heads together, or of each head");
  command.add_choice("--value-method", options->value_method, {"least-squares", "network"},
                     "Train codes for values by least squares, or with a network that proposes bits (the paper's way)");
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
  command.add_option(
      "--scales", options->scales,
      "Scales of a cache that will use the codebooks: a file of `kvq balance`, or \"weights\" for those by "
      "the model's weights (default: none)");
  add_training_options(
      command, *options,
      "File to write; finished layers are kept in FILE.partial meanwhile, and taken up by the next run");
  command.on_run([options] { run(*options); });
}

}  // namespace cli
