#include "linear.h"

#include <cblas.h>

#include <algorithm>

namespace llama {
namespace {

// Output features that a thread computes at once: for the rows of a usual chunk few enough that OpenBLAS multiplies
// them without packing the weights first, for more rows enough that packing pays.
int64_t share_size(int64_t rows) { return rows <= 32 ? 16 : 64; }

// OpenBLAS does not divide products of a few rows, and leaves its own threads spinning. So it computes each share with
// the thread that asks for it.
void keep_blas_to_one_thread() {
  static const bool once = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(once);
}

// y = x·Wᵀ + beta·y
void multiply_by_weight(ThreadPool& threads, const Matrix& weight, std::span<const float> x, float beta,
                        std::span<float> y) {
  keep_blas_to_one_thread();
  const int64_t n = static_cast<int64_t>(x.size()) / weight.columns;
  const int64_t size = share_size(n);
  const int64_t shares = (weight.rows + size - 1) / size;
  threads.run(static_cast<int32_t>(shares), [&](int32_t share) {
    const int64_t begin = share * size;
    const int64_t count = std::min(size, weight.rows - begin);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(n), static_cast<blasint>(count),
                static_cast<blasint>(weight.columns), 1.0f, x.data(), static_cast<blasint>(weight.columns),
                weight.values.data.get() + begin * weight.columns, static_cast<blasint>(weight.columns), beta,
                y.data() + begin, static_cast<blasint>(weight.rows));
  });
}

void add_bias(std::span<const float> bias, std::span<float> y) {
  if (bias.empty()) return;
  for (size_t row = 0; row < y.size(); row += bias.size()) {
    for (size_t i = 0; i < bias.size(); ++i) y[row + i] += bias[i];
  }
}

}  // namespace

void multiply(ThreadPool& threads, const Linear& linear, std::span<const float> x, float beta, std::span<float> y) {
  multiply_by_weight(threads, linear.weight, x, beta, y);
  add_bias(linear.bias.all(), y);
}

}  // namespace llama
