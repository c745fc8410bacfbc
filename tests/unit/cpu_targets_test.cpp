// Offered instruction sets, against the processor features that the system reports.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "backend/cpu/dispatch/isa.h"

namespace cpu_targets_test {
namespace {

bool offered(const std::string& name) {
  return std::ranges::any_of(kvq::cpu::available_tables(), [&](const auto* table) { return table->name == name; });
}

}  // namespace

#if defined(__aarch64__)

TEST_CASE("NEON is offered, and dot products where the processor has them") {
  CHECK(offered("neon"));
  const bool dot_products = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  CHECK(offered("neon-dotprod") == dot_products);
  CHECK(kvq::cpu::available_tables().size() == (dot_products ? 2 : 1));
}

#elif !defined(__x86_64__)

TEST_CASE("the portable kernels alone are offered") {
  CHECK(offered("baseline"));
  CHECK(kvq::cpu::available_tables().size() == 1);
}

#else

namespace {

/// The first processor's extensions; empty if the system does not list them.
std::set<std::string> processor_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), std::istream_iterator<std::string>()};
  }
  return {};
}

}  // namespace

TEST_CASE("an instruction set is offered exactly where the processor has all of its extensions") {
  const std::set<std::string> flags = processor_flags();
  if (flags.empty()) {
    MESSAGE("skipped: /proc/cpuinfo lists no flags");
    return;
  }
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::ranges::all_of(names, [&](const char* name) { return flags.contains(name); });
  };
  const bool avx2 = has({"avx2", "fma", "bmi1", "bmi2", "f16c", "aes", "pclmulqdq"});
  const bool avx512 = avx2 && has({"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"});
  CHECK(offered("avx2") == avx2);
  CHECK(offered("avxvnni") == (avx2 && has({"avx_vnni"})));
  CHECK(offered("avx512") == avx512);
  CHECK(offered("avx512vnni") == (avx512 && has({"avx512_vnni", "avx512vbmi"})));
  CHECK(offered("baseline"));
}

#endif

}  // namespace cpu_targets_test
