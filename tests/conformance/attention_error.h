// Attention of one scenario on every instruction set, against float64.
#pragma once

#include "page_format.h"
#include "scenario.h"

#include <string>
#include <vector>

namespace conformance {

// Whether 8-bit integers and codes of codebooks are multiplied with fixed-point queries and probabilities on this
// instruction set. Smaller integers and gain-shape pages are on every one.
bool has_fixed_point_products(const std::string& isa);

// How far attention over the decoded pages may be from float64, relative to the largest |v|.
double attention_limit(const Scenario& scenario, const Storage& storage, const std::string& isa);

// The same for log-sum-exps, as an absolute error.
double lse_limit(const Scenario& scenario, const Storage& storage, const std::string& isa);

// Measures the scenario with each storage on each instruction set.
void check_attention(const Scenario& scenario, const std::vector<Storage>& storages);

}  // namespace conformance
