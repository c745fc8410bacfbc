#include "unit/places.h"

std::filesystem::path example_policies() { return std::filesystem::path(KVQ_SOURCE_DIR) / "docs" / "policies"; }

std::filesystem::path pretended_device() { return std::filesystem::path(KVQ_TEST_PLUGINS) / "pretend.so"; }
