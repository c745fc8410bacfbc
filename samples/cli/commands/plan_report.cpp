#include "commands/plan_report.h"

#include <nlohmann/json.hpp>

#include "terminal/output.h"
#include "terminal/table.h"

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

}  // namespace

nlohmann::ordered_json plan_json(const ModelPlan& plan) {
  nlohmann::ordered_json object;
  object["bytes"] = plan.bytes();
  object["loss"] = plan.loss();
  object["loss_bound"] = plan.bound;
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

std::string plan_text(const ModelPlan& plan) {
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
  text += "together " + bytes_text(plan.bytes()) + ", loses " + number_text(plan.loss(), 5) +
          " nats of divergence; no plan loses less than " + number_text(plan.bound, 5) + "\n";
  if (plan.seconds > 0.0) text += "a step of decoding takes about " + number_text(1e3 * plan.seconds, 3) + " ms\n";
  return text;
}

}  // namespace cli
