#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "kvq.hpp"
#include "llama/linear_layers.h"

/// The linear layers of a model.
inline std::vector<llama::LinearLayer> all_layers(const llama::ModelConfig& config) {
  std::vector<llama::LinearLayer> layers;
  for (int32_t i = 0; i < config.n_layers; ++i)
    std::ranges::copy(llama::linear_layers(config, i), std::back_inserter(layers));
  return layers;
}

/// All rows, in the order of the original.
inline std::vector<float> dequantize(const kvq::Matrix& matrix) {
  const qp_matrix_info info = matrix.describe();
  std::vector<float> weights(static_cast<size_t>(info.rows * info.columns));
  matrix.dequantize(0, info.rows, weights);
  return weights;
}
