#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure/eviction_quality.h"

namespace cli {

/// What was measured, besides the results.
struct EvictionReport {
  std::string kv;
  std::string machine;
  EvictionOptions measured;
  int32_t window = 0;  // newest tokens that always stay
  std::vector<Budget> budgets;
  std::vector<std::string> methods;  // of the subjects, the first of which evicts nothing
};

/// A table of quality and one of time.
void print_report(const EvictionReport& report, const std::vector<EvictionQuality>& subjects);
void print_report_json(const EvictionReport& report, const std::vector<EvictionQuality>& subjects);

}  // namespace cli
