// Tests for GPUs only.
#pragma once

#include "support/device.h"

#include <doctest/doctest.h>

#include <string>

namespace conformance {

// Whether a test must be skipped; prints the reason.
inline bool skips() {
  const std::string why = kvq_test::why_no_cuda();
  if (!why.empty()) MESSAGE("skipped, no GPU: ", why);
  return !why.empty();
}

}  // namespace conformance
