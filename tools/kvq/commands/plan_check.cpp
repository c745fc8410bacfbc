#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "commands/plan.h"
#include "terminal/output.h"

namespace cli {
namespace {

struct CheckedPlan {
  ModelPlan plan;
  double measured = 0.0;  // divergence in nats
};

/// Matrices in schemes, each quantized once.
class QuantizedMatrices {
 public:
  explicit QuantizedMatrices(Engine& engine) : engine_(engine) {}

  llama::Linear of(const llama::LinearLayer& layer, const std::string& scheme) {
    llama::Linear linear = engine_.model.linear(layer);
    auto& matrix = matrices_[{layer.name, scheme}];
    if (matrix == nullptr) {
      auto options = kvq::initialised<qp_quantize_options>();
      options.scheme = scheme.c_str();
      const std::vector<float> weights = engine_.model.device().read(linear.weight);
      matrix =
          std::make_unique<kvq::Matrix>(kvq::Matrix::quantize(engine_.context, options, weights, layer.out, layer.in));
    }
    std::vector<float> weights(static_cast<size_t>(layer.weights()));
    matrix->dequantize(0, layer.out, weights);
    linear.weight = {layer.out, layer.in, llama::numbers_of(engine_.model.device().upload(std::move(weights)))};
    return linear;
  }

 private:
  Engine& engine_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<kvq::Matrix>> matrices_;
};

ExchangedLayers::Layers carried_out(const ModelPlan& plan, QuantizedMatrices& matrices) {
  ExchangedLayers::Layers layers;
  for (const PlannedMatrix& each : plan.matrices) {
    Interrupt::check();
    layers.emplace_back(each.layer, matrices.of(each.layer, each.scheme));
  }
  return layers;
}

/// The place of every number in their order, from 0.
std::vector<double> ranks(const std::vector<double>& numbers) {
  std::vector<size_t> order(numbers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&numbers](size_t i) { return numbers[i]; });
  std::vector<double> places(numbers.size());
  for (size_t place = 0; place < order.size(); ++place) places[order[place]] = static_cast<double>(place);
  return places;
}

/// Carry out `n` random plans, whose losses were added up, and measure what each loses. Matrices are quantized as
/// `kvq quantize` would without a Hessian.
std::vector<CheckedPlan> check_plans(const BitAllocator& allocator, const Probe& probe, Engine& engine, int32_t n) {
  constexpr uint64_t kFirstSeed = 100;
  const Interrupt interrupt;
  QuantizedMatrices matrices(engine);
  std::vector<CheckedPlan> plans;
  Progress progress("checking plans", n * probe.steps(0));
  for (int32_t i = 0; i < n; ++i) {
    CheckedPlan& checked = plans.emplace_back();
    checked.plan = allocator.random(kFirstSeed + static_cast<uint64_t>(i));
    const ExchangedLayers weights(engine.model, carried_out(checked.plan, matrices));
    kvq::Policy policy = nullptr;
    if (!checked.plan.cache.empty()) policy = kvq::Policy::load(engine.context, policy_text(checked.plan));
    checked.measured = probe.divergence({policy}, 0, progress);
  }
  return plans;
}

/// Spearman's correlation of what was expected and measured: 1 if the order is the same.
double rank_correlation(const std::vector<CheckedPlan>& plans) {
  std::vector<double> expected;
  std::vector<double> measured;
  for (const CheckedPlan& each : plans) {
    expected.push_back(each.plan.loss());
    measured.push_back(each.measured);
  }
  const std::vector<double> a = ranks(expected);
  const std::vector<double> b = ranks(measured);
  double squares = 0.0;
  for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
  const auto n = static_cast<double>(a.size());
  return n > 1.0 ? 1.0 - 6.0 * squares / (n * (n * n - 1.0)) : 1.0;
}

/// The largest factor between what was expected and measured, at least 1.
double worst_factor(const std::vector<CheckedPlan>& plans) {
  double worst = 1.0;
  for (const CheckedPlan& each : plans) {
    worst = std::max({worst, each.measured / each.plan.loss(), each.plan.loss() / each.measured});
  }
  return worst;
}

Json check_json(const std::vector<CheckedPlan>& plans) {
  Json object = {{"rank_correlation", rank_correlation(plans)}, {"worst_factor", worst_factor(plans)}};
  for (const CheckedPlan& each : plans) {
    Json plan = {{"bytes", each.plan.bytes()}, {"expected", each.plan.loss()}, {"measured", each.measured}};
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
                   plan.cache.empty() ? "-" : number_text(plan.cache_bits, 2), nats_text(plan.loss()),
                   nats_text(plans[i].measured), number_text(plans[i].measured / plan.loss(), 2)});
  }
  return table.text() + "\nrank correlation " + number_text(rank_correlation(plans), 3) + ", off by a factor of " +
         number_text(worst_factor(plans), 2) + " at most\n";
}

}  // namespace

void print_check(const PlanOptions& options, const BitAllocator& allocator, const Probe& probe, Engine& engine) {
  const std::vector<CheckedPlan> plans = check_plans(allocator, probe, engine, options.check);
  if (options.json) return print_json(check_json(plans));
  print_text(check_text(plans));
}

}  // namespace cli
