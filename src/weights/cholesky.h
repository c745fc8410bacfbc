// Cholesky factors of Hessians, the same bits from every instruction set and device.
#pragma once

#include "weights/stepped_loops.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq::weights {

/// Rows factorized together; sizes are multiples of it.
inline constexpr int32_t kFactorBlock = 64;

struct CholeskyKernels {
  const char* name;
  /// u[row + r][j] −= Σ_k u[first + k][row + r] · u[first + k][j] for k from 0 to count − 1 in this order, each product
  /// and sum rounded on its own; r < rows, 1 or 4; kFactorBlock columns j from `begin` on. `u`: [n, n].
  void (*subtract)(float* u, size_t n, size_t first, size_t count, size_t row, size_t rows, size_t begin);
};

/// Kernels that this processor can run, best first; the last one runs everywhere.
std::span<const CholeskyKernels* const> cholesky_kernels();

/// A = UᵀU, in place: reads and writes only the upper triangle of [n, n]; the rest is undefined afterwards.
/// u_ij = (a_ij − Σ_k u_ki u_kj) / u_ii, products subtracted one after the other in the order of k. Returns false
/// unless A is positive definite.
bool factorize(SteppedLoops& loops, const CholeskyKernels& kernels, float* matrix, int32_t n);
/// Time of it.
double factor_time(int32_t n);

}  // namespace kvq::weights
