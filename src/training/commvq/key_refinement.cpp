#include "training/commvq/key_refinement.h"

#include "formats/commvq/key_kernels.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <complex>

namespace kvq::keys {
namespace {

using Complex = std::complex<double>;
using Matrix = Eigen::Matrix<Complex, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixMap = Eigen::Map<Matrix>;

/// DᴴWD and DᴴW·residuals of the design D, whose row of a token has 1 in column (r, a_r) and i in (r, b_r).
class NormalEquations {
 public:
  NormalEquations(const Tokens& residuals, const uint8_t* indices, int32_t stages, int32_t codes,
                  const MatrixMap& system, const MatrixMap& sides)
      : residuals_(residuals), indices_(indices), stages_(stages), codes_(codes), system_(system), sides_(sides) {}

  /// The block of two stages, second ≤ first: the lower triangle is all that is used.
  void add_pair(int32_t first, int32_t second) noexcept {
    auto block = system_.block(first * codes_, second * codes_, codes_, codes_);
    for (int32_t t = 0; t < residuals_.n; ++t) {
      const uint8_t* index = indices_ + 2 * static_cast<ptrdiff_t>(t) * stages_;
      const uint8_t a = index[2 * first];
      const uint8_t b = index[2 * first + 1];
      const uint8_t c = index[2 * second];
      const uint8_t d = index[2 * second + 1];
      const double weight = residuals_.weight(t);
      block(a, c) += weight;
      block(b, d) += weight;
      block(a, d) += Complex(0.0, weight);
      block(b, c) -= Complex(0.0, weight);
    }
  }

  void add_side(int32_t stage) noexcept {
    auto rows = sides_.middleRows(stage * codes_, codes_);
    const KeyPairs pairs = residuals_.pairs();
    for (int32_t t = 0; t < residuals_.n; ++t) {
      const uint8_t* index = indices_ + 2 * (static_cast<ptrdiff_t>(t) * stages_ + stage);
      const KeyPairs x = pairs.from(t);
      const double weight = residuals_.weight(t);
      Complex* a = &rows(index[0], 0);
      Complex* b = &rows(index[1], 0);
      for (int32_t j = 0; j < residuals_.group; ++j) {
        const Complex moment(weight * double{x.real[j]}, weight * double{x.imaginary[j]});
        a[j] += moment;
        b[j] += Complex(moment.imag(), -moment.real());
      }
    }
  }

 private:
  Tokens residuals_;
  const uint8_t* indices_;
  int32_t stages_;
  int32_t codes_;
  MatrixMap system_;
  MatrixMap sides_;
};

}  // namespace

void refine_codes(Allocator& allocator, Parallel& parallel, const Tokens& residuals, const uint8_t* indices,
                  int32_t stages, int32_t codes, double ridge, std::span<float> z) {
  const int32_t n = stages * codes;
  const auto rows = static_cast<size_t>(n);
  Vector<Complex> system_memory(rows * rows, StlAllocator<Complex>(allocator));
  Vector<Complex> side_memory(rows * static_cast<size_t>(residuals.group), StlAllocator<Complex>(allocator));
  MatrixMap system(system_memory.data(), n, n);
  MatrixMap sides(side_memory.data(), n, residuals.group);

  NormalEquations equations(residuals, indices, stages, codes, system, sides);
  parallel.run(stages * (stages + 1) / 2 + stages, [&](int32_t i) noexcept {
    if (i < stages) return equations.add_side(i);
    int32_t first = 0;
    int32_t second = i - stages;
    while (second > first) second -= ++first;
    equations.add_pair(first, second);
  });
  system.diagonal().array() += ridge;
  const Eigen::LLT<Eigen::Ref<Matrix>> factor(system);
  factor.solveInPlace(sides);
  for (size_t i = 0; i < side_memory.size(); ++i) {
    z[2 * i] += static_cast<float>(side_memory[i].real());
    z[2 * i + 1] += static_cast<float>(side_memory[i].imag());
  }
}

}  // namespace kvq::keys
