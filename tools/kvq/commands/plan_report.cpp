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
nlohmann::ordered_json plan_json(const ModelPlan& plan, const std::optional<UniformPlan>& uniform) {
  nlohmann::ordered_json object;
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
nlohmann::ordered_json frontier_json(const std::vector<ModelPlan>& best, const std::vector<UniformPlan>& uniform) {
  nlohmann::ordered_json object;
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

/// How long measuring took, and would take with a larger model; empty if nothing was measured.
std::string measuring_text(const MeasuringTime& time) {
  if (time.seconds == 0.0) return "";
  const std::string larger = time.seconds_of_8b > 0.0
                                 ? "; all of it, of a model of 8 billion weights, would take about " +
                                       number_text(time.seconds_of_8b / 3600.0, 1) + " hours here"
                                 : "";
  return "measuring took " + number_text(time.seconds, 0) + " s" + larger + "\n";
}

nlohmann::ordered_json check_json(const std::vector<CheckedPlan>& plans) {
  nlohmann::ordered_json object = {{"rank_correlation", rank_correlation(plans)},
                                   {"worst_factor", worst_factor(plans)}};
  for (const CheckedPlan& each : plans) {
    nlohmann::ordered_json plan = {
        {"bytes", each.plan.bytes()}, {"expected", each.plan.loss()}, {"measured", each.measured}};
    if (!each.plan.matrices.empty()) plan["weight_bits"] = each.plan.weight_bits();
    if (!each.plan.cache.empty()) plan["cache_bits"] = each.plan.cache_bits;
    object["plans"].push_back(std::move(plan));
  }
  return object;
}

std::string check_text(const std::vector<CheckedPlan>& plans) {
  Table table({"plan", "bits per\nweight", "bits per\nscalar", "expected\nto lose", "loses", "ratio"});
  for (size_t i = 0; i < plans.size(); ++i) {
    const ModelPlan& plan = plans[i].plan;
    table.add_row({std::to_string(i), plan.matrices.empty() ? "-" : number_text(plan.weight_bits(), 2),
                   plan.cache.empty() ? "-" : number_text(plan.cache_bits, 2), number_text(plan.loss(), 5),
                   number_text(plans[i].measured, 5), number_text(plans[i].measured / plan.loss(), 2)});
  }
  return table.text() + "\nrank correlation " + number_text(rank_correlation(plans), 3) + ", off by a factor of " +
         number_text(worst_factor(plans), 2) + " at most\n";
}

}  // namespace

void print_plan(const PlanOptions& options, const BitAllocator& allocator, const ModelPlan& plan,
                const std::vector<UniformPlan>& uniform, const MeasuringTime& time) {
  const std::optional<UniformPlan> same = best_uniform(uniform, plan);
  if (!options.json) {
    return print_text(plan_text(plan, same) + measuring_text(time) +
                      (options.out.empty() ? "" : "written to " + options.out.string() + "\n"));
  }
  nlohmann::ordered_json object = plan_json(plan, same);
  if (options.frontier) object["frontier"] = frontier_json(frontier(allocator), uniform);
  print_json(object);
}

void print_check(const PlanOptions& options, const std::vector<CheckedPlan>& plans) {
  if (options.json) return print_json(check_json(plans));
  print_text(check_text(plans));
}

}  // namespace cli
