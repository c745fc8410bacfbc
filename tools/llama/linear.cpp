#include "linear.h"

#include <cblas.h>

#include <algorithm>
#include <array>

#include "weight_kernels.h"

namespace llama {
namespace {

// Output features that a thread computes at once: for the rows of a usual chunk few enough that OpenBLAS multiplies
// them without packing the weights first, for more rows enough that packing pays.
constexpr int64_t kSmallShare = 16;
constexpr int64_t kLargestShare = 64;
int64_t share_size(int64_t rows) { return rows <= 32 ? kSmallShare : kLargestShare; }

// Of those, the columns at once: more of them, and OpenBLAS packs the weights of small shares, too.
constexpr int64_t kColumnsTogether = 512;

// For one row: what the kernel multiplies at once, and bytes enough to be worth a share.
constexpr int64_t kRowsTogether = 8;
constexpr int64_t kBytesOfShare = int64_t{64} << 10;

// OpenBLAS does not divide products of a few rows, and leaves its own threads spinning. So it computes each share with
// the thread that asks for it.
void keep_blas_to_one_thread() {
  static const bool once = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(once);
}

// What a thread multiplies at once, widened: it stays in a cache.
class Panel {
 public:
  // `columns` numbers of each of `rows` rows that are `stride` bytes apart.
  const float* widen(kvq_dtype dtype, const std::byte* stored, int64_t stride, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; ++i) {
      weight_kernels().front().widen(dtype, stored + i * stride, static_cast<size_t>(columns),
                                     floats_.data() + i * columns);
    }
    return floats_.data();
  }

 private:
  alignas(64) std::array<float, static_cast<size_t>(kLargestShare* kColumnsTogether)> floats_;
};

// Calls body(first, count) for shares of so many of a matrix's rows.
template <class Body>
void share_rows(ThreadPool& threads, int64_t rows, int64_t size, const Body& body) {
  threads.run(static_cast<int32_t>((rows + size - 1) / size), [&](int32_t share) {
    const int64_t first = share * size;
    body(first, std::min(size, rows - first));
  });
}

// y = W·x + beta·y: as fast as weights can be read.
void multiply_row(ThreadPool& threads, const Matrix& weight, std::span<const float> x, float beta, std::span<float> y) {
  const StoredNumbers& numbers = weight.numbers;
  const WeightKernels& kernels = weight_kernels().front();
  const int64_t stride = weight.columns * bytes_of(numbers.dtype);
  const int64_t size = std::max(kRowsTogether, kBytesOfShare / stride / kRowsTogether * kRowsTogether);
  share_rows(threads, weight.rows, size, [&](int64_t first, int64_t count) {
    kernels.multiply(numbers.dtype, numbers.data.get() + first * stride, static_cast<size_t>(count),
                     static_cast<size_t>(weight.columns), x.data(), beta, y.data() + first);
  });
}

// y = x·Wᵀ + beta·y for several rows.
void multiply_rows(ThreadPool& threads, const Matrix& weight, std::span<const float> x, float beta,
                   std::span<float> y) {
  keep_blas_to_one_thread();
  const StoredNumbers& numbers = weight.numbers;
  const int64_t n = static_cast<int64_t>(x.size()) / weight.columns;
  const int64_t number_bytes = bytes_of(numbers.dtype);
  const int64_t stride = weight.columns * number_bytes;
  // Floats need no widening.
  const bool are_floats =
      numbers.dtype == KVQ_F32 && reinterpret_cast<uintptr_t>(numbers.data.get()) % alignof(float) == 0;
  const auto multiply = [&](int64_t first, int64_t count, int64_t column, int64_t columns) {
    thread_local Panel panel;
    const std::byte* stored = numbers.data.get() + first * stride + column * number_bytes;
    const float* weights = are_floats ? reinterpret_cast<const float*>(stored)
                                      : panel.widen(numbers.dtype, stored, stride, count, columns);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(n), static_cast<blasint>(count),
                static_cast<blasint>(columns), 1.0f, x.data() + column, static_cast<blasint>(weight.columns), weights,
                static_cast<blasint>(are_floats ? weight.columns : columns), column == 0 ? beta : 1.0f,
                y.data() + first, static_cast<blasint>(weight.rows));
  };
  share_rows(threads, weight.rows, share_size(n), [&](int64_t first, int64_t count) {
    for (int64_t column = 0; column < weight.columns; column += kColumnsTogether) {
      multiply(first, count, column, std::min(kColumnsTogether, weight.columns - column));
    }
  });
}

// Columns whose products a thread adds up at once.
constexpr int64_t kGramShare = 128;

void add_bias(std::span<const float> bias, std::span<float> y) {
  if (bias.empty()) return;
  for (size_t row = 0; row < y.size(); row += bias.size()) {
    for (size_t i = 0; i < bias.size(); ++i) y[row + i] += bias[i];
  }
}

}  // namespace

void add_gram(ThreadPool& threads, std::span<const float> x, int64_t in, float beta, std::span<float> sums) {
  keep_blas_to_one_thread();
  const auto n = static_cast<blasint>(static_cast<int64_t>(x.size()) / in);
  const int64_t shares = (in + kGramShare - 1) / kGramShare;
  threads.run(static_cast<int32_t>(shares * shares), [&](int32_t share) {
    const int64_t row = share / shares * kGramShare;
    const int64_t column = share % shares * kGramShare;
    if (column < row) return;
    const auto stride = static_cast<blasint>(in);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, static_cast<blasint>(std::min(kGramShare, in - row)),
                static_cast<blasint>(std::min(kGramShare, in - column)), n, 1.0f, x.data() + row, stride,
                x.data() + column, stride, beta, sums.data() + row * in + column, stride);
  });
}

void multiply(ThreadPool& threads, const Linear& linear, std::span<const float> x, float beta, std::span<float> y) {
  const bool one_row = static_cast<int64_t>(x.size()) == linear.weight.columns;
  (one_row ? multiply_row : multiply_rows)(threads, linear.weight, x, beta, y);
  add_bias(linear.bias.all(), y);
}

}  // namespace llama
