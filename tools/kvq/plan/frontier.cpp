#include "plan/frontier.h"

#include <cmath>

namespace cli {
namespace {

constexpr int kFrontierSteps = 32;

}  // namespace

std::vector<UniformPlan> uniform_plans(const Planner& planner, const PlanRequest& request) {
  const std::vector<std::string> nothing = {""};
  const std::vector<std::string>& formats = request.cache ? request.formats : nothing;
  std::vector<UniformPlan> plans;
  for (const std::string& scheme : request.weights ? request.schemes : nothing) {
    for (const std::string& keys : formats) {
      for (const std::string& values : formats) {
        if (keys != values && request.weights) continue;  // there would be thousands
        const std::string cache = keys == values ? keys : keys + "/" + values;
        const std::string both = scheme.empty() || cache.empty() ? "" : " with ";
        plans.push_back({scheme + both + cache, planner.uniform(scheme, keys, values)});
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

std::vector<ModelPlan> frontier(const Planner& planner) {
  const auto smallest = static_cast<double>(planner.solve({.goal = KVQ_PLAN_BYTES}).bytes());
  const auto largest = static_cast<double>(planner.solve({}).bytes());
  std::vector<ModelPlan> plans;
  for (int i = 0; i <= kFrontierSteps; ++i) {
    const double bytes = smallest * std::pow(largest / smallest, static_cast<double>(i) / kFrontierSteps);
    plans.push_back(planner.solve({.max_bytes = std::ceil(bytes)}));
  }
  return plans;
}

}  // namespace cli
