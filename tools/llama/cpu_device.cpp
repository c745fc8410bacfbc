#include "cpu_device.h"

#include <unistd.h>

#include "linear.h"
#include "model_math.h"
#include "weight_kernels.h"

namespace llama {
namespace {

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

  void embed(const Matrix& embedding, std::span<const int32_t> tokens, std::span<float> x) override {
    const StoredNumbers& numbers = embedding.numbers;
    const int64_t stride = embedding.columns * bytes_of(numbers.dtype);
    float* out = x.data();
    for (const int32_t token : tokens) {
      weight_kernels().front().widen(numbers.dtype, numbers.data.get() + token * stride,
                                     static_cast<size_t>(embedding.columns), out);
      out += embedding.columns;
    }
  }

  void rms_norm(std::span<const float> x, const Array& weight, float epsilon, std::span<float> y) override {
    llama::rms_norm(x, weight.all(), epsilon, y);
  }

  void swiglu(int32_t rows, std::span<float> gate, std::span<const float> up) override {
    const size_t width = gate.size() / static_cast<size_t>(rows);
    threads_.run(rows, [&](int32_t row) {
      const size_t begin = static_cast<size_t>(row) * width;
      llama::swiglu(gate.subspan(begin, width), up.subspan(begin, width));
    });
  }

  void add_gram(std::span<const float> x, int64_t in, float beta, std::span<float> sums) override {
    llama::add_gram(threads_, x, in, beta, sums);
  }

 private:
  StoredNumbers on_host(const StoredNumbers& numbers, size_t /*n*/) override { return numbers; }

  void multiply(const Linear& linear, std::span<const float> x, float beta, std::span<float> y) override {
    llama::multiply(threads_, linear, x, beta, y);
  }

  void add(std::span<const float> x, std::span<float> y) override {
    for (size_t i = 0; i < y.size(); ++i) y[i] += x[i];
  }

  ThreadPool& threads_;
};

}  // namespace

uint64_t host_memory_bytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

std::unique_ptr<Device> make_cpu_device(ThreadPool& threads) { return std::make_unique<CpuDevice>(threads); }

}  // namespace llama
