#include "plan/measuring.h"

#include <algorithm>

#include "bench/stopwatch.h"
#include "plan/sensitivities.h"
#include "terminal/interrupt.h"

namespace cli {
namespace {

/// Of the linear layers of Llama 3 8B.
constexpr double kWeightsOf8b = 6.98e9;
constexpr double kLayersOf8b = 32;

double weights_of(const std::vector<llama::LinearLayer>& layers) {
  double weights = 0.0;
  for (const llama::LinearLayer& each : layers) weights += static_cast<double>(each.weights());
  return weights;
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
  if (lacks_weights) {
    Progress progress("measuring weights", missing_steps(known, probe, layers));
    measure_weights(known, probe, engine.model, layers, progress);
  }
  if (lacks_formats) {
    Progress progress("measuring caches", missing_steps(known, probe, config.n_layers, request.formats));
    measure_cache(known, probe, engine, request.formats, progress);
  }
  if (lacks_shares) measure_eviction(known, engine, probe.windows(), request.eviction, chunk);
  // A run takes as long as there are weights, and there are as many runs as layers.
  const double larger = kWeightsOf8b / weights_of(layers) * kLayersOf8b / config.n_layers;
  return {.seconds = watch.seconds(), .seconds_of_8b = watch.seconds() * larger};
}

}  // namespace cli
