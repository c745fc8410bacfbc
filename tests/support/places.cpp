// The only test source with paths of the build, so that all others compile identically anywhere.
#include "support/places.h"

#include <cstdlib>

namespace {

std::string place(const char* variable, const char* built) {
  const char* value = std::getenv(variable);
  return value != nullptr ? value : built;
}

}  // namespace

std::string program() { return place("KVQ_TEST_PROGRAM", KVQ_PROGRAM); }
std::string demo_model() { return place("KVQ_TEST_MODEL", KVQ_DEMO_MODEL_SOURCE_DIR); }
std::string source_tree() { return place("KVQ_TEST_SOURCE", KVQ_SOURCE_DIR); }
std::string test_plugins() { return place("KVQ_TEST_PLUGINS", KVQ_TEST_PLUGINS); }
