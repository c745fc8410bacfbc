#pragma once

#include <vector>

#include "kvq.hpp"
#include "llama/config.h"

/// All rows, in the order of the original.
inline std::vector<float> dequantize(const kvq::Matrix& matrix) {
  const qp_matrix_info info = matrix.describe();
  std::vector<float> weights(static_cast<size_t>(info.rows * info.columns));
  matrix.dequantize(0, info.rows, weights);
  return weights;
}
