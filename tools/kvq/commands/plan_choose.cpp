#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "allocation/latencies.h"
#include "allocation/memory.h"
#include "commands/plan.h"
#include "terminal/files.h"
#include "terminal/output.h"
#include "terminal/progress.h"

namespace cli {
namespace {

double loss_of_layer(const ModelPlan& plan, size_t layer) {
  double loss = plan.cache.empty() ? 0.0 : plan.cache[layer].loss;
  for (const PlannedMatrix& each : plan.matrices) {
    if (each.layer.layer == static_cast<int32_t>(layer)) loss += each.loss;
  }
  return loss;
}

std::string part_text(const char* name, uint64_t bytes, double bits, const char* of, double loss) {
  return std::string(name) + bytes_text(bytes) + ", " + number_text(bits, 3) + " bits per " + of + ", loses " +
         nats_text(loss) + " nats\n";
}

std::string bound_text(const ModelPlan& plan) {
  if (plan.goal == KVQ_PLAN_BYTES)
    return "that loses no more is smaller than " + bytes_text(static_cast<uint64_t>(plan.bound));
  if (plan.goal == KVQ_PLAN_SECONDS)
    return "that loses no more takes less than " + number_text(1e3 * plan.bound, 3) + " ms";
  return "loses less than " + nats_text(plan.bound);
}

/// \param uniform  the best plan that gives everything the same and is no larger, if there is any.
Json plan_json(const ModelPlan& plan, const std::optional<UniformPlan>& uniform) {
  Json object;
  object["bytes"] = plan.bytes();
  if (plan.other_bytes > 0) {
    object["other_bytes"] = plan.other_bytes;
    object["workspace_bytes"] = plan.workspace_bytes;
    object["total_bytes"] = plan.total_bytes();
  }
  object["loss"] = plan.loss();
  object["bound"] = plan.bound;
  if (uniform) {
    object["uniform"] = {{"name", uniform->name}, {"bytes", uniform->plan.bytes()}, {"loss", uniform->plan.loss()}};
  }
  if (plan.seconds > 0.0) object["seconds"] = plan.seconds;
  if (!plan.matrices.empty()) {
    object["weight_bytes"] = plan.weight_bytes;
    object["weight_bits"] = plan.weight_bits();
    object["weight_loss"] = plan.weight_loss;
    for (const PlannedMatrix& each : plan.matrices) {
      object["weights"].push_back(
          {{"name", each.layer.name}, {"scheme", each.scheme}, {"bytes", each.bytes}, {"loss", each.loss}});
    }
  }
  if (!plan.eviction.empty()) {
    object["eviction"] = plan.eviction;
    object["eviction_loss"] = plan.eviction_loss;
  }
  if (!plan.cache.empty()) {
    object["cache_bytes"] = plan.cache_bytes;
    object["cache_bits"] = plan.cache_bits;
    object["cache_loss"] = plan.cache_loss;
    for (const PlannedCacheLayer& each : plan.cache) {
      object["cache"].push_back({{"keys", each.keys}, {"values", each.values}, {"loss", each.loss}});
    }
  }
  return object;
}

Json frontier_json(const std::vector<ModelPlan>& best, const std::vector<UniformPlan>& uniform) {
  Json object;
  for (const ModelPlan& each : best) object["best"].push_back({{"bytes", each.bytes()}, {"loss", each.loss()}});
  for (const UniformPlan& each : uniform) {
    object["uniform"].push_back({{"name", each.name}, {"bytes", each.plan.bytes()}, {"loss", each.plan.loss()}});
  }
  return object;
}

std::string plan_text(const ModelPlan& plan, const std::optional<UniformPlan>& uniform) {
  std::vector<std::string> headings{"layer"};
  if (!plan.matrices.empty()) headings.insert(headings.end(), {"q", "k", "v", "o", "gate", "up", "down"});
  if (!plan.cache.empty()) headings.insert(headings.end(), {"keys", "values"});
  headings.emplace_back("loses");
  Table table(std::move(headings));
  const size_t layers = plan.cache.empty() ? plan.matrices.size() / llama::kLinearRoles : plan.cache.size();
  for (size_t layer = 0; layer < layers; ++layer) {
    std::vector<std::string> cells{std::to_string(layer)};
    for (size_t i = 0; i < llama::kLinearRoles && !plan.matrices.empty(); ++i) {
      cells.push_back(plan.matrices[layer * llama::kLinearRoles + i].scheme);
    }
    if (!plan.cache.empty()) cells.insert(cells.end(), {plan.cache[layer].keys, plan.cache[layer].values});
    cells.push_back(nats_text(loss_of_layer(plan, layer)));
    table.add_row(std::move(cells));
  }
  std::string text = table.text() + "\n";
  if (!plan.matrices.empty()) {
    text += part_text("weights  ", plan.weight_bytes, plan.weight_bits(), "weight", plan.weight_loss);
  }
  if (!plan.cache.empty()) text += part_text("cache    ", plan.cache_bytes, plan.cache_bits, "scalar", plan.cache_loss);
  if (!plan.eviction.empty()) {
    text += "eviction " + plan.eviction + " tokens a head, loses " + nats_text(plan.eviction_loss) + " nats\n";
  }
  if (plan.other_bytes > 0) {
    text += "others   " + bytes_text(plan.other_bytes) + " that are not planned, " + bytes_text(plan.workspace_bytes) +
            " of work space: " + bytes_text(plan.total_bytes()) + " in all\n";
  }
  text += "together " + bytes_text(plan.bytes()) + ", loses " + nats_text(plan.loss()) +
          " nats of divergence; no plan " + bound_text(plan) + "\n";
  if (uniform) {
    text += "the same for all, " + uniform->name + ", takes " + bytes_text(uniform->plan.bytes()) + " and loses " +
            nats_text(uniform->plan.loss()) + "\n";
  }
  if (plan.seconds > 0.0) text += "a step of decoding takes about " + number_text(1e3 * plan.seconds, 3) + " ms\n";
  return text;
}

/// Tokens of a prompt that attend at once, for which there must be work space.
constexpr int32_t kQueries = 32;

AllocationRequest request_of(const PlanOptions& options) {
  return {.weights = !options.cache_only,
          .cache = !options.weights_only,
          .context = options.context,
          .eviction = options.eviction,
          .batch = options.batch,
          .queries = options.memory.empty() || options.compute.device != "cpu" ? 0 : kQueries,
          .schemes = options.schemes.empty() ? kvq::scheme_names() : options.schemes,
          .formats = options.formats.empty() ? kFormatChoices : options.formats,
          .fusion = options.fusion};
}

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

bool is_timed(const PlanOptions& options) {
  return options.target_latency > 0.0 || goal_of(options) == KVQ_PLAN_SECONDS;
}

double cost(const ModelPlan& plan, kvq_plan_goal goal) {
  if (goal == KVQ_PLAN_BYTES) return static_cast<double>(plan.bytes());
  return goal == KVQ_PLAN_SECONDS ? plan.seconds : plan.loss();
}

AllocationLimits limits_of(const PlanOptions& options, const llama::ModelConfig& config) {
  AllocationLimits limits;
  if (options.target_bits > 0.0 || options.target_bytes > 0) limits.max_bytes = byte_limit(options, config);
  if (options.target_latency > 0.0) limits.max_seconds = 1e-3 * options.target_latency;
  if (options.max_loss > 0.0) limits.max_loss = options.max_loss;
  limits.goal = goal_of(options);
  return limits;
}

bool loses_by_outliers(const AllocationRequest& request) {
  const auto is_float16 = [](const std::string& format) { return format == "fp16"; };
  return request.cache && !request.calibrates && !std::ranges::all_of(request.formats, is_float16);
}

std::filesystem::path measurements_path(const PlanOptions& options) {
  if (!options.measurements.empty()) return options.measurements;
  const std::filesystem::path model = std::filesystem::weakly_canonical(llama::path_of(options.model));
  return llama::path_of(model.filename().string() + ".measurements.json");
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
  write_file(options.out, kvq::Plan(context, content).save());
}

/// What a machine takes, measured if need be; nullptr: time does not count.
const Latencies* times_of(const PlanOptions& options, const AllocationRequest& request, Engine& engine,
                          Measurements& known) {
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

ModelPlan solve(const PlanOptions& options, const BitAllocator& allocator, Engine& engine) {
  const llama::ModelConfig& config = engine.model.config();
  AllocationLimits limits = limits_of(options, config);
  if (options.memory.empty()) return allocator.solve(limits);
  const auto memory = static_cast<double>(parse_byte_count(options.memory, "--memory"));
  const auto others = static_cast<double>(unplanned_bytes(options, engine.context, config));
  limits.max_bytes = memory - others;
  if (limits.max_bytes <= 0.0) {
    throw llama::Error("--memory " + options.memory + " is less than the " + bytes_text(static_cast<uint64_t>(others)) +
                       " of what is not planned");
  }
  // Work space depends a little on the formats.
  for (double all = 0.0;;) {
    ModelPlan plan = allocator.solve(limits);
    plan.other_bytes = static_cast<uint64_t>(others);
    all = static_cast<double>(plan.total_bytes());
    if (all <= memory) return plan;
    limits.max_bytes -= all - memory;
  }
}

/// The best of the plans that let tokens stay, or a share of them.
struct BestPlan {
  std::unique_ptr<BitAllocator> allocator;
  AllocationRequest request;
  ModelPlan plan;
};

BestPlan best_plan(const PlanOptions& options, AllocationRequest request, Engine& engine, Measurements& known) {
  std::vector<double> shares = {1.0};
  if (!request.eviction.empty()) shares.insert(shares.end(), kKeptShares.begin(), kKeptShares.end());
  std::optional<BestPlan> best;
  std::optional<kvq::Error> failure;  // with the smallest share
  for (const double share : shares) {
    request.share = share;
    auto allocator = std::make_unique<BitAllocator>(engine.context, engine.model.config(), known,
                                                    times_of(options, request, engine, known), request);
    try {
      ModelPlan plan = solve(options, *allocator, engine);
      const kvq_plan_goal goal = goal_of(options);
      if (!best || cost(plan, goal) < cost(best->plan, goal))
        best = BestPlan{std::move(allocator), request, std::move(plan)};
    } catch (const kvq::Error& error) {
      if (error.status() != KVQ_E_LIMIT) throw;
      failure = error;
    }
  }
  if (!best) throw kvq::Error(*failure);
  return std::move(*best);
}

/// With schemes of which it is known what they lose, unless these are too large.
BestPlan best_plan_of_judged(const PlanOptions& options, const AllocationRequest& request, Engine& engine,
                             Measurements& known) {
  if (!request.weights || !options.schemes.empty()) return best_plan(options, request, engine, known);
  AllocationRequest judged = request;
  judged.schemes = judged_schemes(known, request.schemes);
  try {
    return best_plan(options, judged, engine, known);
  } catch (const kvq::Error& error) {
    if (error.status() != KVQ_E_LIMIT) throw;
    return best_plan(options, request, engine, known);
  }
}

/// Seconds that it took to measure what was not known.
double measured(const PlanOptions& options, Measurements& known, Engine& engine, const ProbeWindows& windows,
                const AllocationRequest& request) {
  try {
    return measure_losses(known, engine, windows, request, options.chunk);
  } catch (const Interrupted& interrupted) {
    throw llama::Error(std::string(interrupted.what()) + "; the same command goes on from what is kept in " +
                       measurements_path(options).string());
  }
}

void print_plan(const PlanOptions& options, const BitAllocator& allocator, const ModelPlan& plan,
                const std::vector<UniformPlan>& uniform, double measuring_seconds) {
  const std::optional<UniformPlan> same = best_uniform(uniform, plan);
  if (!options.json) {
    const std::string measuring =
        measuring_seconds > 0.0 ? "measuring took " + number_text(measuring_seconds, 0) + " s\n" : "";
    return print_text(plan_text(plan, same) + measuring +
                      (options.out.empty() ? "" : "written to " + options.out.string() + "\n"));
  }
  Json object = plan_json(plan, same);
  if (options.frontier) object["frontier"] = frontier_json(frontier(allocator), uniform);
  print_json(object);
}

}  // namespace

void choose_plan(const PlanOptions& options) {
  Engine engine(llama::path_of(options.model), options.compute);
  check_context(options.context, engine.model.config());
  check_formats(engine.context, options.formats, false);
  if (!options.eviction.empty()) load_spec(engine.context, "fp16+" + options.eviction + ":64", "--evict");
  const ProbeWindows windows(engine, {.file = options.text, .tokens = options.tokens});
  AllocationRequest request = request_of(options);
  request.calibrates = windows.show_scales();
  if (loses_by_outliers(request)) {
    warn_of_outliers(engine, "measure with a text and --tokens of " + std::to_string(kTokensForScales) +
                                 " or more, so that caches find scales, or use the model that `kvq balance --out` "
                                 "writes");
  }
  Measurements known(measurements_path(options), engine.model.weights().fingerprint, windows.note());
  const double seconds = measured(options, known, engine, windows, request);
  if (options.check > 0) {
    const BitAllocator allocator(engine.context, engine.model.config(), known, nullptr, request);
    const Probe probe = make_probe(engine, windows, options.chunk);
    return print_check(options, allocator, probe, engine);
  }
  const BestPlan best = best_plan_of_judged(options, request, engine, known);
  if (!options.out.empty()) {
    write_plan(options, engine.context, best.plan,
               "for " + std::to_string(options.batch) + " x " + std::to_string(options.context) +
                   " tokens; measured on " + windows.note());
  }
  const bool fuses = best.request.fusion;  // one scheme for all need not be one of its choices
  const std::vector<UniformPlan> uniform =
      fuses ? std::vector<UniformPlan>() : uniform_plans(*best.allocator, best.request);
  print_plan(options, *best.allocator, best.plan, uniform, seconds);
}

}  // namespace cli
