#include "plan/frontier.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "terminal/line_plot.h"

namespace cli {
namespace {

constexpr int kPoints = 32;
constexpr double kMebibyte = 1 << 20;

std::pair<double, double> point_of(const ModelPlan& plan) {
  return {static_cast<double>(plan.bytes()) / kMebibyte, plan.loss()};
}

/// What the plan loses, layer by layer.
LinePlot layers_plot(const ModelPlan& plan) {
  LinePlot plot{.title = "What this plan loses by layer",
                .x_label = "layer",
                .y_label = "expected divergence, nats",
                .logarithmic = true,
                .series = {}};
  PlotSeries weights{.name = "weights", .points = {}};
  for (const PlannedMatrix& each : plan.matrices) {
    const double layer = each.layer.layer;
    if (weights.points.empty() || weights.points.back().first != layer) weights.points.emplace_back(layer, 0.0);
    weights.points.back().second += each.loss;
  }
  PlotSeries cache{.name = "keys and values", .points = {}};
  for (size_t i = 0; i < plan.cache.size(); ++i) {
    cache.points.emplace_back(static_cast<double>(i), plan.cache[i].loss);
  }
  if (!weights.points.empty()) plot.series.push_back(weights);
  if (!cache.points.empty()) plot.series.push_back(cache);
  return plot;
}

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

std::string frontier_svg(const Planner& planner, const ModelPlan& plan, const std::vector<UniformPlan>& uniform) {
  LinePlot plot{.title = "What the best plans lose",
                .x_label = "MiB of what is planned",
                .y_label = "expected divergence, nats",
                .logarithmic = true,
                .series = {}};
  const auto smallest = static_cast<double>(planner.solve({.goal = KVQ_PLAN_BYTES}).bytes());
  const auto largest = static_cast<double>(planner.solve({}).bytes());
  PlotSeries best{.name = "best plans", .points = {}};
  for (int i = 0; i <= kPoints; ++i) {
    const double bytes = smallest * std::pow(largest / smallest, static_cast<double>(i) / kPoints);
    best.points.push_back(point_of(planner.solve({.max_bytes = std::ceil(bytes)})));
  }
  PlotSeries same{.name = "the same for all", .points = {}, .line = false};
  for (const UniformPlan& each : uniform) {
    const auto beats = [&each](const UniformPlan& other) {
      return other.plan.bytes() < each.plan.bytes() && other.plan.loss() < each.plan.loss();
    };
    if (std::ranges::none_of(uniform, beats)) same.points.push_back(point_of(each.plan));
  }
  plot.series = {best, same, {.name = "this plan", .points = {point_of(plan)}, .line = false}};
  const std::array plots{plot, layers_plot(plan)};
  return svg_of(plots);
}

}  // namespace cli
