#include "hessians.h"

#include <cblas.h>

namespace llama {

Hessians::Hessians(std::span<const LinearLayer> layers) {
  for (const LinearLayer& layer : layers) {
    Sum& sum = sums_[{layer.layer, layer.input}];
    sum.in = layer.in;
    sum.upper.resize(static_cast<size_t>(layer.in * layer.in));
  }
}

uint64_t Hessians::bytes(std::span<const LinearLayer> layers) {
  std::map<Key, uint64_t> sizes;
  for (const LinearLayer& layer : layers) {
    sizes[{layer.layer, layer.input}] = static_cast<uint64_t>(layer.in * layer.in) * sizeof(float);
  }
  uint64_t total = 0;
  for (const auto& size : sizes) total += size.second;
  return total;
}

void Hessians::add(int32_t layer, LinearInput which, std::span<const float> x) {
  const auto found = sums_.find({layer, which});
  if (found == sums_.end()) return;
  Sum& sum = found->second;
  const int64_t n = static_cast<int64_t>(x.size()) / sum.in;
  const auto in = static_cast<blasint>(sum.in);
  cblas_ssyrk(CblasRowMajor, CblasUpper, CblasTrans, in, static_cast<blasint>(n), 1.0f, x.data(), in, 1.0f,
              sum.upper.data(), in);
  sum.count += n;
}

std::vector<float> Hessians::of(const LinearLayer& layer) const {
  const Sum& sum = sums_.at({layer.layer, layer.input});
  const auto in = static_cast<size_t>(sum.in);
  const auto count = static_cast<float>(sum.count);
  std::vector<float> mean(in * in);
  for (size_t row = 0; row < in; ++row) {
    for (size_t column = row; column < in; ++column) {
      mean[row * in + column] = mean[column * in + row] = sum.upper[row * in + column] / count;
    }
  }
  return mean;
}

}  // namespace llama
