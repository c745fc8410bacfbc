#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "plan/planner.h"

namespace cli {

nlohmann::ordered_json plan_json(const ModelPlan& plan);

/// A table of what goes where, and what that costs and loses.
std::string plan_text(const ModelPlan& plan);

}  // namespace cli
