#pragma once

#include <span>
#include <string>
#include <vector>

#include "allocation/allocator.h"
#include "allocation/measurements.h"
#include "allocation/probe.h"

namespace cli {

/// Formats that bit allocation chooses among for keys and values.
inline const std::vector<double> kPlannedShares = {0.5, 0.25, 0.125};  // of tokens that eviction may keep
inline const std::vector<std::string> kPlannedFormats = {"fp16", "int8", "int4+hadamard", "gs4", "gt3",
                                                         "gs3",  "gt2",  "gs2",           "gt1", "gs1"};

/// Runs of a probe that a matrix takes.
inline constexpr int kRunsOfMatrix = 4;

/// Whether bit allocation needs to know more of caches.
bool lacks_cache(const Measurements& known, int32_t n_layers, std::span<const std::string> formats);

/// What bit allocation needs to know and has not been measured yet, in steps of a Probe.
int64_t missing_steps(const Measurements& known, const Probe& probe, std::span<const llama::LinearLayer> layers);
int64_t missing_steps(const Measurements& known, const Probe& probe, int32_t n_layers,
                      std::span<const std::string> formats);

/// Measures what each linear layer loses: Gaussian noise on its weights alone, at some levels, and a line through the
/// divergences. Saves after every layer.
void measure_weights(Measurements& known, const Probe& probe, llama::Model& model,
                     std::span<const llama::LinearLayer> layers, Progress& progress);

/// Measures what each layer's keys and values lose in each format, with that side of that layer alone compressed. Saves
/// after every side.
void measure_cache(Measurements& known, const Probe& probe, Engine& engine, std::span<const std::string> formats,
                   Progress& progress);

/// Whether bit allocation needs to know more of a method of eviction.
bool lacks_eviction(const Measurements& known, const std::string& method);

/// Measures what the second half of each window loses if a method keeps a share of the first half, in FP16.
void measure_eviction(Measurements& known, Engine& engine, const std::vector<std::vector<int32_t>>& windows,
                      const std::string& method, int32_t chunk);

/// Measures the squared error of Gaussian weights in each scheme: what rotated weights are.
void measure_schemes(Measurements& known, kvq_context* context, std::span<const std::string> schemes);

/// Those of `schemes` whose errors are not above the largest noise that was measured: beyond, what is lost grows faster
/// than the error.
std::vector<std::string> judged_schemes(const Measurements& known, std::vector<std::string> schemes);

/// A probe of the windows' tokens.
Probe make_probe(Engine& engine, const ProbeWindows& windows, int32_t chunk);

/// What this run has measured, for an estimate of larger models.
struct MeasuringTime {
  double seconds = 0.0;
  double seconds_of_8b = 0.0;  // that all of it would take here with 8 billion weights in 32 layers; 0: cannot tell
};

/// Measures what plans of the request lose, as far as the file does not say it yet. Goes on where an interrupted run
/// ended. \param chunk  tokens that the model reads at once.
MeasuringTime measure_losses(Measurements& known, Engine& engine, const ProbeWindows& windows,
                             const AllocationRequest& request, int32_t chunk);

}  // namespace cli
