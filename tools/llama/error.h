#pragma once

#include <stdexcept>

namespace llama {

/// The one exception of the model runner. The message names the file, the tensor or field, and the value at fault.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace llama
