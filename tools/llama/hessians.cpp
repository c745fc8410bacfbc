#include "hessians.h"

#include <algorithm>
#include <array>

namespace llama {

Hessians::Hessians(Device& device, std::span<const LinearLayer> layers) : device_(device) {
  for (const LinearLayer& layer : layers) {
    Sum& sum = sums_[{layer.layer, layer.input}];
    if (sum.in != 0) continue;
    sum.in = layer.in;
    sum.upper = device.allocate(static_cast<size_t>(layer.in * layer.in));
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
  device_.add_gram(x, sum.in, sum.count == 0 ? 0.0f : 1.0f, sum.upper.first(sum.upper.size));
  sum.count += static_cast<int64_t>(x.size()) / sum.in;
}

std::span<const float> Hessians::of(const LinearLayer& layer) {
  constexpr size_t kBlock = 64;  // mirrored at a time: rows 4096 bytes apart share places in caches
  const Sum& sum = sums_.at({layer.layer, layer.input});
  const auto in = static_cast<size_t>(sum.in);
  const auto count = static_cast<float>(sum.count);
  const std::span<const float> upper = device_.read(sum.upper.all(), host_);
  if (mean_.size() < in * in) {
    mean_ = {};
    mean_.resize(in * in);
  }
  std::array<std::array<float, kBlock>, kBlock> mirrored{};
  for (size_t top = 0; top < in; top += kBlock) {
    const size_t bottom = std::min(in, top + kBlock);
    for (size_t left = top; left < in; left += kBlock) {
      const size_t right = std::min(in, left + kBlock);
      for (size_t row = top; row < bottom; ++row) {
        for (size_t column = std::max(row, left); column < right; ++column) {
          mirrored[column - left][row - top] = mean_[row * in + column] = upper[row * in + column] / count;
        }
      }
      for (size_t column = left; column < right; ++column) {
        const size_t rows = std::min(bottom, column) - top;
        std::copy_n(mirrored[column - left].begin(), rows, mean_.begin() + static_cast<ptrdiff_t>(column * in + top));
      }
    }
  }
  return std::span(mean_).first(in * in);
}

}  // namespace llama
