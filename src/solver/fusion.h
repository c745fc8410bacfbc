// Matrices with shared inputs, some multiplied together: all groupings and schemes as options of one choice.
#pragma once

#include "solver/choice_solver.h"

namespace kvq::solver {

inline constexpr int32_t kMostMembers = 4;

/// Matrices and schemes. A group is a set of matrices, with bit i for matrix i; all of a group have one scheme.
struct FusionProblem {
  int32_t members = 0;              // 1 … kMostMembers
  int32_t schemes = 0;              // at least 1
  std::span<const double> bytes;    // [members, schemes]
  std::span<const double> loss;     // [members, schemes]
  std::span<const double> seconds;  // [2^members − 1, schemes]: group g in row g − 1; infinity: no such group
};

/// One grouping with a scheme for each group.
struct FusedOption {
  Costs costs;
  std::array<int32_t, kMostMembers> groups;   // group of each member
  std::array<int32_t, kMostMembers> schemes;  // of each member
};

/// Pareto-optimal options in bytes, seconds and loss, by rising loss.
Vector<FusedOption> fuse(Allocator& allocator, const FusionProblem& problem);

}  // namespace kvq::solver
