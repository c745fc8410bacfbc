#pragma once

#include "llama/error.h"

namespace cli {

/// The command line asks for something that makes no sense: exit code 2 instead of 1.
class UsageError : public llama::Error {
 public:
  using llama::Error::Error;
};

}  // namespace cli
