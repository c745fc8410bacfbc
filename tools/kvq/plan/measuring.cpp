#include "plan/measuring.h"

#include <algorithm>

#include "bench/stopwatch.h"
#include "plan/sensitivities.h"
#include "terminal/interrupt.h"

namespace cli {
namespace {

/// Of Llama 3 8B: layers, and linear weights in each.
constexpr double kLayersOf8b = 32;
constexpr double kLayerWeightsOf8b = 6.98e9 / kLayersOf8b;

/// Runs that begin at a layer, of `n` for each layer, in steps of a layer.
double steps_of(double n, double layers) { return n * layers * (layers + 1.0) / 2.0; }

double layer_weights(const llama::ModelConfig& config) {
  double weights = 0.0;
  for (const llama::LinearLayer& each : llama::linear_layers(config, 0)) weights += static_cast<double>(each.weights());
  return weights;
}

/// What all measurements would take with the larger model, if `steps` of this one took `seconds`.
double seconds_of_8b(const PlanRequest& request, const llama::ModelConfig& config, double seconds, int64_t steps,
                     size_t windows) {
  const double of_layer = (request.weights ? kRunsOfMatrix * static_cast<double>(llama::kLinearRoles) : 0.0) +
                          (request.cache ? 2.0 * static_cast<double>(request.formats.size()) : 0.0);
  return seconds / static_cast<double>(steps) * kLayerWeightsOf8b / layer_weights(config) *
         steps_of(of_layer, kLayersOf8b) * static_cast<double>(windows);
}

}  // namespace

Probe make_probe(Engine& engine, const ProbeWindows& windows, int32_t chunk) {
  std::vector<std::vector<int32_t>> tokens = windows.tokens(engine);
  Progress progress("reading the text", static_cast<int64_t>(tokens.size()) * engine.model.config().n_layers);
  return {engine, std::move(tokens), chunk, progress};
}

MeasuringTime measure_losses(Measurements& known, Engine& engine, const ProbeWindows& windows,
                             const PlanRequest& request, int32_t chunk) {
  const llama::ModelConfig& config = engine.model.config();
  const std::vector<llama::LinearLayer> layers = llama::all_linear_layers(config);
  const Interrupt interrupt;
  if (request.weights) measure_schemes(known, engine.context, request.schemes);
  const bool lacks_weights = request.weights && std::ranges::any_of(layers, [&known](const auto& layer) {
                               return !known.weights.contains(layer.name);
                             });
  const bool lacks_formats = request.cache && lacks_cache(known, config.n_layers, request.formats);
  const bool lacks_shares = request.cache && !request.eviction.empty() && lacks_eviction(known, request.eviction);
  if (!lacks_weights && !lacks_formats && !lacks_shares) return {};
  const Stopwatch watch;
  const Probe probe = make_probe(engine, windows, chunk);
  const Stopwatch runs;
  const int64_t of_weights = lacks_weights ? missing_steps(known, probe, layers) : 0;
  const int64_t of_caches = lacks_formats ? missing_steps(known, probe, config.n_layers, request.formats) : 0;
  if (lacks_weights) {
    Progress progress("measuring weights", of_weights);
    measure_weights(known, probe, engine.model, layers, progress);
  }
  if (lacks_formats) {
    Progress progress("measuring caches", of_caches);
    measure_cache(known, probe, engine, request.formats, progress);
  }
  MeasuringTime time;
  if (of_weights + of_caches > 0) {
    time.seconds_of_8b = seconds_of_8b(request, config, runs.seconds(), of_weights + of_caches, probe.windows().size());
  }
  if (lacks_shares) measure_eviction(known, engine, probe.windows(), request.eviction, chunk);
  time.seconds = watch.seconds();
  return time;
}

}  // namespace cli
