#pragma once

#include "plan/planner.h"
#include "plan/probe.h"
#include "plan/probe_text.h"

namespace cli {

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
                             const PlanRequest& request, int32_t chunk);

}  // namespace cli
