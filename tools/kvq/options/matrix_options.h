#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options/command.h"

namespace cli {

struct MatrixShape {
  int64_t out = 0;
  int64_t in = 0;
};

/// Add `--scheme`, which may be repeated.
Option add_schemes_option(Command command, std::vector<std::string>& schemes, const std::string& help);

/// A UsageError that lists all schemes if `scheme` is none.
void check_scheme(const std::string& scheme);

/// Add `--shape`, whose value is the default.
void add_shape_option(Command command, std::string& shape);

/// "14336x4096": outputs and inputs of a linear layer. A UsageError unless the library takes such a matrix.
MatrixShape parse_matrix_shape(const std::string& text);

}  // namespace cli
