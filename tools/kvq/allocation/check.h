#pragma once

#include <cstdint>
#include <vector>

#include "allocation/allocator.h"
#include "allocation/probe.h"

namespace cli {

/// A plan, and what it really loses.
struct CheckedPlan {
  ModelPlan plan;
  double measured = 0.0;  // divergence in nats
};

/// Carries out `n` random plans, whose losses were added up, and measures what each loses. Matrices are
/// quantized as `kvq quantize` would without a Hessian.
std::vector<CheckedPlan> check_plans(const BitAllocator& allocator, const Probe& probe, Engine& engine, int32_t n);

/// Spearman's correlation of what was expected and measured: 1 if the order is the same.
double rank_correlation(const std::vector<CheckedPlan>& plans);

/// The largest factor between what was expected and measured, at least 1.
double worst_factor(const std::vector<CheckedPlan>& plans);

}  // namespace cli
