#include "weights/cholesky.h"

#include "support/random.h"
#include "support/tensor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace kvq::weights::cholesky_test {
namespace {

/// XᵀX plus a small diagonal.
std::vector<float> positive_definite(int32_t n) {
  const auto size = static_cast<size_t>(n);
  const std::vector<float> x = kvq_test::normal_tensor(size * size, 51);
  std::vector<float> matrix(size * size);
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j < size; ++j) {
      double sum = i == j ? 0.1 * n : 0.0;
      for (size_t k = 0; k < size; ++k) sum += double{x[k * size + i]} * double{x[k * size + j]};
      matrix[i * size + j] = static_cast<float>(sum);
    }
  }
  return matrix;
}

/// The part below the diagonal is undefined.
void clear_below(std::vector<float>& matrix, int32_t n) {
  const auto size = static_cast<size_t>(n);
  for (size_t i = 0; i < size; ++i) std::fill_n(matrix.begin() + static_cast<ptrdiff_t>(i * size), i, 0.0F);
}

}  // namespace

TEST_CASE(
    "a Cholesky factor times itself is the matrix, the same bits from every instruction set and number of threads") {
  for (const int32_t n : {64, 128, 320}) {
    CAPTURE(n);
    const auto size = static_cast<size_t>(n);
    const std::vector<float> matrix = positive_definite(n);
    std::vector<float> first;
    for (const CholeskyKernels* kernels : cholesky_kernels()) {
      CAPTURE(kernels->name);
      for (const int32_t threads : {1, 3}) {
        Parallel parallel(threads, nullptr, nullptr);
        std::vector<float> factor = matrix;
        SteppedLoops loops(parallel, {nullptr, nullptr}, 1.0, n);
        REQUIRE(factorize(loops, *kernels, factor.data(), n));
        clear_below(factor, n);
        if (first.empty()) first = factor;
        CHECK(std::memcmp(factor.data(), first.data(), factor.size() * sizeof(float)) == 0);
      }
    }
    for (size_t i = 0; i < size; ++i) {
      for (size_t j = i; j < size; ++j) {
        double sum = 0.0;
        for (size_t k = 0; k <= i; ++k) sum += double{first[k * size + i]} * double{first[k * size + j]};
        REQUIRE(std::abs(sum - double{matrix[i * size + j]}) < 1e-5 * double{matrix[i * size + i]});
      }
    }
  }
}

TEST_CASE("only positive definite matrices have a Cholesky factor") {
  Parallel alone(1, nullptr, nullptr);
  for (const size_t at : {size_t{0}, size_t{63}, size_t{127}}) {
    CAPTURE(at);
    std::vector<float> matrix = positive_definite(128);
    matrix[at * 129] = -matrix[at * 129];
    SteppedLoops loops(alone, {nullptr, nullptr}, 1.0, 128);
    CHECK_FALSE(factorize(loops, *cholesky_kernels().front(), matrix.data(), 128));
  }
}

}  // namespace kvq::weights::cholesky_test
