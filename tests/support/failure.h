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

// Why a cache is not created.
inline std::string creation_message(kvq_context* context, const kvq_cache_options& options, kvq_status expected,
                                    const char* policy = "fp16") {
  const Policy loaded = load_plain_policy(context, policy);
  kvq_cache* cache = nullptr;
  kvq_error error;
  kvq_error_init(&error, sizeof(error));
  CHECK(kvq_cache_create(context, &options, loaded, &cache, &error) == expected);
  CHECK(cache == nullptr);
  return error.message;
}

}  // namespace kvq_test
