// A program whose loaded library is older than its header: it gets an Error that names both numbers.
#include "kvq.hpp"

#include <cstdio>
#include <cstring>

int32_t kvq_api_version() { return KVQ_API_VERSION - 1; }
const char* kvq_version_string() { return "0.9.7"; }
const char* kvq_status_name(kvq_status) { return ""; }

int main() {
  const std::string expected = "libkvq 0.9.7 implements API version " + std::to_string(KVQ_API_VERSION - 1) +
                               ", this program needs " + std::to_string(KVQ_API_VERSION);
  try {
    kvq::require_version();
  } catch (const kvq::Error& error) {
    if (error.status() == KVQ_E_UNSUPPORTED && error.what() == expected) return 0;
    std::fprintf(stderr, "\"%s\" instead of \"%s\"\n", error.what(), expected.c_str());
    return 1;
  }
  std::fprintf(stderr, "an older library was accepted\n");
  return 1;
}
