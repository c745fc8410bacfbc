#include <algorithm>
#include <sstream>

#include "bench/timing.h"
#include "commands/commands.h"
#include "measure/perplexity.h"
#include "terminal/files.h"
#include "terminal/progress.h"
#include "train/training.h"

namespace cli {
namespace {

constexpr int32_t kScoredChunk = 256;  // tokens that the model takes at once where it is only scored
constexpr int64_t kTrainSteps = 1000;  // of the progress bar

struct TrainedRouter {
  kvq::Router router;
  double label_seconds = 0.0;  // to run the model, and to store its keys and values in every format
  double training_seconds = 0.0;
};

constexpr double kMeanBits = 4.25;

struct TrainRouterOptions : TrainingOptions {
  std::string experts = "fp16,int4,int2";
  std::string votes = "layer";
  std::string method;      // empty: what the other options say
  double mean_bits = 0.0;  // 0: not given
  double lambda = -1.0;    // negative: not given
  int32_t sharing = 3;
  int32_t epochs = 0;  // 0: the library's choice
  std::string codebook;
};

kvq_router_method find_method(const TrainRouterOptions& options) {
  const bool paper = options.method == "paper" || (options.method.empty() && options.lambda >= 0.0);
  if (paper && options.mean_bits > 0.0) throw UsageError("--mean-bits is for --method label, --lambda for paper");
  if (!paper && options.lambda >= 0.0) throw UsageError("--lambda is for --method paper, --mean-bits for label");
  return paper ? KVQ_ROUTER_PAPER : KVQ_ROUTER_LABEL;
}

/// A policy with the experts, which are refused here if they are no names.
std::string policy_text(const TrainRouterOptions& options) {
  const auto n = std::ranges::count(options.experts, ',') + 1;
  if (n < 2 || n > KVQ_MAX_EXPERTS) {
    throw UsageError("--experts " + options.experts + ": a router chooses among 2 to " +
                     std::to_string(KVQ_MAX_EXPERTS) + " formats, separated by commas");
  }
  std::vector<std::string> names;
  std::istringstream list(options.experts);
  for (std::string name; std::getline(list, name, ',');) {
    if (name.empty() || name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789+/") != std::string::npos) {
      throw UsageError("--experts " + options.experts + ": not names of formats, separated by commas");
    }
    names.push_back(name);
  }
  return "version: 1\nrouter: {experts: [" + joined(names) + "], votes: " + options.votes + "}\n";
}

std::vector<std::string> expert_names(const kvq_router_info& info) {
  std::vector<std::string> names;
  std::istringstream list(info.experts);
  for (std::string name; std::getline(list >> std::ws, name, ',');) names.push_back(name);
  return names;
}

std::string percent_text(double share) { return number_text(100.0 * share, 1) + " %"; }

void print_table(const TrainRouterOptions& options, const TrainedRouter& result, uint64_t file_bytes) {
  const kvq_router_info info = result.router.describe();
  const bool labels = info.method == KVQ_ROUTER_LABEL;
  const std::vector<std::string> names = expert_names(info);
  std::vector<std::string> headings{"layers"};
  headings.insert(headings.end(), names.begin(), names.end());
  headings.push_back("bits");
  if (labels) headings.push_back("as labelled");
  Table table(headings);
  std::vector<double> means(names.size(), 0.0);
  const auto add = [&](const std::string& name, const double* shares, double bits, double accuracy) {
    std::vector<std::string> row{name};
    for (size_t i = 0; i < names.size(); ++i) row.push_back(percent_text(shares[i]));
    row.push_back(number_text(bits, 2));
    if (labels) row.push_back(percent_text(accuracy));
    table.add_row(row);
  };
  for (int32_t i = 0; i < info.groups; ++i) {
    const kvq_router_group_info group = result.router.describe_group(i);
    const int32_t layers = group.last_layer - group.first_layer + 1;
    for (size_t e = 0; e < names.size(); ++e) means[e] += group.shares[e] * layers / info.n_layers;
    add(std::to_string(group.first_layer) + (layers > 1 ? "-" + std::to_string(group.last_layer) : ""), group.shares,
        group.mean_bits, group.accuracy);
  }
  add("all", means.data(), info.mean_bits, info.accuracy);
  print_text(table.text() + "\n" +
             (labels ? "tolerated error of attention " + number_text(info.tolerance, 6)
                     : "lambda " + number_text(info.loss_weight, 3)) +
             "; trained on " + info.note + "\npages " + number_text(result.label_seconds, 1) + " s, training " +
             number_text(result.training_seconds, 1) + " s; written to " + options.out + " (" + bytes_text(file_bytes) +
             ")\n");
}

void print_object(const TrainRouterOptions& options, const TrainedRouter& result, uint64_t file_bytes) {
  const kvq_router_info info = result.router.describe();
  Json groups = Json::array();
  for (int32_t i = 0; i < info.groups; ++i) {
    const kvq_router_group_info group = result.router.describe_group(i);
    groups.push_back({{"first_layer", group.first_layer},
                      {"last_layer", group.last_layer},
                      {"shares", std::span(group.shares).first(static_cast<size_t>(info.n_experts))},
                      {"mean_bits", group.mean_bits},
                      {"accuracy", group.accuracy}});
  }
  Json object;
  object["file"] = options.out;
  object["bytes"] = file_bytes;
  object["method"] = info.method == KVQ_ROUTER_LABEL ? "label" : "paper";
  object["experts"] = expert_names(info);
  object["mean_bits"] = info.mean_bits;
  object["lambda"] = info.loss_weight;
  object["tolerance"] = info.tolerance;
  object["accuracy"] = info.accuracy;
  object["tokens"] = info.tokens;
  object["label_seconds"] = result.label_seconds;
  object["training_seconds"] = result.training_seconds;
  object["groups"] = groups;
  print_json(object);
}

int64_t count_tokens(const CalibrationTexts& texts) {
  int64_t tokens = 0;
  for (const auto& window : texts.windows) tokens += static_cast<int64_t>(window.size());
  return tokens;
}

double measure_loss(Engine& engine, const CalibrationTexts& texts) {
  Progress progress("loss", count_tokens(texts));
  llama::Session session(engine.model, engine.context, nullptr);
  double sum = 0.0;
  double tokens = 0.0;
  for (const llama::Tokens window : texts.windows) {
    Interrupt::check();
    if (window.size() < 2) continue;
    const PerplexityResult result = measure_perplexity(engine.model, session, window, kScoredChunk, progress);
    sum += result.window_mean_nll.front() * static_cast<double>(result.tokens);
    tokens += static_cast<double>(result.tokens);
  }
  return sum / tokens;
}

/// A layer's part of a text enters the trainer as a whole, so the model takes a whole window at once.
void collect(Engine& engine, kvq::RouterTrainer& trainer, const CalibrationTexts& texts) {
  const auto n_layers = int64_t{engine.model.config().n_layers};
  Progress progress("pages", count_tokens(texts) * n_layers);
  llama::Session session(engine.model, engine.context, nullptr);
  session.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
    Interrupt::check();
    trainer.add(layer, seen.n, seen.q, seen.k, seen.v, KVQ_F32);
    progress.advance(seen.n);
  });
  for (const llama::Tokens window : texts.windows) {
    session.clear();
    session.forward(window, false);
  }
}

kvq::RouterTrainer make_trainer(const TrainRouterOptions& options, TrainingInputs& inputs,
                                const kvq_codebook* codebook) {
  auto trainer_options = kvq::initialised<kvq_router_trainer_options>();
  trainer_options.method = find_method(options);
  trainer_options.sharing = options.sharing;
  trainer_options.epochs = options.epochs;
  trainer_options.mean_bits = options.mean_bits > 0.0 ? options.mean_bits : kMeanBits;
  if (options.lambda >= 0.0) trainer_options.loss_weight = options.lambda;
  trainer_options.seed = options.seed;
  trainer_options.note = inputs.texts.note.c_str();
  const llama::ModelCacheOptions of_model(inputs.engine.model);
  kvq_cache_options cache = of_model.options();
  cache.codebook = codebook;
  const kvq::Context& context = inputs.engine.context;
  return {context, cache, kvq::Policy::load(context, policy_text(options)), trainer_options};
}

/// Run the model over the windows, each a text by itself, and train routers on what it computes.
TrainedRouter train(const TrainRouterOptions& options, TrainingInputs& inputs, const kvq_codebook* codebook) {
  const Interrupt interrupt;
  Engine& engine = inputs.engine;
  kvq::RouterTrainer trainer = make_trainer(options, inputs, codebook);
  const Stopwatch collecting;
  const double loss = find_method(options) == KVQ_ROUTER_PAPER ? measure_loss(engine, inputs.texts) : 0.0;
  collect(engine, trainer, inputs.texts);
  const double label_seconds = collecting.seconds();
  const Stopwatch running;
  Progress bar("training", kTrainSteps);
  TrainingBar progress(bar, kTrainSteps);
  trainer.run(loss, TrainingBar::hook, &progress);
  return {.router = trainer.result(), .label_seconds = label_seconds, .training_seconds = running.seconds()};
}

void run(const TrainRouterOptions& options) {
  find_method(options);
  policy_text(options);
  if (options.compute.device != "cpu") {
    throw UsageError("--device " + options.compute.device + ": train router runs on the CPU only");
  }
  check_writable(llama::path_of(options.out));
  TrainingInputs inputs(options);
  kvq::Codebook codebook = nullptr;
  if (!options.codebook.empty()) {
    codebook = load_spec(inputs.engine.context, "commvq:" + options.codebook, "--codebook").codebook;
  }
  const TrainedRouter result = train(options, inputs, codebook);
  const std::vector<std::byte> file = result.router.save();
  write_file(llama::path_of(options.out), file);
  options.json ? print_object(options, result, file.size()) : print_table(options, result, file.size());
}

}  // namespace

void add_train_router(Command train) {
  Command command = train.add_command("router", "MoQAE routers, which choose the format of every page of a cache");
  auto options = std::make_shared<TrainRouterOptions>();
  add_training_inputs(command, *options);
  command
      .add_option("--experts", options->experts,
                  "Formats to choose among, those with more bits first; KEYS/VALUES where they differ")
      .show_default();
  command.add_choice("--votes", options->votes, {"layer", "head"},
                     "Whose tokens choose together: all heads of a layer, or each head's");
  command
      .add_option("--method", options->method,
                  "Train on the cheapest format that is good enough for a page, or by the paper's loss (default: what "
                  "--mean-bits or --lambda belong to, else label)")
      .one_of({"label", "paper"});
  command.add_option("--mean-bits", options->mean_bits, "Wanted bits of a scalar in routed pages (default: 4.25)")
      .range(1.0, 16.0);
  command
      .add_option("--lambda", options->lambda,
                  "Weight of the model's loss against that of memory in the paper's loss (default: 0.5)")
      .range(0.0, 1.0);
  command.add_number("--sharing", options->sharing, 1, 65536, "Successive layers that share decisions");
  command.add_option("--epochs", options->epochs, "Passes over the keys (default: the library's choice)")
      .range(1, 10000);
  command.add_option("--codebook", options->codebook, "Codebook file, if commvq is among the experts");
  add_training_options(command, *options, "File to write");
  command.on_run([options] { run(*options); });
}

}  // namespace cli
