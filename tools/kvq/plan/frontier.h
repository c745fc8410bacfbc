#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/planner.h"

namespace cli {

/// A plan that gives everything the same, and how it is called.
struct UniformPlan {
  std::string name;  // for example "tcx-3" or "gs2", or both
  ModelPlan plan;
};

/// All plans that give every matrix one scheme and every layer the same formats; keys and values have the same where
/// matrices are planned too.
std::vector<UniformPlan> uniform_plans(const Planner& planner, const PlanRequest& request);

/// The one that loses least of those that take no more bytes and, where time counts, no more time; nothing if there is
/// none.
std::optional<UniformPlan> best_uniform(const std::vector<UniformPlan>& plans, const ModelPlan& plan);

/// The best plans of all sizes, from the smallest to the largest.
std::vector<ModelPlan> frontier(const Planner& planner);

}  // namespace cli
