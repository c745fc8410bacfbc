#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plan/plan_check.h"

namespace cli {

nlohmann::ordered_json plan_json(const ModelPlan& plan);

/// A table of what goes where, and what that costs and loses.
std::string plan_text(const ModelPlan& plan);

/// What random plans were expected to lose, and what they lose.
nlohmann::ordered_json check_json(const std::vector<CheckedPlan>& plans);
std::string check_text(const std::vector<CheckedPlan>& plans);

}  // namespace cli
