#pragma once

#include <span>
#include <string>
#include <vector>

#include "allocation/allocator.h"
#include "allocation/measurements.h"
#include "allocation/probe.h"

namespace cli {

/// Formats that bit allocation chooses among for keys and values.
inline const std::vector<double> kKeptShares = {0.5, 0.25, 0.125};  // of tokens that eviction may keep
inline const std::vector<std::string> kFormatChoices = {"fp16", "int8", "int4+hadamard", "gs4", "gt3",
                                                        "gs3",  "gt2",  "gs2",           "gt1", "gs1"};

/// Those of `schemes` whose errors are not above the largest noise that was measured: beyond, what is lost grows faster
/// than the error.
std::vector<std::string> judged_schemes(const Measurements& known, std::vector<std::string> schemes);

/// A probe of the windows' tokens.
Probe make_probe(Engine& engine, const ProbeWindows& windows, int32_t chunk);

/// Measure what plans of the request lose, as far as the file does not say it yet. Goes on where an interrupted run
/// ended. \param chunk  tokens that the model reads at once. \returns  seconds that this took
double measure_losses(Measurements& known, Engine& engine, const ProbeWindows& windows,
                      const AllocationRequest& request, int32_t chunk);

}  // namespace cli
