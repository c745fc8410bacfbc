#include "cpu_device.h"

#include <cblas.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "system.h"
#include "weight_kernels.h"

namespace llama {
namespace {

// Sums run in this many lanes so that the compiler may vectorise them without reordering.
constexpr size_t kLanes = 16;

template <class Term>
float sum_of(size_t n, Term term) {
  std::array<float, kLanes> lanes{};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  float sum = 0.0f;
  for (; i < n; ++i) sum += term(i);
  for (const float lane : lanes) sum += lane;
  return sum;
}

float maximum(std::span<const float> x) {
  std::array<float, kLanes> lanes;
  lanes.fill(x[0]);
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = lanes[lane] < x[i + lane] ? x[i + lane] : lanes[lane];
  }
  float result = *std::max_element(lanes.begin(), lanes.end());
  for (; i < x.size(); ++i) result = std::max(result, x[i]);
  return result;
}

// e^x to about 2e-7, saturating outside ±87; unlike std::exp it vectorises. e^x = 2^n · e^r with |r| ≤ ln2 / 2.
inline float exponential(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it leaves the nearest integer in the low mantissa bits
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  x = x < -87.0f ? -87.0f : x;
  x = x > 87.0f ? 87.0f : x;
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound) + 127u;
  return p * std::bit_cast<float>(exponent << 23);
}

// Output features that a thread computes at once: for the rows of a usual chunk few enough that OpenBLAS multiplies
// them without packing the weights first, for more rows enough that packing pays.
constexpr int64_t kSmallShare = 16;
constexpr int64_t kLargestShare = 64;
int64_t share_size(int64_t rows) { return rows <= 32 ? kSmallShare : kLargestShare; }

// Columns of a panel: with more of them OpenBLAS packs the weights of small shares, too.
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

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(ThreadPool& threads) : threads_(threads) {}
  kvq_device kind() const override { return KVQ_DEVICE_CPU; }
  uint64_t memory_bytes() const override { return host_memory_bytes(); }
  Array allocate(size_t n) override { return upload(std::vector<float>(n)); }

  Array upload(std::vector<float> numbers) override {
    const auto owner = std::make_shared<std::vector<float>>(std::move(numbers));
    return {std::shared_ptr<float>(owner, owner->data()), owner->size()};
  }

  StoredNumbers place(const StoredNumbers& numbers, size_t /*n*/) override { return numbers; }
  std::span<const float> read(std::span<const float> numbers, Array& /*host*/) override { return numbers; }

  void embed(const Matrix& embedding, std::span<const int32_t> tokens, float scale, std::span<float> x) override {
    const StoredNumbers& numbers = embedding.numbers;
    const int64_t stride = embedding.columns * bytes_of(numbers.dtype);
    float* out = x.data();
    for (const int32_t token : tokens) {
      weight_kernels().front().widen(numbers.dtype, numbers.data.get() + token * stride,
                                     static_cast<size_t>(embedding.columns), out);
      for (int64_t i = 0; i < embedding.columns; ++i) out[i] *= scale;
      out += embedding.columns;
    }
  }

  void rms_norm(std::span<const float> x, const Array& weight, float epsilon, std::span<float> y) override {
    llama::rms_norm(x, weight.all(), epsilon, y);
  }

  void gate(Activation activation, int32_t rows, std::span<float> gate, std::span<const float> up) override {
    const auto apply = activation == Activation::kSilu ? swiglu : geglu;
    const size_t width = gate.size() / static_cast<size_t>(rows);
    threads_.run(rows, [&](int32_t row) {
      const size_t begin = static_cast<size_t>(row) * width;
      apply(gate.subspan(begin, width), up.subspan(begin, width));
    });
  }

  void add(std::span<const float> x, std::span<float> y) override {
    for (size_t i = 0; i < y.size(); ++i) y[i] += x[i];
  }

  void softcap(float cap, std::span<float> x) override {
    for (float& each : x) each = cap * std::tanh(each / cap);
  }

  void add_gram(std::span<const float> x, int64_t in, float beta, std::span<float> sums) override {
    llama::add_gram(threads_, x, in, beta, sums);
  }

 private:
  StoredNumbers on_host(const StoredNumbers& numbers, size_t /*n*/) override { return numbers; }

  void multiply(const Linear& linear, std::span<const float> x, float beta, std::span<float> y) override {
    llama::multiply(threads_, linear, x, beta, y);
  }

  ThreadPool& threads_;
};

}  // namespace

void rms_norm(std::span<const float> x, std::span<const float> weight, float epsilon, std::span<float> y) {
  const size_t width = weight.size();
  for (size_t begin = 0; begin < x.size(); begin += width) {
    const float* row = x.data() + begin;
    float* out = y.data() + begin;
    const float mean_square = sum_of(width, [row](size_t i) { return row[i] * row[i]; }) / static_cast<float>(width);
    const float factor = 1.0f / std::sqrt(mean_square + epsilon);
    for (size_t i = 0; i < width; ++i) out[i] = row[i] * factor * weight[i];
  }
}

void swiglu(std::span<float> gate, std::span<const float> up) {
  float* g = gate.data();
  const float* u = up.data();
  const size_t n = gate.size();
  for (size_t i = 0; i < n; ++i) g[i] = g[i] / (1.0f + exponential(-g[i])) * u[i];
}

void geglu(std::span<float> gate, std::span<const float> up) {
  constexpr float kFactor = 1.5957691216f;  // 2·sqrt(2/π): (1 + tanh(y)) / 2 = 1 / (1 + e^(−2y))
  constexpr float kCubic = 0.044715f;
  float* g = gate.data();
  const float* u = up.data();
  const size_t n = gate.size();
  for (size_t i = 0; i < n; ++i) {
    g[i] = g[i] / (1.0f + exponential(-kFactor * (g[i] + kCubic * g[i] * g[i] * g[i]))) * u[i];
  }
}

double negative_log_likelihood(std::span<const float> logits, int32_t token) {
  const float top = maximum(logits);
  const float* x = logits.data();
  const float sum = sum_of(logits.size(), [x, top](size_t i) { return exponential(x[i] - top); });
  return std::log(static_cast<double>(sum)) + top - logits[static_cast<size_t>(token)];
}

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

std::unique_ptr<Device> make_cpu_device(ThreadPool& threads) { return std::make_unique<CpuDevice>(threads); }

}  // namespace llama
