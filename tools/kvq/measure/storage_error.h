#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "options/engine.h"
#include "options/spec.h"
#include "terminal/progress.h"

namespace cli {

/// Of the compressed pages of one layer: Σ‖x̂ − x‖² / Σ‖x‖² with x as FP16 stores it; 0 if there are none.
struct LayerError {
  double keys = 0.0;
  double values = 0.0;
};

/// What a format makes of the keys and values of a full-precision run, layer by layer. Pages that a format leaves in
/// FP16 (sink, recent and the open one) do not count. Each window starts an empty sequence; `progress` advances by
/// every token run and every token decoded in a layer.
std::vector<LayerError> measure_storage_error(Engine& engine, const Spec& format,
                                              const std::vector<std::span<const int32_t>>& windows, Progress& progress);

}  // namespace cli
