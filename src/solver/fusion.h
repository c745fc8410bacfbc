// Matrices that read the same inputs, some of them multiplied together: all groupings and schemes as options of one
// choice.
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
  std::span<const double> seconds;  // [2^members − 1, schemes]: of group g in row g − 1; infinity: there is none
};

/// One grouping with a scheme for each group.
struct FusedOption {
  Costs costs;
  std::array<int32_t, kMostMembers> groups;   // of each member, the group it is in
  std::array<int32_t, kMostMembers> schemes;  // of each member
};

/// Every option that no other one beats in bytes, seconds and loss, those with the smallest loss first.
Vector<FusedOption> fuse(Allocator& allocator, const FusionProblem& problem);

}  // namespace kvq::solver
