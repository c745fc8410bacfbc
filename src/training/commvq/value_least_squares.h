// Ridge regression and principal components.
#pragma once

#include "core/memory.h"

#include <cstddef>

namespace kvq {

/// Solve (A + λ·I)·X = B + λ·X₀ in place, where λ is `ridge` times the mean of A's diagonal: X stays near X₀ in
/// directions that the data determines poorly. `a` is [n][n], symmetric, only its lower triangle is read; it is
/// overwritten. `solution` holds B, then X: [n][columns]; `prior` X₀, or nothing for 0.
void solve_ridge(Vector<double>& a, double ridge, const float* prior, size_t columns, Vector<double>& solution);

/// Replace symmetric `a` [n][n] (lower triangle) by its orthonormal directions, one per row, by falling variance;
/// returns the variances.
Vector<double> principal_directions(Vector<double>& a, size_t n);

}  // namespace kvq
