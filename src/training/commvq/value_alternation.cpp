#include "training/commvq/value_alternation.h"

#include "core/error.h"

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <cmath>

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

ValueDraft::ValueDraft(Allocator& allocator, size_t width, size_t bits)
    : channel_scale(width, 1.0F, allocator),
      codes(size(bits, width), allocator),
      offset(width, allocator),
      proposal(size(bits, width), allocator),
      proposal_bias(bits, allocator) {}

ValueCode ValueDraft::code() const {
  return {.width = static_cast<int32_t>(width()),
          .bits = static_cast<int32_t>(bits()),
          .channel_scale = channel_scale,
          .codes = codes,
          .offset = offset,
          .proposal = proposal,
          .proposal_bias = proposal_bias};
}

ValueAlternation::ValueAlternation(Allocator& allocator, const AlternationOptions& options, ValueSample& targets,
                                   ValueDraft& draft)
    : allocator_(allocator), options_(options), targets_(targets), draft_(draft), moments_(allocator) {}

void ValueAlternation::start_from_signs() {
  const size_t width = draft_.width();
  moments_.assign(size(width + 1, width + 1), 0.0);
  targets_.moments(moments_);
  const double* sums = moments_.data() + width * (width + 1);
  const double tokens = sums[width];
  Vector<double> directions(size(width, width), allocator_);
  for (size_t i = 0; i < width; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      directions[i * width + j] = moments_[i * (width + 1) + j] / tokens - sums[i] / tokens * (sums[j] / tokens);
    }
  }
  const Vector<double> variances = principal_directions(directions, width);
  for (size_t c = 0; c < width; ++c) draft_.offset[c] = static_cast<float>(sums[c] / tokens);
  for (size_t n = 0; n < width; ++n) {
    const double* direction = directions.data() + n * width;
    const double step = kSignStep * std::sqrt(variances[n]);
    double center = 0;
    for (size_t c = 0; c < width; ++c) {
      center += direction[c] * sums[c] / tokens;
      draft_.proposal[n * width + c] = static_cast<float>(direction[c]);
      draft_.codes[n * width + c] = static_cast<float>(step * direction[c]);
      draft_.offset[c] -= static_cast<float>(step * direction[c] / 2);
    }
    draft_.proposal_bias[n] = static_cast<float>(-center);
  }
}

/// Least squares of scale · (offset + Σ rows of C whose bit is set) against the targets.
void ValueAlternation::solve_codes() {
  const size_t bits = draft_.bits();
  const size_t width = draft_.width();
  Vector<double> normal(size(bits + 1, bits + 1), allocator_);
  Vector<double> solution(size(bits + 1, width), allocator_);
  targets_.code_products(normal, solution);
  Vector<float> prior(draft_.codes);
  prior.insert(prior.end(), draft_.offset.begin(), draft_.offset.end());
  solve_ridge(normal, options_.ridge, prior.data(), width, solution);
  const double* offset = solution.data() + bits * width;
  for (size_t i = 0; i < bits * width; ++i) draft_.codes[i] = static_cast<float>(solution[i]);
  for (size_t c = 0; c < width; ++c) draft_.offset[c] = static_cast<float>(offset[c]);
}

/// Ridge regression of the bits as signs.
void ValueAlternation::solve_proposal() {
  const size_t width = draft_.width();
  const size_t bits = draft_.bits();
  Vector<double> moments(moments_);
  Vector<double> solution(size(width + 1, bits), allocator_);
  targets_.sign_products(solution);
  solve_ridge(moments, options_.proposal_ridge, nullptr, bits, solution);
  for (size_t n = 0; n < bits; ++n) {
    for (size_t c = 0; c < width; ++c) draft_.proposal[n * width + c] = static_cast<float>(solution[c * bits + n]);
    draft_.proposal_bias[n] = static_cast<float>(solution[width * bits + n]);
  }
}

}  // namespace kvq
