#include "llama/balance.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "commands/commands.h"
#include "terminal/files.h"
#include "terminal/progress.h"

namespace cli {
namespace {

struct BalanceOptions {
  std::string model;
  std::filesystem::path out;
  bool powers_of_two = false;
  ComputeOptions compute;
  bool json = false;
};

/// Geometric mean over layers of one of their figures.
double mean_of(const std::vector<llama::LayerBalance>& layers, double llama::LayerBalance::*figure) {
  double logarithm = 0.0;
  for (const llama::LayerBalance& layer : layers) logarithm += std::log(layer.*figure);
  return std::exp(logarithm / static_cast<double>(layers.size()));
}

/// An Error unless the directory can be made, or is empty.
void make_directory(const std::filesystem::path& directory) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  if (failure) throw llama::Error("cannot make " + directory.string() + ": " + failure.message());
  if (!std::filesystem::is_empty(directory, failure) || failure) {
    throw llama::Error("--out " + directory.string() + " is not empty: name a new directory");
  }
}

/// What a checkpoint has beside its weights: its configuration, tokenizer, index and texts.
void copy_the_rest(const std::filesystem::path& from, const std::filesystem::path& to) {
  constexpr std::array<std::string_view, 6> kKinds = {"", ".json", ".jinja", ".md", ".model", ".txt"};
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::string kind = entry.path().extension().string();
    if (!entry.is_regular_file() || std::ranges::find(kKinds, kind) == kKinds.end()) continue;
    std::filesystem::copy_file(entry.path(), to / entry.path().filename());
  }
}

uint64_t write_files(const BalanceOptions& options, const llama::Checkpoint& checkpoint,
                     const llama::ModelConfig& config, const std::vector<llama::LayerBalance>& layers) {
  copy_the_rest(options.model, options.out);
  uint64_t bytes = 0;
  llama::fold(checkpoint, config, layers, [&](const std::string& name, const llama::SafetensorsContent& content) {
    Interrupt::check();
    OutputFile file(options.out / name);
    llama::write_safetensors(content, [&](std::span<const std::byte> piece) {
      file.write(piece);
      bytes += piece.size();
    });
    file.finish();
  });
  return bytes;
}

/// A failure leaves no directory behind.
uint64_t write_checkpoint(const BalanceOptions& options, const llama::Checkpoint& checkpoint,
                          const llama::ModelConfig& config, const std::vector<llama::LayerBalance>& layers) {
  make_directory(options.out);
  try {
    return write_files(options, checkpoint, config, layers);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(options.out, ignored);
    throw;
  }
}

void print_result(const BalanceOptions& options, const std::vector<llama::LayerBalance>& layers, uint64_t bytes) {
  Figures rows;
  for (size_t i = 0; i < layers.size(); ++i) {
    const llama::LayerBalance& layer = layers[i];
    rows.begin_row();
    rows.add("layer", "layer", i, std::to_string(i));
    rows.add("largest offset\nover spread", "largest_offset", layer.largest_offset, 1);
    rows.add("scales of keys:\nlargest/least", "key_imbalance", layer.key_imbalance, 1);
    rows.add("scales of values:\nlargest/least", "value_imbalance", layer.value_imbalance, 1);
    rows.add("noise of\nkeys", "key_noise", layer.key_noise, 2);
    rows.add("\nbalanced", "balanced_key_noise", layer.balanced_key_noise, 2);
    rows.add("noise of\nvalues", "value_noise", layer.value_noise, 2);
    rows.add("\nbalanced", "balanced_value_noise", layer.balanced_value_noise, 2);
  }
  const double keys = mean_of(layers, &llama::LayerBalance::key_noise);
  const double balanced_keys = mean_of(layers, &llama::LayerBalance::balanced_key_noise);
  const double values = mean_of(layers, &llama::LayerBalance::value_noise);
  const double balanced_values = mean_of(layers, &llama::LayerBalance::balanced_value_noise);
  const std::string out = options.out.string();
  if (options.json) {
    Json object = {{"key_noise", keys},
                   {"balanced_key_noise", balanced_keys},
                   {"value_noise", values},
                   {"balanced_value_noise", balanced_values},
                   {"layers", rows.objects()}};
    if (!out.empty()) object.update(Json{{"directory", out}, {"bytes", bytes}});
    return print_json(object);
  }
  print_text(rows.table() +
             "\nnoise: expected squared error of scores (keys) and outputs (values) from gain-shape codes, " +
             "over the least;\ngeometric mean of keys " + number_text(keys, 2) + ", balanced " +
             number_text(balanced_keys, 2) + ", of values " + number_text(values, 2) + ", balanced " +
             number_text(balanced_values, 2) + "\n" + (out.empty() ? "" : written_text(out, bytes)));
}

void run(const BalanceOptions& options) {
  const llama::ModelConfig config = llama::load_config(options.model);
  const llama::Checkpoint checkpoint(options.model);
  llama::ThreadPool threads(options.compute.threads);
  Progress progress("balancing", config.n_layers);
  std::vector<llama::LayerBalance> layers;
  for (int32_t layer = 0; layer < config.n_layers; ++layer) {
    Interrupt::check();
    layers.push_back(llama::balance_of(checkpoint, config, layer, options.powers_of_two, threads));
    progress.advance(1);
  }
  const uint64_t bytes = options.out.empty() ? 0 : write_checkpoint(options, checkpoint, config, layers);
  print_result(options, layers, bytes);
}

}  // namespace

void add_balance(Command app) {
  Command command = app.add_command(
      "balance", "Find outlier channels of keys and values, and write a checkpoint that computes the same without");
  auto options = std::make_shared<BalanceOptions>();
  add_model_option(command, options->model);
  command.add_option("--out", options->out, "Directory to write, for any engine (default: only report)").not_empty();
  command.add_flag("--powers-of-two", options->powers_of_two,
                   "Round scales to powers of two, so that no weight is rounded");
  add_threads_option(command, options->compute);
  add_json_flag(command, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
