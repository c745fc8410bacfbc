#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "config.h"

namespace llama {

/// Which linear layers of a decoder layer read the same inputs.
enum class LinearInput {
  kAttention,  // q, k and v
  kOutput,     // o
  kMlp,        // gate and up
  kDown
};

/// What a linear layer is in its decoder layer.
enum class LinearRole { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr size_t kLinearRoles = 7;

/// A linear layer of a decoder layer.
struct LinearLayer {
  std::string name;  // in the checkpoint, without ".weight" and ".bias"
  int64_t out;
  int64_t in;
  bool bias;
  int32_t layer;  // whose it is
  LinearInput input;
  LinearRole role;

  int64_t weights() const { return out * in; }
};

/// q, k, v, o, gate, up and down.
std::array<LinearLayer, kLinearRoles> linear_layers(const ModelConfig& config, int32_t layer);
/// Those of all decoder layers.
std::vector<LinearLayer> all_linear_layers(const ModelConfig& config);

}  // namespace llama
