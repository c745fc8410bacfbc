#include "training/commvq/value_least_squares.h"

#include "core/error.h"

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>

namespace kvq {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Map<Matrix> matrix(Vector<double>& numbers, size_t rows, size_t columns) {
  return {numbers.data(), static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns)};
}

}  // namespace

void solve_ridge(Vector<double>& a, double ridge, const float* prior, size_t columns, Vector<double>& solution) {
  const size_t n = solution.size() / columns;
  double trace = 0;
  for (size_t i = 0; i < n; ++i) trace += a[i * n + i];
  const double lambda = trace > 0 ? ridge * trace / static_cast<double>(n) : 1.0;
  for (size_t i = 0; i < n; ++i) a[i * n + i] += lambda;
  for (size_t i = 0; prior != nullptr && i < solution.size(); ++i) solution[i] += lambda * prior[i];
  Eigen::Map<Matrix> normal = matrix(a, n, n);
  Eigen::LLT<Eigen::Ref<Matrix>> factors(normal);
  if (factors.info() != Eigen::Success) fail(KVQ_E_ARGUMENT, "the ridge of %g is too small for these tokens", ridge);
  Eigen::Map<Matrix> unknowns = matrix(solution, n, columns);
  factors.solveInPlace(unknowns);
}

Vector<double> principal_directions(Vector<double>& a, size_t n) {
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(matrix(a, n, n));
  if (solver.info() != Eigen::Success) fail(KVQ_E_ARGUMENT, "the variance of the values has no directions");
  Vector<double> variances(n, a.get_allocator());
  for (size_t i = 0; i < n; ++i) {
    const auto column = static_cast<Eigen::Index>(n - 1 - i);  // the solver sorts by rising variance
    variances[i] = std::max(0.0, solver.eigenvalues()(column));
    matrix(a, n, n).row(static_cast<Eigen::Index>(i)) = solver.eigenvectors().col(column).transpose();
  }
  return variances;
}

}  // namespace kvq
