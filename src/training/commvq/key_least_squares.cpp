#include "training/commvq/key_least_squares.h"

#include "core/sizes.h"
#include "formats/commvq/key_kernels.h"

#include <Eigen/Cholesky>
#include <complex>

namespace kvq::keys {
namespace {

using Complex = std::complex<double>;
using ComplexMatrix = Eigen::Matrix<Complex, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

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
  const int32_t codes = statistics.codes;
  const int32_t group = statistics.group;
  // A = diag(row + column sums) + i·(N − Nᵀ)
  const Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> counts(
      statistics.counts.data(), codes, codes);
  ComplexMatrix system = Complex(0.0, 1.0) * (counts - counts.transpose()).cast<Complex>();
  system.diagonal() += (counts.rowwise().sum() + counts.colwise().sum().transpose()).cast<Complex>();
  system.diagonal().array() += floor;

  ComplexMatrix solution(codes, group);
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

void refine_codes(Allocator& allocator, KeySample& sample, const KeyEncoder& encoder, double ridge,
                  std::span<float> z) {
  const int32_t n = encoder.stages() * encoder.codes();
  const auto rows = static_cast<size_t>(n);
  Vector<Complex> system_memory(rows * rows, allocator);
  Vector<Complex> side_memory(rows * static_cast<size_t>(encoder.group()), allocator);
  sample.add_equations(encoder, system_memory, side_memory);
  Eigen::Map<ComplexMatrix> system(system_memory.data(), n, n);
  Eigen::Map<ComplexMatrix> sides(side_memory.data(), n, encoder.group());
  system.diagonal().array() += ridge;
  const Eigen::LLT<Eigen::Ref<ComplexMatrix>> factor(system);
  factor.solveInPlace(sides);
  for (size_t i = 0; i < side_memory.size(); ++i) {
    z[2 * i] += static_cast<float>(side_memory[i].real());
    z[2 * i + 1] += static_cast<float>(side_memory[i].imag());
  }
}

}  // namespace kvq::keys
