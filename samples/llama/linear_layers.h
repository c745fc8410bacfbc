#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "config.h"

namespace llama {

/// Which linear layers of a decoder layer read the same inputs.
enum class LinearInput {
  kAttention,  // q, k and v
  kOutput,     // o
  kMlp,        // gate and up
  kDown
};

/// A linear layer of a decoder layer.
struct LinearLayer {
  std::string name;  // in the checkpoint, without ".weight" and ".bias"
  int64_t out;
  int64_t in;
  bool bias;
  int32_t layer;  // whose it is
  LinearInput input;
};

/// q, k, v, o, gate, up and down.
std::array<LinearLayer, 7> linear_layers(const ModelConfig& config, int32_t layer);

}  // namespace llama
