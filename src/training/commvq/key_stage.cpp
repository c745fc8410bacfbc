#include "training/commvq/key_stage.h"

#include "core/sizes.h"
#include "formats/commvq/key_kernels.h"

#include <Eigen/Cholesky>
#include <complex>

namespace kvq::keys {
double assignment_error(const KeyStatistics& statistics, const KeyEncoder& stage, double energy) {
  const int32_t codes = statistics.codes;
  const int32_t group = statistics.group;
  // Σ W·(‖x‖² − 2 Re conj(c)·x + ‖c‖²)
  double sum = energy;
  for (int32_t a = 0; a < codes; ++a) {
    const float* z = stage.code(0, a);
    const double* moment = statistics.moments.data() + 2 * size(a, group);
    for (int32_t j = 0; j < group; ++j) {
      sum -= 2.0 * (moment[2 * j] * double{z[j]} + moment[2 * j + 1] * double{z[padded(group) + j]});
    }
    for (int32_t b = 0; b < codes; ++b) {
      sum += statistics.counts[size(a, codes) + static_cast<size_t>(b)] *
             double{stage.norms(0)[size(b, stage.width()) + static_cast<size_t>(a)]};
    }
  }
  return sum;
}

void fit_codes(const KeyStatistics& statistics, double floor, std::span<float> z) {
  using Complex = std::complex<double>;
  using Matrix = Eigen::Matrix<Complex, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const int32_t codes = statistics.codes;
  const int32_t group = statistics.group;
  // A = diag(row + column sums) + i·(N − Nᵀ)
  const Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> counts(
      statistics.counts.data(), codes, codes);
  Matrix system = Complex(0.0, 1.0) * (counts - counts.transpose()).cast<Complex>();
  system.diagonal() += (counts.rowwise().sum() + counts.colwise().sum().transpose()).cast<Complex>();
  system.diagonal().array() += floor;

  Matrix solution(codes, group);
  for (int32_t i = 0; i < codes * group; ++i) {
    const Complex moment(statistics.moments[static_cast<size_t>(2 * i)],
                         statistics.moments[static_cast<size_t>(2 * i + 1)]);
    const Complex before(double{z[static_cast<size_t>(2 * i)]}, double{z[static_cast<size_t>(2 * i + 1)]});
    solution.data()[i] = moment + floor * before;
  }
  system.llt().solveInPlace(solution);
  for (int32_t i = 0; i < codes * group; ++i) {
    z[static_cast<size_t>(2 * i)] = static_cast<float>(solution.data()[i].real());
    z[static_cast<size_t>(2 * i + 1)] = static_cast<float>(solution.data()[i].imag());
  }
}

}  // namespace kvq::keys
