#include "training/commvq/key_refinement.h"

#include <Eigen/Cholesky>
#include <complex>

namespace kvq::keys {
void refine_codes(Allocator& allocator, KeySample& sample, const KeyEncoder& encoder, double ridge,
                  std::span<float> z) {
  using Complex = std::complex<double>;
  using Matrix = Eigen::Matrix<Complex, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using MatrixMap = Eigen::Map<Matrix>;
  const int32_t n = encoder.stages() * encoder.codes();
  const auto rows = static_cast<size_t>(n);
  Vector<Complex> system_memory(rows * rows, StlAllocator<Complex>(allocator));
  Vector<Complex> side_memory(rows * static_cast<size_t>(encoder.group()), StlAllocator<Complex>(allocator));
  sample.add_equations(encoder, system_memory, side_memory);
  MatrixMap system(system_memory.data(), n, n);
  MatrixMap sides(side_memory.data(), n, encoder.group());
  system.diagonal().array() += ridge;
  const Eigen::LLT<Eigen::Ref<Matrix>> factor(system);
  factor.solveInPlace(sides);
  for (size_t i = 0; i < side_memory.size(); ++i) {
    z[2 * i] += static_cast<float>(side_memory[i].real());
    z[2 * i + 1] += static_cast<float>(side_memory[i].imag());
  }
}

}  // namespace kvq::keys
