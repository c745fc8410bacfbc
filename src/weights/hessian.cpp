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

/// Rows per task, so that columns share their reads.
constexpr size_t kRows = 32;
constexpr int32_t tasks_for(size_t n) { return static_cast<int32_t>((n + kRows - 1) / kRows); }

// Times per row of n numbers.
double check_time(size_t n) { return 4.0 * static_cast<double>(n); }
double transpose_time(size_t n) { return 2.0 * static_cast<double>(n); }
double rotate_time(size_t n) { return 6.0 * static_cast<double>(n); }
double order_time(size_t n) { return 2.0 * static_cast<double>(n); }
/// Time of a tile.
double tile_time(size_t n) { return 70.0 * static_cast<double>(n); }

void check(Allocator& allocator, SteppedLoops& loops, const float* hessian, size_t n) {
  const auto at = [&](size_t i, size_t j) { return static_cast<double>(hessian[i * n + j]); };
  double largest = 0.0;
  for (size_t i = 0; i < n; ++i) {
    if (!(at(i, i) >= 0.0 && at(i, i) <= 1e30)) {
      fail(KVQ_E_ARGUMENT, "hessian[%zu, %zu] is %g, must be finite and not negative", i, i, at(i, i));
    }
    largest = std::max(largest, at(i, i));
  }
  if (largest == 0.0) fail(KVQ_E_ARGUMENT, "the diagonal of the hessian is 0 everywhere");
  const auto is_symmetric = [&](size_t i, size_t j) {
    return std::abs(at(i, j) - at(j, i)) <= kSymmetry * std::sqrt(at(i, i) * at(j, j)) + 1e-9 * largest;
  };
  Vector<size_t> bad(n, n, allocator);  // the first column of each row
  loops.run(tasks_for(n), kRows * check_time(n), [&](int32_t task) noexcept {
    const size_t first = static_cast<size_t>(task) * kRows;
    for (size_t j = 0; j < first + kRows; ++j) {
      for (size_t i = std::max(first, j + 1); i < std::min(n, first + kRows); ++i) {
        if (bad[i] == n && !is_symmetric(i, j)) bad[i] = j;
      }
    }
  });
  for (size_t i = 0; i < n; ++i) {
    if (bad[i] == n) continue;
    fail(KVQ_E_ARGUMENT, "hessian[%zu, %zu] is %g, hessian[%zu, %zu] is %g: it must be finite and symmetric", i, bad[i],
         at(i, bad[i]), bad[i], i, at(bad[i], i));
  }
}

void transpose(SteppedLoops& loops, float* matrix, size_t n) {
  loops.run(tasks_for(n), kRows * transpose_time(n), [&](int32_t task) noexcept {
    const size_t i = static_cast<size_t>(task) * kRows;
    for (size_t j = 0; j <= i; j += kRows) {
      for (size_t r = i; r < std::min(n, i + kRows); ++r) {
        for (size_t c = j; c < std::min(r, j + kRows); ++c) std::swap(matrix[r * n + c], matrix[c * n + r]);
      }
    }
  });
}

/// Columns of the matrix in coding order.
Vector<int32_t> coding_orders(Allocator& allocator, const Matrix& matrix) {
  Vector<int32_t> columns(allocator);
  for (const Segment& segment : matrix.segments) {
    for (int32_t i = 0; i < segment.columns; ++i) {
      columns.push_back(segment.first_column + i / kTileColumns * kTileColumns +
                        coding_order(segment.code, i % kTileColumns));
    }
  }
  return columns;
}

}  // namespace

double Hessian::time(int32_t in) {
  const auto n = static_cast<size_t>(in);
  const double of_rows = check_time(n) + 2 * (rotate_time(n) + transpose_time(n)) + order_time(n);
  const int32_t tiles = in / kTileColumns;
  return of_rows * in + factor_time(in) + tile_time(n) * tiles;
}

Hessian::Hessian(Allocator& allocator, SteppedLoops& loops, Quantizing* device, const float* hessian,
                 const Matrix& matrix, double damping)
    : in_(matrix.in), factors_(allocator), roots_(allocator) {
  const auto n = static_cast<size_t>(in_);
  check(allocator, loops, hessian, n);
  Unwritten<float> rotated(allocator, size(n, n));
  const auto rotate_rows = [&](const float* from) {
    loops.run(in_, rotate_time(n), [&](int32_t row) noexcept {
      const size_t begin = static_cast<size_t>(row) * n;
      float* to = rotated.data() + begin;
      if (from != rotated.data()) std::copy_n(from + begin, n, to);
      rotate(matrix.signs, {to, n});
    });
    transpose(loops, rotated.data(), n);
  };
  rotate_rows(hessian);
  rotate_rows(rotated.data());

  double trace = 0.0;
  for (size_t i = 0; i < n; ++i) trace += static_cast<double>(rotated[i * n + i]);
  damping_ = damping * trace / static_cast<double>(n);
  const Vector<int32_t> order = coding_orders(allocator, matrix);
  Unwritten<float> upper(allocator, size(n, n));
  loops.run(in_, order_time(n), [&](int32_t row) noexcept {
    const auto i = static_cast<size_t>(row);
    const float* from = rotated.data() + static_cast<size_t>(order[i]) * n;
    std::fill_n(upper.data() + i * n, i, 0.0F);
    for (size_t j = i; j < n; ++j) upper[i * n + j] = from[order[j]];
    upper[i * n + i] += static_cast<float>(damping_);
  });
  const bool is_definite = device != nullptr ? device->factorize(allocator, upper.data(), in_)
                                             : factorize(loops, *cholesky_kernels().front(), upper.data(), in_);
  if (device != nullptr) loops.done(factor_time(in_));
  if (!is_definite) {
    fail(KVQ_E_ARGUMENT, "the hessian with damping %g is not positive definite", damping);
  }

  const int32_t tiles = in_ / kTileColumns;
  factors_.reset(begin_of(tiles));
  roots_.resize(size(tiles, kColumns, kColumns));
  for (const Segment& segment : matrix.segments) {
    const int32_t first = segment.first_column / kTileColumns;
    loops.run(segment.columns / kTileColumns, tile_time(n),
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
  std::fill_n(factors, kColumns * kColumns, 0.0F);
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
  constexpr size_t kTogether = 4;  // rows that share reads of F
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
