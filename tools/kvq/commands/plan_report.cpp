#include "commands/plan.h"

#include <nlohmann/json.hpp>

#include "terminal/output.h"

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
         number_text(loss, 5) + " nats\n";
}

std::string bound_text(const ModelPlan& plan) {
  if (plan.goal == KVQ_PLAN_BYTES)
    return "that loses no more is smaller than " + bytes_text(static_cast<uint64_t>(plan.bound));
  if (plan.goal == KVQ_PLAN_SECONDS)
    return "that loses no more takes less than " + number_text(1e3 * plan.bound, 3) + " ms";
  return "loses less than " + number_text(plan.bound, 5);
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

/// The best plans of all sizes, and those that give everything the same.
Json frontier_json(const std::vector<ModelPlan>& best, const std::vector<UniformPlan>& uniform) {
  Json object;
  for (const ModelPlan& each : best) object["best"].push_back({{"bytes", each.bytes()}, {"loss", each.loss()}});
  for (const UniformPlan& each : uniform) {
    object["uniform"].push_back({{"name", each.name}, {"bytes", each.plan.bytes()}, {"loss", each.plan.loss()}});
  }
  return object;
}

/// A table of what goes where, and what that costs and loses.
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
    cells.push_back(number_text(loss_of_layer(plan, layer), 5));
    table.add_row(std::move(cells));
  }
  std::string text = table.text() + "\n";
  if (!plan.matrices.empty()) {
    text += part_text("weights  ", plan.weight_bytes, plan.weight_bits(), "weight", plan.weight_loss);
  }
  if (!plan.cache.empty()) text += part_text("cache    ", plan.cache_bytes, plan.cache_bits, "scalar", plan.cache_loss);
  if (!plan.eviction.empty()) {
    text += "eviction " + plan.eviction + " tokens a head, loses " + number_text(plan.eviction_loss, 5) + " nats\n";
  }
  if (plan.other_bytes > 0) {
    text += "others   " + bytes_text(plan.other_bytes) + " that are not planned, " + bytes_text(plan.workspace_bytes) +
            " of work space: " + bytes_text(plan.total_bytes()) + " in all\n";
  }
  text += "together " + bytes_text(plan.bytes()) + ", loses " + number_text(plan.loss(), 5) +
          " nats of divergence; no plan " + bound_text(plan) + "\n";
  if (uniform) {
    text += "the same for all, " + uniform->name + ", takes " + bytes_text(uniform->plan.bytes()) + " and loses " +
            number_text(uniform->plan.loss(), 5) + "\n";
  }
  if (plan.seconds > 0.0) text += "a step of decoding takes about " + number_text(1e3 * plan.seconds, 3) + " ms\n";
  return text;
}

}  // namespace

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

}  // namespace cli
