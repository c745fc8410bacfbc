#pragma once

#include <optional>
#include <vector>

#include "checkpoint.h"
#include "config.h"
#include "linear.h"

namespace llama {

struct LayerWeights {
  std::vector<float> input_norm;           // [hidden]
  Linear q, k, v, o;                       // [heads·head_dim, hidden], o: [hidden, heads·head_dim]
  std::vector<float> q_norm, k_norm;       // [head_dim], or empty
  std::vector<float> post_attention_norm;  // [hidden]
  Linear gate, up, down;                   // [intermediate, hidden], down: [hidden, intermediate]
};

struct Weights {
  Matrix embedding;              // [vocabulary, hidden]
  std::optional<Matrix> output;  // [vocabulary, hidden]; none: tied to the embedding
  std::vector<float> final_norm;
  std::vector<LayerWeights> layers;
  double bits = 0.0;  // mean bits per weight in the file

  const Matrix& output_matrix() const { return output ? *output : embedding; }
};

/** Read every tensor the configuration calls for and check its shape. */
Weights load_weights(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace llama
