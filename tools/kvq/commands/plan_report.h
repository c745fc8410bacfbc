#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/frontier.h"
#include "plan/measuring.h"
#include "plan/plan_check.h"

namespace cli {

/// \param uniform  the best plan that gives everything the same and is no larger, if there is any.
nlohmann::ordered_json plan_json(const ModelPlan& plan, const std::optional<UniformPlan>& uniform);

/// The best plans of all sizes, and those that give everything the same.
nlohmann::ordered_json frontier_json(const std::vector<ModelPlan>& best, const std::vector<UniformPlan>& uniform);

/// A table of what goes where, and what that costs and loses.
std::string plan_text(const ModelPlan& plan, const std::optional<UniformPlan>& uniform);

/// How long measuring took, and would take with a larger model; empty if nothing was measured.
std::string measuring_text(const MeasuringTime& time);

/// What random plans were expected to lose, and what they lose.
nlohmann::ordered_json check_json(const std::vector<CheckedPlan>& plans);
std::string check_text(const std::vector<CheckedPlan>& plans);

}  // namespace cli
