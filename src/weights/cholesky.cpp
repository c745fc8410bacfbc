#include "weights/cholesky.h"

#include <cmath>

namespace kvq::weights {
namespace {

constexpr size_t kBlock = kFactorBlock;
constexpr double kBlockTime = 15e3;  // to subtract a product of two blocks, or to solve one

/// Factorize rows first, … of the columns begin, …, from which the rows above the block are already subtracted.
void solve(const CholeskyKernels& kernels, float* u, size_t n, size_t first, size_t begin) {
  for (size_t i = first; i < first + kBlock; ++i) {
    kernels.subtract(u, n, first, i - first, i, 1, begin);
    float* row = u + i * n;
    for (size_t j = begin; j < begin + kBlock; ++j) row[j] /= row[i];
  }
}

bool factorize_diagonal(const CholeskyKernels& kernels, float* u, size_t n, size_t first) {
  for (size_t i = first; i < first + kBlock; ++i) {
    kernels.subtract(u, n, first, i - first, i, 1, first);
    float* row = u + i * n;
    if (!(row[i] > 0.0F)) return false;
    row[i] = std::sqrt(row[i]);
    for (size_t j = i + 1; j < first + kBlock; ++j) row[j] /= row[i];
  }
  return true;
}

}  // namespace

double factor_time(int32_t n) {
  const int32_t whole = n / kFactorBlock;
  const double blocks = whole;
  return kBlockTime * blocks * (blocks * blocks / 6 + blocks / 2);
}

bool factorize(SteppedLoops& loops, const CholeskyKernels& kernels, float* matrix, int32_t n) {
  const auto size = static_cast<size_t>(n);
  for (size_t first = 0; first < size; first += kBlock) {
    if (!factorize_diagonal(kernels, matrix, size, first)) return false;
    const size_t next = first + kBlock;
    const auto blocks = static_cast<int32_t>((size - next) / kBlock);
    const auto begin_of = [next](int32_t block) { return next + static_cast<size_t>(block) * kBlock; };
    loops.run(blocks, kBlockTime, [&](int32_t i) noexcept { solve(kernels, matrix, size, first, begin_of(i)); });
    loops.run(blocks, kBlockTime * (blocks + 1) / 2, [&](int32_t i) noexcept {
      for (int32_t j = i; j < blocks; ++j) {  // whose columns of the block stay in the cache
        for (size_t row = begin_of(i); row < begin_of(i + 1); row += 4) {
          kernels.subtract(matrix, size, first, kBlock, row, 4, begin_of(j));
        }
      }
    });
  }
  return true;
}

}  // namespace kvq::weights
