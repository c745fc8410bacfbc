#include "accuracy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>

namespace conformance {
namespace {

struct Worst {
  double error = 0.0;
  double limit = 1.0;
  std::string where;
  long n = 0;
};

using Key = std::tuple<std::string, std::string, std::string>;

std::map<Key, Worst>& table() {
  static std::map<Key, Worst> rows;
  return rows;
}

}  // namespace

void measure(const Measurement& m, std::string_view where) {
  const bool good = m.error <= m.limit;
  CHECK_MESSAGE(good, m.operation << ", " << m.format << ", " << m.isa << ": error " << m.error << " above " << m.limit
                                  << " in " << where);
  Worst& worst = table()[{m.operation, m.format, m.isa}];
  ++worst.n;
  if (worst.n == 1 || !(m.error / m.limit <= worst.error / worst.limit)) {
    worst.error = m.error;
    worst.limit = m.limit;
    worst.where = where;
  }
}

void print_accuracy_table() {
  if (table().empty()) return;
  size_t widths[3] = {9, 6, 3};
  for (const auto& [key, worst] : table()) {
    widths[0] = std::max(widths[0], std::get<0>(key).size());
    widths[1] = std::max(widths[1], std::get<1>(key).size());
    widths[2] = std::max(widths[2], std::get<2>(key).size());
  }
  const auto width = [&](int i) { return static_cast<int>(widths[i]); };
  std::printf("\n%-*s  %-*s  %-*s  %9s  %9s  %6s  worst case\n", width(0), "operation", width(1), "format", width(2),
              "isa", "error", "limit", "cases");
  for (const auto& [key, worst] : table()) {
    std::printf("%-*s  %-*s  %-*s  %9.2e  %9.2e  %6ld  %s\n", width(0), std::get<0>(key).c_str(), width(1),
                std::get<1>(key).c_str(), width(2), std::get<2>(key).c_str(), worst.error, worst.limit, worst.n,
                worst.where.c_str());
  }
}

}  // namespace conformance
