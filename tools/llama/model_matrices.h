#pragma once

#include "model_shape.h"

namespace llama {

/// Add the matrices of all layers, whose heads `shape` has already, and the other tensors.
void add_weights(const ConfigFields& fields, const std::vector<LayerKind>& kinds, ModelShape& shape);

}  // namespace llama
