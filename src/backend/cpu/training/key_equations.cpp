#include "backend/cpu/training/key_equations.h"

namespace kvq::keys {
namespace {

using Complex = std::complex<double>;

/// DᴴWD and DᴴW·residuals of the design D, whose row of a token has 1 in column (r, a_r) and i in (r, b_r).
class NormalEquations {
 public:
  NormalEquations(const Tokens& residuals, const uint8_t* indices, int32_t stages, int32_t codes,
                  std::span<Complex> system, std::span<Complex> sides)
      : residuals_(residuals), indices_(indices), stages_(stages), codes_(codes), system_(system), sides_(sides) {}

  /// Adds the block of two stages, second ≤ first: only the lower triangle is used.
  void add_pair(int32_t first, int32_t second) noexcept {
    const auto stride = static_cast<size_t>(stages_) * static_cast<size_t>(codes_);
    Complex* corner = system_.data() + static_cast<size_t>(first * codes_) * stride + second * codes_;
    const auto block = [&](uint8_t row, uint8_t column) -> Complex& { return corner[row * stride + column]; };
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
    const auto group = static_cast<size_t>(residuals_.group);
    Complex* rows = sides_.data() + static_cast<size_t>(stage * codes_) * group;
    const KeyPairs pairs = residuals_.pairs();
    for (int32_t t = 0; t < residuals_.n; ++t) {
      const uint8_t* index = indices_ + 2 * (static_cast<ptrdiff_t>(t) * stages_ + stage);
      const KeyPairs x = pairs.from(t);
      const double weight = residuals_.weight(t);
      Complex* a = rows + index[0] * group;
      Complex* b = rows + index[1] * group;
      for (size_t j = 0; j < group; ++j) {
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
  std::span<Complex> system_;
  std::span<Complex> sides_;
};

}  // namespace

void add_equations(Parallel& parallel, const Tokens& residuals, const uint8_t* indices, int32_t stages, int32_t codes,
                   std::span<Complex> system, std::span<Complex> sides) {
  NormalEquations equations(residuals, indices, stages, codes, system, sides);
  parallel.run(stages * (stages + 1) / 2 + stages, [&](int32_t i) noexcept {
    if (i < stages) return equations.add_side(i);
    int32_t first = 0;
    int32_t second = i - stages;
    while (second > first) second -= ++first;
    equations.add_pair(first, second);
  });
}

}  // namespace kvq::keys
