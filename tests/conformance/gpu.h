// Tests of what only GPUs do.
#pragma once

#include "support/device.h"

#include <doctest/doctest.h>

#include <string>

namespace conformance {

// Whether a test cannot run here; says why.
inline bool skips() {
  const std::string why = kvq_test::why_no_cuda();
  if (!why.empty()) MESSAGE("skipped, no GPU: ", why);
  return !why.empty();
}

}  // namespace conformance
