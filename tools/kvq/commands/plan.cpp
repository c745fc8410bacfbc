#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "commands/commands.h"
#include "commands/plan_fits.h"
#include "commands/plan_report.h"
#include "llama/error.h"
#include "options/byte_count.h"
#include "options/matrix_options.h"
#include "options/model_options.h"
#include "options/command.h"
#include "plan/frontier.h"
#include "plan/latencies.h"
#include "plan/measuring.h"
#include "plan/model_memory.h"
#include "plan/sensitivities.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"
#include "terminal/output_file.h"

namespace cli {
namespace {

struct PlanOptions {
  std::string model;
  std::string text;
  int64_t tokens = ProbeText{}.tokens;
  double target_bits = 0.0;
  uint64_t target_bytes = 0;
  std::string memory;           // bytes of everything
  double target_latency = 0.0;  // milliseconds
  std::string goal = "loss";
  double max_loss = 0.0;  // nats; 0: any
  bool fusion = false;
  int32_t check = 0;  // random plans to carry out
  bool weights_only = false;
  bool cache_only = false;
  int32_t context = 0;  // 0: not given
  int32_t batch = 1;
  std::vector<std::string> schemes;
  std::vector<std::string> formats;
  std::string eviction;  // method; empty: none
  std::filesystem::path measurements;
  std::filesystem::path out;
  bool frontier = false;
  int32_t chunk = 256;
  ComputeOptions compute;
  bool json = false;
};

/// Tokens of a prompt that attend at once, for which there must be work space.
constexpr int32_t kQueries = 32;

/// Tokens of a sequence if none are given.
constexpr int32_t kUsualContext = 2048;

PlanRequest request_of(const PlanOptions& options) {
  return {.weights = !options.cache_only,
          .cache = !options.weights_only,
          .context = options.context,
          .eviction = options.eviction,
          .batch = options.batch,
          .queries = options.memory.empty() || options.compute.device != "cpu" ? 0 : kQueries,
          .schemes = options.schemes.empty() ? kvq::scheme_names() : options.schemes,
          .formats = options.formats.empty() ? kPlannedFormats : options.formats,
          .fusion = options.fusion};
}

/// Bytes of what is planned.
double byte_limit(const PlanOptions& options, const llama::ModelConfig& config) {
  if (options.target_bytes > 0) return static_cast<double>(options.target_bytes);
  double scalars = 0.0;
  if (!options.cache_only) {
    for (const llama::LinearLayer& layer : llama::all_linear_layers(config)) {
      scalars += static_cast<double>(layer.weights());
    }
  } else {
    scalars = 2.0 * config.n_layers * config.kv_heads * config.head_dim * options.context * options.batch;
  }
  return std::floor(options.target_bits * scalars / 8.0);
}

kvq_plan_goal goal_of(const PlanOptions& options) {
  if (options.goal == "bytes") return KVQ_PLAN_BYTES;
  return options.goal == "seconds" ? KVQ_PLAN_SECONDS : KVQ_PLAN_LOSS;
}

/// Whether times count.
bool is_timed(const PlanOptions& options) {
  return options.target_latency > 0.0 || goal_of(options) == KVQ_PLAN_SECONDS;
}

/// Of a plan.
double cost(const ModelPlan& plan, kvq_plan_goal goal) {
  if (goal == KVQ_PLAN_BYTES) return static_cast<double>(plan.bytes());
  return goal == KVQ_PLAN_SECONDS ? plan.seconds : plan.loss();
}

PlanLimits limits_of(const PlanOptions& options, const llama::ModelConfig& config) {
  PlanLimits limits;
  if (options.target_bits > 0.0 || options.target_bytes > 0) limits.max_bytes = byte_limit(options, config);
  if (options.target_latency > 0.0) limits.max_seconds = 1e-3 * options.target_latency;
  if (options.max_loss > 0.0) limits.max_loss = options.max_loss;
  limits.goal = goal_of(options);
  return limits;
}

void check(const PlanOptions& options) {
  for (const std::string& scheme : options.schemes) check_scheme(scheme);
  if (!options.memory.empty()) parse_byte_count(options.memory, "--memory");
  if (options.weights_only && options.cache_only) {
    throw UsageError("--weights-only and --cache-only are both given, which leaves nothing to plan");
  }
  const int targets =
      (options.target_bits > 0.0 ? 1 : 0) + (options.target_bytes > 0 ? 1 : 0) + (options.memory.empty() ? 0 : 1);
  if (targets > 1) throw UsageError("--memory, --target-bits and --target-bytes say the same: give one of them");
  if (goal_of(options) != KVQ_PLAN_LOSS && options.max_loss == 0.0) {
    throw UsageError("--goal " + options.goal + " needs --max-loss: what may be lost for it");
  }
  if (targets == 0 && options.target_latency == 0.0 && options.max_loss == 0.0 && options.check == 0) {
    throw UsageError("give --memory, --target-bits, --target-bytes, --target-latency, or --max-loss with --goal");
  }
  if (options.target_bits > 0.0 && !options.weights_only && !options.cache_only) {
    throw UsageError(
        "--target-bits goes with --weights-only or --cache-only; for both together use --memory or --target-bytes");
  }
}

std::filesystem::path measurements_path(const PlanOptions& options) {
  if (!options.measurements.empty()) return options.measurements;
  const std::filesystem::path model = std::filesystem::weakly_canonical(options.model);
  return model.filename().string() + ".measurements.json";
}

void write_plan(const PlanOptions& options, kvq_context* context, const ModelPlan& plan, const std::string& note) {
  auto content = kvq::initialised<kvq_plan_content>();
  std::vector<const char*> names;
  std::vector<const char*> schemes;
  for (const PlannedMatrix& each : plan.matrices) {
    names.push_back(each.layer.name.c_str());
    schemes.push_back(each.scheme.c_str());
  }
  content.n_matrices = static_cast<int32_t>(names.size());
  content.names = names.data();
  content.schemes = schemes.data();
  kvq::Policy policy = nullptr;
  if (!plan.cache.empty()) policy = kvq::Policy::load(context, policy_text(plan));
  content.policy = policy;
  content.bytes = static_cast<double>(plan.bytes());
  content.seconds = plan.seconds;
  content.loss = plan.loss();
  content.note = note.c_str();
  const kvq::Plan made(context, content);
  const std::string text = made.save();
  write_file(options.out, std::as_bytes(std::span(text)));
}

/// What a machine takes, measured if need be; nullptr: time does not count.
const Latencies* times_of(const PlanOptions& options, const PlanRequest& request, Engine& engine, Measurements& known) {
  if (!is_timed(options)) return nullptr;
  measure_latencies(known, engine, options.compute, request);
  return &known.machines.at(machine_of(engine, options.compute));
}

/// What is not planned but takes memory too: embeddings and norms in 16 bits, and what is left as it is.
uint64_t unplanned_bytes(const PlanOptions& options, kvq_context* context, const llama::ModelConfig& config) {
  uint64_t bytes = other_tensor_bytes(config);
  if (options.cache_only) bytes += packed_bytes("fp16", config);
  if (options.weights_only) {
    bytes += cache_usage(context, {config, options.context, options.batch, kQueries}, "fp16").total_bytes;
  }
  return bytes;
}

ModelPlan solve(const PlanOptions& options, const Planner& planner, Engine& engine) {
  const llama::ModelConfig& config = engine.model.config();
  PlanLimits limits = limits_of(options, config);
  if (options.memory.empty()) return planner.solve(limits);
  const auto memory = static_cast<double>(parse_byte_count(options.memory, "--memory"));
  const auto others = static_cast<double>(unplanned_bytes(options, engine.context, config));
  limits.max_bytes = memory - others;
  if (limits.max_bytes <= 0.0) {
    throw llama::Error("--memory " + options.memory + " is less than the " + bytes_text(static_cast<uint64_t>(others)) +
                       " of what is not planned");
  }
  // Work space depends a little on the formats.
  for (double all = 0.0;;) {
    ModelPlan plan = planner.solve(limits);
    plan.other_bytes = static_cast<uint64_t>(others);
    all = static_cast<double>(plan.total_bytes());
    if (all <= memory) return plan;
    limits.max_bytes -= all - memory;
  }
}

void print_check(const PlanOptions& options, const std::vector<CheckedPlan>& plans) {
  if (options.json) return print_json(check_json(plans));
  print_text(check_text(plans));
}

/// A model that is known by its configuration alone.
bool lacks_weights(const std::filesystem::path& model) { return !llama::Checkpoint::is_in(model); }

/// The best of the plans that let tokens stay, or a share of them.
struct BestPlan {
  std::unique_ptr<Planner> planner;
  PlanRequest request;
  ModelPlan plan;
};

BestPlan best_plan(const PlanOptions& options, PlanRequest request, Engine& engine, Measurements& known) {
  std::vector<double> shares = {1.0};
  if (!request.eviction.empty()) shares.insert(shares.end(), kPlannedShares.begin(), kPlannedShares.end());
  std::optional<BestPlan> best;
  std::optional<kvq::Error> failure;  // with the smallest share
  for (const double share : shares) {
    request.share = share;
    auto planner = std::make_unique<Planner>(engine.context, engine.model.config(), known,
                                             times_of(options, request, engine, known), request);
    try {
      ModelPlan plan = solve(options, *planner, engine);
      const kvq_plan_goal goal = goal_of(options);
      if (!best || cost(plan, goal) < cost(best->plan, goal))
        best = BestPlan{std::move(planner), request, std::move(plan)};
    } catch (const kvq::Error& error) {
      if (error.status() != KVQ_E_LIMIT) throw;
      failure = error;
    }
  }
  if (!best) throw kvq::Error(*failure);
  return std::move(*best);
}

/// With schemes of which it is known what they lose, unless these are too large.
BestPlan best_plan_of_judged(const PlanOptions& options, const PlanRequest& request, Engine& engine,
                             Measurements& known) {
  if (!request.weights || !options.schemes.empty()) return best_plan(options, request, engine, known);
  PlanRequest judged = request;
  judged.schemes = judged_schemes(known, request.schemes);
  try {
    return best_plan(options, judged, engine, known);
  } catch (const kvq::Error& error) {
    if (error.status() != KVQ_E_LIMIT) throw;
    return best_plan(options, request, engine, known);
  }
}

void report(const PlanOptions& options, const BestPlan& best, const MeasuringTime& time) {
  const bool groups = best.request.fusion;  // of which the same for all need not be one
  const std::vector<UniformPlan> uniform =
      groups ? std::vector<UniformPlan>() : uniform_plans(*best.planner, best.request);
  const std::optional<UniformPlan> same = best_uniform(uniform, best.plan);
  if (options.json) {
    nlohmann::ordered_json object = plan_json(best.plan, same);
    if (options.frontier) object["frontier"] = frontier_json(frontier(*best.planner), uniform);
    return print_json(object);
  }
  print_text(plan_text(best.plan, same) + measuring_text(time) +
             (options.out.empty() ? "" : "written to " + options.out.string() + "\n"));
}

void plan(const PlanOptions& options) {
  Engine engine(options.model, options.compute);
  check_context(options.context, engine.model.config());
  const PlanRequest request = request_of(options);
  for (const std::string& format : request.formats) load_spec(engine.context, format, "--format");
  if (!request.eviction.empty()) load_spec(engine.context, "fp16+" + request.eviction + ":64", "--evict");
  const ProbeWindows windows(engine, {.file = options.text, .tokens = options.tokens});
  Measurements known(measurements_path(options), engine.model.weights().fingerprint, windows.note());
  const MeasuringTime time = measure_losses(known, engine, windows, request, options.chunk);
  if (options.check > 0) {
    const Planner planner(engine.context, engine.model.config(), known, nullptr, request);
    const Probe probe = make_probe(engine, windows, options.chunk);
    return print_check(options, check_plans(planner, probe, engine, options.check));
  }
  const BestPlan best = best_plan_of_judged(options, request, engine, known);
  if (!options.out.empty()) {
    write_plan(options, engine.context, best.plan,
               "for " + std::to_string(options.batch) + " x " + std::to_string(options.context) +
                   " tokens; measured on " + windows.note());
  }
  report(options, best, time);
}

/// PlanOptions that say how to choose, which takes measurements on the weights.
void refuse_choices(const PlanOptions& options) {
  const std::pair<const char*, bool> given[] = {{"--out", !options.out.empty()},
                                                {"--frontier", options.frontier},
                                                {"--check", options.check > 0},
                                                {"--max-loss", options.max_loss > 0.0},
                                                {"--target-bits", options.target_bits > 0.0},
                                                {"--target-bytes", options.target_bytes > 0},
                                                {"--target-latency", options.target_latency > 0.0},
                                                {"--weights-only", options.weights_only},
                                                {"--cache-only", options.cache_only},
                                                {"--evict", !options.eviction.empty()}};
  for (const auto& [name, is_given] : given) {
    if (!is_given) continue;
    throw UsageError(std::string(name) + " needs the model's weights to measure; " + options.model +
                     " is its configuration alone, of which kvq plan says what fits");
  }
}

void run(const PlanOptions& options) {
  if (lacks_weights(options.model)) {
    refuse_choices(options);
    return print_what_fits({.model = options.model,
                            .memory = options.memory.empty() ? 0 : parse_byte_count(options.memory, "--memory"),
                            .context = options.context,
                            .batch = options.batch,
                            .schemes = options.schemes,
                            .formats = options.formats,
                            .json = options.json,
                            .compute = options.compute});
  }
  check(options);
  if (!options.out.empty()) check_writable(options.out);
  PlanOptions filled = options;
  if (filled.context == 0) {
    filled.context = std::min(kUsualContext, llama::load_config(options.model).max_positions);
  }
  plan(filled);
}

}  // namespace

void add_plan(Command app) {
  Command command =
      app.add_command("plan", "Find the schemes of matrices and the formats of caches that lose least in given memory");
  auto options = std::make_shared<PlanOptions>();
  add_model_option(
      command, options->model,
      "Model directory. A config.json, or a directory with nothing else, is enough to learn what fits: "
      "bytes of weights and caches in each format and, with --memory, the longest context. What is lost "
      "takes the weights to measure: without them there is no plan, and no options but --memory, --context, "
      "--batch, --scheme, --format and --json matter");
  command.add_option("--text", options->text,
                     "Text file that the model reads to be measured (default: a text that it writes itself)");
  command.add_option("--tokens", options->tokens, "Tokens of the text, about")
      .range(int64_t{64}, int64_t{1} << 30)
      .show_default();
  command
      .add_option("--target-bits", options->target_bits,
                  "Mean bits of a weight of the linear layers, or of a scalar of the cache, everything counted")
      .range(0.1, 32.0);
  command.add_option_function(
      "--target-bytes",
      [options](const std::string& text) { options->target_bytes = parse_byte_count(text, "--target-bytes"); },
      "Bytes of linear layers and caches together, such as 6GiB");
  command
      .add_option("--memory", options->memory,
                  "Bytes of everything: linear layers, other tensors, caches and their work space, such as 6GiB")
      .not_empty();
  command
      .add_option("--target-latency", options->target_latency,
                  "Milliseconds of a step of decoding on this machine, which is measured; alone or with another target")
      .range(1e-6, 1e9);
  command
      .add_option("--goal", options->goal, "What is made as small as possible: seconds are those of a step of decoding")
      .one_of({"loss", "bytes", "seconds"})
      .show_default();
  command.add_option("--max-loss", options->max_loss, "Nats of divergence that may be lost").range(1e-9, 1e9);
  command.add_flag("--fusion", options->fusion,
                   "With --target-latency: layers that share inputs share a kernel only if they have one scheme");
  command.add_flag("--weights-only", options->weights_only, "Plan linear layers alone");
  command.add_flag("--cache-only", options->cache_only, "Plan caches alone");
  add_context_option(command, options->context, 1, "Tokens of a sequence")
      .show_default(std::to_string(kUsualContext) + ", or what the model takes");
  command.add_option("--batch", options->batch, "Sequences").range(1, 1 << 20).show_default();
  add_schemes_option(command, options->schemes, "Of linear layers, to choose among; may be repeated (default: all)");
  command.add_option("--format", options->formats, "Of keys and values, to choose among; may be repeated").repeatable();
  command
      .add_option("--evict", options->eviction,
                  "Let the plan evict half or more of a prompt by this method, such as adasnap, where that loses less")
      .not_empty();
  command.add_option("--measurements", options->measurements,
                     "File of what has been measured, which grows (default: MODEL.measurements.json)");
  command.add_option("--out", options->out, "File to write the plan to (YAML)").not_empty();
  command.add_flag("--frontier", options->frontier,
                   "With --json: what the best plans of all sizes lose, and those that are the same for all");
  command
      .add_option("--check", options->check,
                  "Instead of planning, carry out N random plans and compare what they lose with what is expected")
      .range(2, 1 << 20);
  add_chunk_option(command, options->chunk, "Tokens that the model reads at once while it is measured");
  add_compute_options(command, options->compute);
  add_device_options(command, options->compute);
  add_json_flag(command, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
