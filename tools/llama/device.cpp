// Linear layers of every device. Packed ones are the library's, which multiplies where the device's tensors lie.
#include "device.h"

#include <algorithm>

#include "weight_kernels.h"

namespace llama {
namespace {

void apply_packed(std::span<const Product> products, std::span<const float> x) {
  std::vector<const qp_matrix*> matrices;
  std::vector<void*> outputs;
  for (const Product& product : products) {
    matrices.push_back(*product.linear->packed);
    outputs.push_back(product.y.data());
  }
  const auto n = static_cast<int32_t>(static_cast<int64_t>(x.size()) / products.front().linear->weight.columns);
  kvq::Matrix::linear_shared(matrices, x.data(), n, outputs, KVQ_F32);
}

}  // namespace

std::vector<float> Device::read(const Matrix& matrix) {
  std::vector<float> numbers(static_cast<size_t>(matrix.rows * matrix.columns));
  const StoredNumbers stored = on_host(matrix.numbers, numbers.size());
  weight_kernels().front().widen(stored.dtype, stored.data.get(), numbers.size(), numbers.data());
  return numbers;
}

void Device::apply(const Linear& linear, std::span<const float> x, std::span<float> y) {
  const Product only{&linear, y};
  apply_shared({&only, 1}, x);
}

void Device::apply_shared(std::span<const Product> products, std::span<const float> x) {
  packed_.clear();
  for (const Product& product : products) {
    if (product.linear->packed) {
      packed_.push_back(product);
    } else {
      multiply(*product.linear, x, 0.0f, product.y);
    }
  }
  if (!packed_.empty()) apply_packed(packed_, x);
}

void Device::apply_and_add(const Linear& linear, std::span<const float> x, std::span<float> y) {
  if (!linear.packed) return multiply(linear, x, 1.0f, y);
  if (product_.size < y.size()) {
    product_ = {};  // there may not be room for both
    product_ = allocate(y.size());
  }
  apply(linear, x, product_.first(y.size()));
  add(product_.first(y.size()), y);
}

}  // namespace llama
