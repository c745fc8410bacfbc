#pragma once

#include <cstdlib>
#include <string>

/// Where the tests find things: where the build says, or the environment, on a machine to which the tests were copied.
inline std::string place(const char* variable, const char* built) {
  const char* value = std::getenv(variable);
  return value != nullptr ? value : built;
}

inline std::string program() { return place("KVQ_TEST_PROGRAM", KVQ_PROGRAM); }
inline std::string demo_model() { return place("KVQ_TEST_MODEL", KVQ_DEMO_MODEL_SOURCE_DIR); }
inline std::string source_tree() { return place("KVQ_TEST_SOURCE", KVQ_SOURCE_DIR); }
