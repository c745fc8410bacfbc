#include "weights/hessian.h"

#include "core/error.h"
#include "weights/cholesky.h"
#include "weights/quantizing.h"
#include "weights/rotation.h"

#include <algorithm>
#include <cmath>

namespace kvq::weights {
namespace {

constexpr double kSymmetry = 1e-3;  // of the geometric mean of two diagonal elements
constexpr size_t kColumns = kTileColumns;

void check(const float* hessian, size_t n) {
  double largest = 0.0;
  for (size_t i = 0; i < n; ++i) {
    const auto diagonal = static_cast<double>(hessian[i * n + i]);
    if (!(diagonal >= 0.0 && diagonal <= 1e30)) {
      fail(KVQ_E_ARGUMENT, "hessian[%zu, %zu] is %g, must be finite and not negative", i, i, diagonal);
    }
    largest = std::max(largest, diagonal);
  }
  if (largest == 0.0) fail(KVQ_E_ARGUMENT, "the diagonal of the hessian is 0 everywhere");
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < i; ++j) {
      const auto lower = static_cast<double>(hessian[i * n + j]);
      const auto upper = static_cast<double>(hessian[j * n + i]);
      const double scale = std::sqrt(static_cast<double>(hessian[i * n + i]) * static_cast<double>(hessian[j * n + j]));
      if (std::abs(lower - upper) <= kSymmetry * scale + 1e-9 * largest) continue;
      fail(KVQ_E_ARGUMENT, "hessian[%zu, %zu] is %g, hessian[%zu, %zu] is %g: it must be finite and symmetric", i, j,
           lower, j, i, upper);
    }
  }
}

void transpose(float* matrix, size_t n) {
  constexpr size_t kBlock = 32;
  for (size_t i = 0; i < n; i += kBlock) {
    for (size_t j = 0; j <= i; j += kBlock) {
      for (size_t r = i; r < std::min(n, i + kBlock); ++r) {
        for (size_t c = j; c < std::min(r, j + kBlock); ++c) std::swap(matrix[r * n + c], matrix[c * n + r]);
      }
    }
  }
}

/// Columns of the matrix in the order of their coding.
Vector<int32_t> coding_orders(Allocator& allocator, const Matrix& matrix) {
  Vector<int32_t> columns{StlAllocator<int32_t>(allocator)};
  for (const Segment& segment : matrix.segments) {
    for (int32_t i = 0; i < segment.columns; ++i) {
      columns.push_back(segment.first_column + i / kTileColumns * kTileColumns +
                        coding_order(segment.code, i % kTileColumns));
    }
  }
  return columns;
}

}  // namespace

Hessian::Hessian(Allocator& allocator, Parallel& parallel, Quantizing* device, const float* hessian,
                 const Matrix& matrix, double damping)
    : in_(matrix.in), factors_(StlAllocator<float>(allocator)), roots_(StlAllocator<float>(allocator)) {
  const auto n = static_cast<size_t>(in_);
  check(hessian, n);
  Vector<float> rotated(hessian, hessian + n * n, StlAllocator<float>(allocator));
  const auto rotate_rows = [&] {
    parallel.run(in_, [&](int32_t row) noexcept {
      rotate(matrix.signs, std::span(rotated).subspan(static_cast<size_t>(row) * n, n));
    });
    transpose(rotated.data(), n);
  };
  rotate_rows();
  rotate_rows();

  double trace = 0.0;
  for (size_t i = 0; i < n; ++i) trace += static_cast<double>(rotated[i * n + i]);
  damping_ = damping * trace / static_cast<double>(n);
  const Vector<int32_t> order = coding_orders(allocator, matrix);
  Vector<float> upper(n * n, StlAllocator<float>(allocator));
  for (size_t i = 0; i < n; ++i) {
    const float* row = rotated.data() + static_cast<size_t>(order[i]) * n;
    for (size_t j = i; j < n; ++j) upper[i * n + j] = row[order[j]];
    upper[i * n + i] += static_cast<float>(damping_);
  }
  const bool is_definite = device != nullptr ? device->factorize(allocator, upper.data(), in_)
                                             : factorize(parallel, *cholesky_kernels().front(), upper.data(), in_);
  if (!is_definite) {
    fail(KVQ_E_ARGUMENT, "the hessian with damping %g is not positive definite", damping);
  }

  const int32_t tiles = in_ / kTileColumns;
  factors_.resize(begin_of(tiles));
  roots_.resize(static_cast<size_t>(tiles) * kColumns * kColumns);
  for (const Segment& segment : matrix.segments) {
    const int32_t first = segment.first_column / kTileColumns;
    parallel.run(segment.columns / kTileColumns,
                 [&](int32_t i) noexcept { factorize_tile(first + i, coded_together(segment.code), upper.data()); });
  }
}

/// The rows of L below a diagonal block K times K⁻¹: F K = L.
void Hessian::factorize_tile(int32_t tile, int32_t together, const float* upper) noexcept {
  const auto n = static_cast<size_t>(in_);
  const size_t first = static_cast<size_t>(tile) * kColumns;
  const auto width = static_cast<size_t>(together);
  float* factors = factors_.data() + begin_of(tile);
  float* roots = roots_.data() + static_cast<size_t>(tile) * kColumns * kColumns;
  const auto at = [&](size_t row, size_t column) { return upper[column * n + row]; };
  for (size_t begin = 0; begin < kColumns; begin += width) {
    for (size_t i = begin; i < begin + width; ++i) {
      for (size_t k = begin; k <= i; ++k) roots[i * kColumns + k] = at(first + i, first + k);
    }
    for (size_t row = first + begin + width; row < n; ++row) {
      float* out = factors + (row - first) * kColumns;
      for (size_t k = begin + width; k-- > begin;) {
        float sum = at(row, first + k);
        for (size_t i = k + 1; i < begin + width; ++i) sum -= out[i] * at(first + i, first + k);
        out[k] = sum / at(first + k, first + k);
      }
    }
  }
}

void Hessian::sum_beyond(int32_t tile, const float* numbers, TileNumbers& sums) const noexcept {
  const int32_t first = (tile + 1) * kTileColumns;
  const float* factors = factors_.data() + begin_of(tile) + kColumns * kColumns;
  constexpr size_t kTogether = 4;  // rows that share what is read of F
  for (size_t r = 0; r < kTileRows; r += kTogether) {
    std::array<std::array<float, kColumns>, kTogether> part{};
    for (int32_t j = first; j < in_; ++j) {
      const float* row = factors + static_cast<size_t>(j - first) * kColumns;
      for (size_t i = 0; i < kTogether; ++i) {
        const float number = numbers[(r + i) * static_cast<size_t>(in_) + static_cast<size_t>(j)];
        for (size_t c = 0; c < kColumns; ++c) part[i][c] += number * row[c];
      }
    }
    std::copy(part.begin(), part.end(), sums.begin() + static_cast<ptrdiff_t>(r));
  }
}

double Hessian::energy(int32_t tile, int32_t begin, int32_t count, std::span<const float> y) const noexcept {
  const float* roots = roots_.data() + static_cast<size_t>(tile) * kColumns * kColumns;
  double energy = 0.0;
  for (int32_t k = begin; k < begin + count; ++k) {
    double sum = 0.0;
    for (int32_t i = k; i < begin + count; ++i) {
      sum += static_cast<double>(y[static_cast<size_t>(i)]) *
             static_cast<double>(roots[static_cast<size_t>(i) * kColumns + static_cast<size_t>(k)]);
    }
    energy += sum * sum;
  }
  return energy;
}

}  // namespace kvq::weights
