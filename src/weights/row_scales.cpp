#include "weights/row_scales.h"

#include "core/error.h"
#include "core/float16.h"
#include "core/tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace kvq::weights {
namespace {

/// Finite for finite numbers.
double root_mean_square(const void* w, kvq_dtype dtype, int32_t row, int32_t in) noexcept {
  std::array<float, kInputMultiple> part;
  const size_t first = static_cast<size_t>(row) * static_cast<size_t>(in);
  double sum = 0.0;
  for (int32_t i = 0; i < in; i += kInputMultiple) {
    read_floats(w, dtype, first + static_cast<size_t>(i), kInputMultiple, part.data());
    for (const float x : part) sum += static_cast<double>(x) * static_cast<double>(x);
  }
  return std::sqrt(sum / static_cast<double>(in));
}

void check_row(Allocator& allocator, const void* w, kvq_dtype dtype, int32_t row, int32_t in) {
  Vector<float> numbers(static_cast<size_t>(in), allocator);
  read_floats(w, dtype, static_cast<size_t>(row) * numbers.size(), in, numbers.data());
  check_finite(numbers, row, "w");
}

}  // namespace

void check_finite(std::span<const float> row, int32_t index, const char* argument) {
  const auto bad = std::find_if_not(row.begin(), row.end(), [](float x) { return std::isfinite(x); });
  if (bad == row.end()) return;
  fail(KVQ_E_ARGUMENT, "%s[%d, %td] is %g, must be finite", argument, index, bad - row.begin(),
       static_cast<double>(*bad));
}

void find_row_scales(Allocator& allocator, SteppedLoops& loops, const void* w, kvq_dtype dtype, Matrix& matrix) {
  Vector<double> scales(static_cast<size_t>(matrix.out), allocator);
  loops.run(matrix.out, row_scale_time(matrix.in), [&](int32_t row) noexcept {
    scales[static_cast<size_t>(row)] = root_mean_square(w, dtype, row, matrix.in);
  });
  for (int32_t row = 0; row < matrix.out; ++row) {
    if (!std::isfinite(scales[static_cast<size_t>(row)])) check_row(allocator, w, dtype, row, matrix.in);
  }
  const double largest = *std::max_element(scales.begin(), scales.end());
  if (largest < static_cast<double>(std::numeric_limits<float>::min())) return;  // all rows count as zeros
  matrix.scale = static_cast<float>(largest);
  for (size_t r = 0; r < scales.size(); ++r) {
    matrix.row_scales[r] = to_float16(static_cast<float>(scales[r] / largest));
  }
}

}  // namespace kvq::weights
