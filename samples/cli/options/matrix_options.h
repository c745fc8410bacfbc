#pragma once

#include <cstdint>
#include <string>

namespace cli {

struct MatrixShape {
  int64_t out = 0;
  int64_t in = 0;
};

/// "14336x4096": outputs and inputs of a linear layer. A UsageError unless the library takes such a matrix.
MatrixShape parse_matrix_shape(const std::string& text);

}  // namespace cli
