#include "plan/planner.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "llama/error.h"
#include "plan/cache_bytes.h"

namespace cli {
namespace {

double at(const std::map<std::string, double>& numbers, const std::string& key, const std::string& what) {
  const auto found = numbers.find(key);
  if (found != numbers.end()) return found->second;
  throw llama::Error("the measurements lack " + what + " of " + key);
}

double loss_of_side(const Measurements& known, int32_t layer, Side side, const std::string& format) {
  if (format == "fp16") return 0.0;
  const std::string key = cache_key(layer, side);
  const auto found = known.cache.find(key);
  if (found == known.cache.end()) throw llama::Error("the measurements lack layer " + key);
  return at(found->second, format, "what " + key + " lose in format");
}

}  // namespace

double ModelPlan::weight_bits() const {
  double weights = 0.0;
  for (const PlannedMatrix& each : matrices) weights += static_cast<double>(each.layer.weights());
  return weights > 0.0 ? 8.0 * static_cast<double>(weight_bytes) / weights : 0.0;
}

std::string policy_text(const std::vector<PlannedCacheLayer>& cache) {
  std::string text = "version: 1\nsink: 1\nlayers:\n";
  for (size_t i = 0; i < cache.size(); ++i) {
    const std::string number = std::to_string(i);
    text += "  - {range: [" + number + ", " + number + "], keys: " + cache[i].keys + ", values: " + cache[i].values +
            "}\n";
  }
  return text;
}

Planner::Planner(kvq_context* context, const llama::ModelConfig& config, const Measurements& known,
                 PlanRequest request)
    : context_(context), config_(config), request_(std::move(request)) {
  if (request_.weights) add_matrices(known);
  if (request_.cache) add_layers(known);
}

void Planner::add_matrices(const Measurements& known) {
  matrices_ = llama::all_linear_layers(config_);
  for (const llama::LinearLayer& layer : matrices_) {
    const auto found = known.weights.find(layer.name);
    if (found == known.weights.end()) throw llama::Error("the measurements lack the matrix " + layer.name);
    counts_.push_back(static_cast<int32_t>(request_.schemes.size()));
    for (const std::string& scheme : request_.schemes) {
      bytes_.push_back(static_cast<double>(packed_bytes(scheme, layer)));
      loss_.push_back(found->second.slope * at(known.scheme_errors, scheme, "the error"));
      seconds_.push_back(0.0);
    }
  }
}

void Planner::add_layers(const Measurements& known) {
  for (const std::string& keys : request_.formats) {
    for (const std::string& values : request_.formats) pairs_.emplace_back(keys, values);
  }
  const CacheShape shape{config_, request_.context, request_.batch};
  std::vector<double> pair_bytes;
  for (const auto& [keys, values] : pairs_) pair_bytes.push_back(layer_bytes(context_, shape, keys, values));
  for (int32_t layer = 0; layer < config_.n_layers; ++layer) {
    counts_.push_back(static_cast<int32_t>(pairs_.size()));
    for (size_t i = 0; i < pairs_.size(); ++i) {
      bytes_.push_back(pair_bytes[i]);
      loss_.push_back(loss_of_side(known, layer, Side::kKeys, pairs_[i].first) +
                      loss_of_side(known, layer, Side::kValues, pairs_[i].second));
      seconds_.push_back(0.0);
    }
  }
}

ModelPlan Planner::plan_of(std::span<const int32_t> chosen) const {
  ModelPlan plan;
  size_t begin = 0;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto option = static_cast<size_t>(chosen[i]);
    const double loss = loss_[begin + option];
    plan.seconds += seconds_[begin + option];
    if (i < matrices_.size()) {
      const std::string& scheme = request_.schemes[option];
      plan.matrices.push_back({matrices_[i], scheme, packed_bytes(scheme, matrices_[i]), loss});
      plan.weight_bytes += plan.matrices.back().bytes;
      plan.weight_loss += loss;
    } else {
      plan.cache.push_back({pairs_[option].first, pairs_[option].second, loss});
      plan.cache_loss += loss;
    }
    begin += static_cast<size_t>(counts_[i]);
  }
  if (!plan.cache.empty()) {
    const CacheUsage usage = cache_usage(context_, {config_, request_.context, request_.batch}, policy_text(plan.cache));
    plan.cache_bytes = usage.bytes;
    plan.cache_bits = usage.bits;
  }
  return plan;
}

ModelPlan Planner::solve(const PlanLimits& limits) const {
  auto problem = kvq::initialised<kvq_plan_problem>();
  problem.goal = limits.goal;
  problem.n_choices = static_cast<int32_t>(counts_.size());
  problem.option_counts = counts_.data();
  problem.bytes = bytes_.data();
  problem.seconds = seconds_.data();
  problem.loss = loss_.data();
  problem.max_bytes = limits.max_bytes - fixed_bytes();
  problem.max_seconds = limits.max_seconds;
  problem.max_loss = limits.max_loss;
  if (problem.max_bytes < 0.0) problem.max_bytes = 0.0;
  std::vector<int32_t> chosen(counts_.size());
  const kvq_plan_costs costs = kvq::Plan::solve(context_, problem, chosen);
  ModelPlan plan = plan_of(chosen);
  plan.bound = costs.bound;
  return plan;
}

/// Of caches, whatever their layers are: the objects of the sequences.
double Planner::fixed_bytes() const {
  if (pairs_.empty()) return 0.0;
  const CacheShape shape{config_, request_.context, request_.batch};
  const PlannedCacheLayer plain{"fp16", "fp16", 0.0};
  const std::vector<PlannedCacheLayer> layers(static_cast<size_t>(config_.n_layers), plain);
  return static_cast<double>(cache_usage(context_, shape, policy_text(layers)).bytes) -
         config_.n_layers * layer_bytes(context_, shape, plain.keys, plain.values);
}

ModelPlan Planner::uniform(const std::string& scheme, const std::string& keys, const std::string& values) const {
  std::vector<int32_t> chosen;
  const auto index = [](const auto& list, const auto& wanted) {
    const auto found = std::find(list.begin(), list.end(), wanted);
    if (found == list.end()) throw llama::Error("the planner does not choose among what was asked for");
    return static_cast<int32_t>(found - list.begin());
  };
  for (size_t i = 0; i < counts_.size(); ++i) {
    chosen.push_back(i < matrices_.size() ? index(request_.schemes, scheme)
                                          : index(pairs_, std::pair(keys, values)));
  }
  return plan_of(chosen);
}

ModelPlan Planner::random(uint64_t seed) const {
  std::mt19937_64 random(seed);
  std::vector<int32_t> chosen;
  for (const int32_t count : counts_) chosen.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(count)));
  return plan_of(chosen);
}

}  // namespace cli
