#pragma once

#include "support/handles.h"

#include <doctest/doctest.h>

#include <string>

namespace kvq_test {

// Checks that a call throws with this status, and returns the message.
template <typename Call>
std::string failure(kvq_status status, Call&& call) {
  try {
    call();
  } catch (const Error& failure) {
    CHECK(failure.status() == status);
    return failure.what();
  }
  FAIL("the call succeeded");
  return "";
}

}  // namespace kvq_test
