#include "allocation/allocator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "allocation/latencies.h"
#include "allocation/memory.h"
#include "llama/error.h"
#include "terminal/output.h"

namespace cli {
namespace {

double at(const std::map<std::string, double>& numbers, const std::string& key, const std::string& what) {
  const auto found = numbers.find(key);
  if (found != numbers.end()) return found->second;
  throw llama::Error("the measurements lack " + what + " of " + key);
}

double loss_of_side(const Measurements& known, int32_t layer, Side side, const std::string& format, bool calibrates) {
  if (format == "fp16") return 0.0;
  const std::string key = cache_key(layer, side, calibrates);
  const auto found = known.cache.find(key);
  if (found == known.cache.end()) throw llama::Error("the measurements lack layer " + key);
  return at(found->second, format, "what " + key + " lose in format");
}

constexpr int kFrontierSteps = 32;

}  // namespace

double ModelPlan::weight_bits() const {
  double weights = 0.0;
  for (const PlannedMatrix& each : matrices) weights += static_cast<double>(each.layer.weights());
  return weights > 0.0 ? 8.0 * static_cast<double>(weight_bytes) / weights : 0.0;
}

int32_t AllocationRequest::kept() const {
  constexpr int32_t kWindow = 32;  // that every method keeps
  return std::max(static_cast<int32_t>(std::lround(share * context)), std::min(kWindow, context));
}

std::string eviction_key(const std::string& method, double share) { return method + ":" + number_text(share, 4); }

std::string policy_text(const ModelPlan& plan) {
  std::string text =
      std::string("version: 1\nsink: 1\ncalibrate: ") + (plan.calibrates ? "first" : "none") + "\nlayers:\n";
  for (size_t i = 0; i < plan.cache.size(); ++i) {
    const std::string number = std::to_string(i);
    text += "  - {range: [" + number + ", " + number + "], keys: " + plan.cache[i].keys +
            ", values: " + plan.cache[i].values + "}\n";
  }
  if (plan.eviction.empty()) return text;
  const size_t colon = plan.eviction.find(':');
  return text + "eviction: {method: " + plan.eviction.substr(0, colon) +
         ", budget: " + plan.eviction.substr(colon + 1) + "}\n";
}

BitAllocator::BitAllocator(kvq_context* context, const llama::ModelConfig& config, const Measurements& known,
                           const Latencies* times, AllocationRequest request)
    : context_(context), config_(config), known_(known), times_(times), request_(std::move(request)) {
  if (request_.weights) add_matrices();
  if (request_.cache) add_layers();
}

BitAllocator::Option BitAllocator::matrix_option(int32_t matrix, int32_t scheme) const {
  const llama::LinearLayer& layer = matrices_[static_cast<size_t>(matrix)];
  const std::string& name = request_.schemes[static_cast<size_t>(scheme)];
  const auto found = known_.weights.find(layer.name);
  if (found == known_.weights.end()) throw llama::Error("the measurements lack the matrix " + layer.name);
  const double microseconds =
      times_ != nullptr ? matrix_microseconds(*times_, config_, layer, name, request_.batch) : 0.0;
  return {.bytes = static_cast<double>(packed_bytes(name, layer)),
          .seconds = 1e-6 * microseconds,
          .loss = found->second.slope * at(known_.scheme_errors, name, "the error"),
          .picks = {scheme}};
}

void BitAllocator::add_matrices() {
  matrices_ = llama::all_linear_layers(config_);
  for (size_t begin = 0; begin < matrices_.size();) {
    std::vector<int32_t> together;
    for (size_t i = begin; i < matrices_.size() && matrices_[i].layer == matrices_[begin].layer &&
                           matrices_[i].input == matrices_[begin].input;
         ++i) {
      together.push_back(static_cast<int32_t>(i));
    }
    begin += together.size();
    if (request_.fusion && times_ != nullptr) {
      add_fused(together);
      continue;
    }
    for (const int32_t matrix : together) {
      Choice& choice = choices_.emplace_back(Choice{{matrix}, {}});
      for (int32_t scheme = 0; scheme < static_cast<int32_t>(request_.schemes.size()); ++scheme) {
        choice.options.push_back(matrix_option(matrix, scheme));
      }
    }
  }
}

void BitAllocator::add_fused(const std::vector<int32_t>& matrices) {
  std::vector<double> bytes;
  std::vector<double> loss;
  std::vector<double> seconds;
  std::vector<int32_t> groups;
  const auto n_schemes = static_cast<int32_t>(request_.schemes.size());
  for (const int32_t matrix : matrices) {
    for (int32_t scheme = 0; scheme < n_schemes; ++scheme) {
      const Option option = matrix_option(matrix, scheme);
      bytes.push_back(option.bytes);
      loss.push_back(option.loss);
    }
  }
  for (int32_t group = 1; group < 1 << matrices.size(); ++group) {
    std::vector<llama::LinearLayer> members;
    for (size_t i = 0; i < matrices.size(); ++i) {
      if ((group >> i & 1) != 0) members.push_back(matrices_[static_cast<size_t>(matrices[i])]);
    }
    groups.push_back(group);
    for (const std::string& scheme : request_.schemes) {
      seconds.push_back(1e-6 * group_microseconds(*times_, members, scheme, request_.batch));
    }
  }
  auto options = kvq::initialised<kvq_plan_fusion_options>();
  options.n_members = static_cast<int32_t>(matrices.size());
  options.n_schemes = n_schemes;
  options.n_groups = static_cast<int32_t>(groups.size());
  options.groups = groups.data();
  options.bytes = bytes.data();
  options.loss = loss.data();
  options.seconds = seconds.data();
  const kvq::PlanFusion fusion(context_, options);
  Choice& choice = choices_.emplace_back(Choice{matrices, {}});
  for (int32_t i = 0; i < fusion.describe().n_groupings; ++i) {
    const kvq_plan_grouping_info grouping = fusion.describe_grouping(i);
    choice.options.push_back({.bytes = grouping.bytes,
                              .seconds = grouping.seconds,
                              .loss = grouping.loss,
                              .picks = {grouping.schemes, grouping.schemes + matrices.size()}});
  }
}

void BitAllocator::add_layers() {
  const CacheShape shape{config_, request_.kept(), request_.batch};
  std::vector<Option> pairs;
  for (int32_t keys = 0; keys < static_cast<int32_t>(request_.formats.size()); ++keys) {
    for (int32_t values = 0; values < static_cast<int32_t>(request_.formats.size()); ++values) {
      const std::string& of_keys = request_.formats[static_cast<size_t>(keys)];
      const std::string& of_values = request_.formats[static_cast<size_t>(values)];
      const double microseconds = times_ != nullptr ? cache_microseconds(*times_, of_keys, of_values, request_) : 0.0;
      pairs.push_back({.bytes = layer_bytes(context_, shape, of_keys, of_values, request_.calibrates),
                       .seconds = 1e-6 * microseconds,
                       .loss = 0.0,
                       .picks = {keys, values}});
    }
  }
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    Choice& choice = choices_.emplace_back(Choice{{}, pairs});
    for (Option& option : choice.options) {
      for (const Side side : {Side::kKeys, Side::kValues}) {
        const auto format = static_cast<size_t>(option.picks[static_cast<size_t>(side)]);
        option.loss += loss_of_side(known_, layer, side, request_.formats[format], request_.calibrates);
      }
    }
  }
}

double BitAllocator::eviction_loss() const {
  if (!request_.cache || request_.share == 1.0) return 0.0;
  return at(known_.eviction, eviction_key(request_.eviction, request_.share), "what is lost with");
}

ModelPlan BitAllocator::plan_of(std::span<const int32_t> chosen) const {
  ModelPlan plan;
  plan.calibrates = request_.calibrates;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const Choice& choice = choices_[i];
    const Option& option = choice.options[static_cast<size_t>(chosen[i])];
    plan.seconds += option.seconds;
    if (choice.matrices.empty()) {
      plan.cache.push_back({request_.formats[static_cast<size_t>(option.picks[0])],
                            request_.formats[static_cast<size_t>(option.picks[1])], option.loss});
      plan.cache_loss += option.loss;
      continue;
    }
    for (size_t k = 0; k < choice.matrices.size(); ++k) {
      const Option single = matrix_option(choice.matrices[k], option.picks[k]);
      plan.matrices.push_back({matrices_[static_cast<size_t>(choice.matrices[k])],
                               request_.schemes[static_cast<size_t>(option.picks[k])],
                               static_cast<uint64_t>(single.bytes), single.loss});
      plan.weight_bytes += plan.matrices.back().bytes;
      plan.weight_loss += single.loss;
    }
  }
  plan.seconds += fixed_seconds();
  if (request_.cache && request_.share < 1.0) {
    plan.eviction = request_.eviction + ":" + std::to_string(request_.kept());
    plan.eviction_loss = eviction_loss();
  }
  if (!plan.cache.empty()) {
    const CacheShape shape{config_, request_.kept(), request_.batch, request_.queries};
    const kvq_usage usage = cache_usage(context_, shape, policy_text(plan));
    plan.workspace_bytes = request_.queries > 0 ? usage.workspace_bytes : 0;
    plan.cache_bytes = kv_bytes(usage);
    plan.cache_bits = usage.bits_per_scalar;
  }
  return plan;
}

/// Limits in the caller's terms: of everything, not of the choices alone.
void BitAllocator::require_possible(const AllocationLimits& limits) const {
  const auto least = [this](double Option::*cost) {
    double sum = 0.0;
    for (const Choice& choice : choices_) sum += std::ranges::min(choice.options, {}, cost).*cost;
    return sum;
  };
  const double bytes = fixed_bytes() + least(&Option::bytes);
  if (bytes > limits.max_bytes) {
    throw kvq::Error(KVQ_E_LIMIT, "the smallest plan takes " + bytes_text(static_cast<uint64_t>(bytes)) + ", " +
                                      bytes_text(static_cast<uint64_t>(bytes - limits.max_bytes)) +
                                      " more than there is");
  }
  const double fixed = fixed_seconds();
  const double seconds = fixed + least(&Option::seconds);
  if (seconds > limits.max_seconds) {
    const auto milliseconds = [](double of) { return number_text(1e3 * of, 4) + " ms"; };
    throw kvq::Error(KVQ_E_LIMIT, "a step of decoding takes " + milliseconds(seconds) + " with the fastest plan, " +
                                      milliseconds(seconds - limits.max_seconds) + " more than there is; " +
                                      milliseconds(fixed) + " of it are the same with every plan");
  }
}

ModelPlan BitAllocator::solve(const AllocationLimits& limits) const {
  require_possible(limits);
  std::vector<int32_t> counts;
  std::vector<double> bytes;
  std::vector<double> seconds;
  std::vector<double> loss;
  for (const Choice& choice : choices_) {
    counts.push_back(static_cast<int32_t>(choice.options.size()));
    for (const Option& option : choice.options) {
      bytes.push_back(option.bytes);
      seconds.push_back(option.seconds);
      loss.push_back(option.loss);
    }
  }
  auto problem = kvq::initialised<kvq_plan_problem>();
  problem.goal = limits.goal;
  problem.n_choices = static_cast<int32_t>(counts.size());
  problem.option_counts = counts.data();
  problem.bytes = bytes.data();
  problem.seconds = seconds.data();
  problem.loss = loss.data();
  problem.max_bytes = limits.max_bytes - fixed_bytes();
  problem.max_seconds = limits.max_seconds - fixed_seconds();
  problem.max_loss = limits.max_loss - eviction_loss();
  if (problem.max_loss < 0.0) problem.max_loss = 0.0;
  std::vector<int32_t> chosen(counts.size());
  const kvq_plan_costs costs = kvq::Plan::solve(context_, problem, chosen);
  ModelPlan plan = plan_of(chosen);
  plan.goal = limits.goal;
  plan.bound = costs.bound;
  if (limits.goal == KVQ_PLAN_LOSS) plan.bound += plan.eviction_loss;
  if (limits.goal == KVQ_PLAN_BYTES) plan.bound += fixed_bytes();
  if (limits.goal == KVQ_PLAN_SECONDS) plan.bound += fixed_seconds();
  return plan;
}

double BitAllocator::fixed_seconds() const {
  return times_ != nullptr ? 1e-6 * unplanned_microseconds(*times_, config_, request_) : 0.0;
}

/// Bytes of caches that no choice changes: the objects of the sequences.
double BitAllocator::fixed_bytes() const {
  if (!request_.cache) return 0.0;
  const CacheShape shape{config_, request_.kept(), request_.batch};
  ModelPlan plain;
  plain.calibrates = request_.calibrates;
  plain.cache.assign(static_cast<size_t>(config_.n_layers), {"fp16", "fp16", 0.0});
  if (request_.share < 1.0) plain.eviction = request_.eviction + ":" + std::to_string(request_.kept());
  return static_cast<double>(kv_bytes(cache_usage(context_, shape, policy_text(plain)))) -
         config_.n_layers * layer_bytes(context_, shape, "fp16", "fp16", request_.calibrates);
}

ModelPlan BitAllocator::uniform(const std::string& scheme, const std::string& keys, const std::string& values) const {
  const auto number = [](const std::vector<std::string>& names, const std::string& name) {
    return static_cast<int32_t>(std::ranges::find(names, name) - names.begin());
  };
  const std::vector<int32_t> formats = {number(request_.formats, keys), number(request_.formats, values)};
  std::vector<int32_t> chosen;
  for (const Choice& choice : choices_) {
    const std::vector<int32_t> wanted =
        choice.matrices.empty() ? formats
                                : std::vector<int32_t>(choice.matrices.size(), number(request_.schemes, scheme));
    const auto found =
        std::ranges::find_if(choice.options, [&wanted](const Option& option) { return option.picks == wanted; });
    if (found == choice.options.end()) throw llama::Error("no option of the plan is " + scheme + " or " + keys);
    chosen.push_back(static_cast<int32_t>(found - choice.options.begin()));
  }
  return plan_of(chosen);
}

ModelPlan BitAllocator::random(uint64_t seed) const {
  constexpr double kSpread = 0.3;
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  const double mean = uniform(random);
  std::vector<int32_t> chosen;
  for (const Choice& choice : choices_) {
    std::vector<int32_t> by_bytes(choice.options.size());
    std::iota(by_bytes.begin(), by_bytes.end(), 0);
    std::ranges::stable_sort(by_bytes, {}, [&](int32_t i) { return choice.options[static_cast<size_t>(i)].bytes; });
    const double place = std::clamp(mean + kSpread * (2.0 * uniform(random) - 1.0), 0.0, 1.0);
    chosen.push_back(by_bytes[static_cast<size_t>(std::lround(place * static_cast<double>(by_bytes.size() - 1)))]);
  }
  return plan_of(chosen);
}

std::vector<UniformPlan> uniform_plans(const BitAllocator& allocator, const AllocationRequest& request) {
  const std::vector<std::string> nothing = {""};
  const std::vector<std::string>& formats = request.cache ? request.formats : nothing;
  std::vector<UniformPlan> plans;
  for (const std::string& scheme : request.weights ? request.schemes : nothing) {
    for (const std::string& keys : formats) {
      for (const std::string& values : formats) {
        if (keys != values && request.weights) continue;  // there would be thousands
        const std::string cache = keys == values ? keys : keys + "/" + values;
        const std::string both = scheme.empty() || cache.empty() ? "" : " with ";
        plans.push_back({scheme + both + cache, allocator.uniform(scheme, keys, values)});
      }
    }
  }
  return plans;
}

std::optional<UniformPlan> best_uniform(const std::vector<UniformPlan>& plans, const ModelPlan& plan) {
  std::optional<UniformPlan> best;
  for (const UniformPlan& each : plans) {
    if (each.plan.bytes() > plan.bytes() || each.plan.seconds > plan.seconds) continue;
    if (!best || each.plan.loss() < best->plan.loss()) best = each;
  }
  return best;
}

std::vector<ModelPlan> frontier(const BitAllocator& allocator) {
  const auto smallest = static_cast<double>(allocator.solve({.goal = KVQ_PLAN_BYTES}).bytes());
  const auto largest = static_cast<double>(allocator.solve({}).bytes());
  std::vector<ModelPlan> plans;
  for (int i = 0; i <= kFrontierSteps; ++i) {
    const double bytes = smallest * std::pow(largest / smallest, static_cast<double>(i) / kFrontierSteps);
    plans.push_back(allocator.solve({.max_bytes = std::ceil(bytes)}));
  }
  return plans;
}

}  // namespace cli
