#include "unit/places.h"

#include "support/system.h"

std::filesystem::path example_policies() { return std::filesystem::path(KVQ_SOURCE_DIR) / "docs" / "policies"; }

std::filesystem::path pretended_device() {
  return std::filesystem::path(KVQ_TEST_PLUGINS) / ("pretend" + std::string(kvq_test::kLibrarySuffix));
}
