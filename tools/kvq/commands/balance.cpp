#include "llama/balance.h"

#include <optional>

#include "commands/commands.h"
#include "terminal/files.h"
#include "terminal/progress.h"
#include "train/balancing.h"

namespace cli {
namespace {

struct BalanceOptions {
  std::string model;
  std::filesystem::path out;
  std::string scales;
  bool powers_of_two = false;
  ComputeOptions compute;
  bool json = false;
};

/// What scales make of a model's noise.
struct Report {
  explicit Report(const kvq::Centres& scales) : mean(llama::outliers_of(scales)) {
    for (int32_t i = 0; i < scales.describe().n_layers; ++i) layers.push_back(scales.describe_layer(i));
  }

  std::vector<kvq_centres_layer_info> layers;
  llama::Outliers mean;
};

/// What was written where, and how many bytes.
struct Written {
  std::string path;
  uint64_t bytes;
};

void print_result(const BalanceOptions& options, const Report& report, const std::vector<Written>& written) {
  Figures rows;
  for (size_t i = 0; i < report.layers.size(); ++i) {
    const kvq_centres_layer_info& layer = report.layers[i];
    rows.begin_row();
    rows.add("layer", "layer", i, std::to_string(i));
    rows.add("largest offset\nover spread", "largest_offset", layer.key_offset, 1);
    rows.add("scales of keys:\nlargest/least", "key_imbalance", layer.key_imbalance, 1);
    rows.add("scales of values:\nlargest/least", "value_imbalance", layer.value_imbalance, 1);
    rows.add("noise of\nkeys", "key_noise", layer.key_noise, 2);
    rows.add("\nbalanced", "balanced_key_noise", layer.scaled_key_noise, 2);
    rows.add("noise of\nvalues", "value_noise", layer.value_noise, 2);
    rows.add("\nbalanced", "balanced_value_noise", layer.scaled_value_noise, 2);
  }
  const auto& [keys, balanced_keys, values, balanced_values] = report.mean;
  if (options.json) {
    Json object = {{"key_noise", keys},
                   {"balanced_key_noise", balanced_keys},
                   {"value_noise", values},
                   {"balanced_value_noise", balanced_values},
                   {"layers", rows.objects()}};
    uint64_t bytes = 0;
    for (const Written& each : written) bytes += each.bytes;
    if (!options.out.empty()) object["directory"] = options.out.string();
    if (!options.scales.empty()) object["scales"] = options.scales;
    if (!written.empty()) object["bytes"] = bytes;
    return print_json(object);
  }
  std::string text = rows.table() + "\nnoise: expected squared error of scores (keys) and outputs (values) from " +
                     "gain-shape codes, over the least;\ngeometric mean of keys " + number_text(keys, 2) +
                     ", balanced " + number_text(balanced_keys, 2) + ", of values " + number_text(values, 2) +
                     ", balanced " + number_text(balanced_values, 2) + "\n";
  for (const Written& each : written) text += written_text(each.path, each.bytes);
  print_text(text);
}

void run(const BalanceOptions& options) {
  if (!options.scales.empty()) check_writable(llama::path_of(options.scales));
  const llama::ModelConfig config = llama::load_config(llama::path_of(options.model));
  const llama::Checkpoint checkpoint(llama::path_of(options.model));
  const kvq::Context context = make_context(options.compute);
  // Scales of a cache and those to fold are found one after the other.
  const bool for_cache = !options.scales.empty() || options.out.empty();
  const bool to_fold = !options.out.empty();
  Progress progress("balancing", int64_t{config.n_layers} * (for_cache && to_fold ? 2 : 1));
  const auto find = [&](bool fold) {
    return find_scales(context, checkpoint, config, {.fold = fold, .powers_of_two = options.powers_of_two}, progress);
  };
  std::vector<Written> written;
  std::optional<Report> report;
  if (for_cache) {
    const kvq::Centres scales = find(false);
    report.emplace(scales);
    if (!options.scales.empty()) {
      const std::vector<std::byte> file = scales.save();
      write_file(llama::path_of(options.scales), file);
      written.push_back({options.scales, file.size()});
    }
  }
  if (to_fold) {
    const kvq::Centres scales = find(true);
    report.emplace(scales);
    written.push_back(
        {options.out.string(), write_balanced(options.out, llama::path_of(options.model), checkpoint, config, scales)});
  }
  print_result(options, *report, written);
}

}  // namespace

void add_balance(Command app) {
  Command command = app.add_command(
      "balance", "Find outlier channels of keys and values, and write a checkpoint that computes the same without");
  auto options = std::make_shared<BalanceOptions>();
  add_model_option(command, options->model);
  command.add_option("--out", options->out, "Directory to write, for any engine (default: only report)").not_empty();
  command.add_option("--scales", options->scales, "File to write, for caches of this model: --kv gs2@FILE").not_empty();
  command.add_flag(
      "--powers-of-two", options->powers_of_two,
      "Round scales to powers of two, so that no weight is rounded but norms that are stored less 1 (Gemma 3)");
  add_threads_option(command, options->compute);
  add_json_flag(command, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
