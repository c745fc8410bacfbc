#include "cpu_device.h"

#include <algorithm>

#include "linear.h"
#include "model_math.h"
#include "packed_linear.h"

namespace llama {
namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(ThreadPool& threads) : threads_(threads) {}

  kvq_device kind() const override { return KVQ_DEVICE_CPU; }

  Array allocate(size_t n) override { return upload(std::vector<float>(n)); }

  Array upload(std::vector<float> numbers) override {
    const auto owner = std::make_shared<std::vector<float>>(std::move(numbers));
    return {std::shared_ptr<float>(owner, owner->data()), owner->size()};
  }

  std::span<const float> read(std::span<const float> numbers, Array& /*host*/) override { return numbers; }

  void embed(const Matrix& embedding, std::span<const int32_t> tokens, std::span<float> x) override {
    const auto width = static_cast<size_t>(embedding.columns);
    float* out = x.data();
    for (const int32_t token : tokens) {
      out = std::copy_n(embedding.values.data.get() + static_cast<size_t>(token) * width, width, out);
    }
  }

  void rms_norm(std::span<const float> x, const Array& weight, float epsilon, std::span<float> y) override {
    llama::rms_norm(x, weight.all(), epsilon, y);
  }

  void apply(const Linear& linear, std::span<const float> x, std::span<float> y) override {
    const Product only{&linear, y};
    apply_shared({&only, 1}, x);
  }

  void apply_shared(std::span<const Product> products, std::span<const float> x) override {
    packed_.clear();
    for (const Product& product : products) {
      if (product.linear->packed) {
        packed_.push_back(product);
      } else {
        llama::apply(threads_, *product.linear, x, product.y);
      }
    }
    if (!packed_.empty()) apply_packed(packed_, x);
  }

  void apply_and_add(const Linear& linear, std::span<const float> x, std::span<float> y) override {
    if (!linear.packed) return llama::apply_and_add(threads_, linear, x, y);
    if (product_.size() < y.size()) product_.resize(y.size());
    apply(linear, x, std::span(product_).first(y.size()));
    for (size_t i = 0; i < y.size(); ++i) y[i] += product_[i];
  }

  void swiglu(int32_t rows, std::span<float> gate, std::span<const float> up) override {
    const size_t width = gate.size() / static_cast<size_t>(rows);
    threads_.run(rows, [&](int32_t row) {
      const size_t begin = static_cast<size_t>(row) * width;
      llama::swiglu(gate.subspan(begin, width), up.subspan(begin, width));
    });
  }

 private:
  ThreadPool& threads_;
  std::vector<Product> packed_;  // of the call under way
  std::vector<float> product_;   // what is about to be added
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(ThreadPool& threads) { return std::make_unique<CpuDevice>(threads); }

}  // namespace llama
