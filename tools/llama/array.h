#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kvq.hpp"

namespace llama {

/// Numbers in the memory that a Device computes on. Copies share them.
struct Array {
  std::shared_ptr<float> data;
  size_t size = 0;

  bool empty() const { return size == 0; }
  std::span<float> first(size_t n) const { return {data.get(), n}; }
  std::span<const float> all() const { return {data.get(), size}; }
};

/// Numbers as a file holds them, little-endian: in host memory, of any alignment, or in a GPU's. Copies share them.
struct StoredNumbers {
  std::shared_ptr<const std::byte> data;
  kvq_dtype dtype = KVQ_F32;  // or KVQ_F16 or KVQ_BF16
};

/// Bytes of one such number.
constexpr int64_t bytes_of(kvq_dtype dtype) { return dtype == KVQ_F32 ? 4 : 2; }

/// Floats as such numbers.
inline StoredNumbers numbers_of(const Array& floats) {
  return {{floats.data, reinterpret_cast<const std::byte*>(floats.data.get())}, KVQ_F32};
}

/// A weight matrix, `[rows, columns]`, in the memory of the device that multiplies with it: on the CPU the checkpoint's
/// file.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  StoredNumbers numbers;
};

/// A linear layer: weights as numbers, or written in few bits by the library.
struct Linear {
  Matrix weight;                                        // [out, in]; without numbers if packed
  Array bias;                                           // [out], or empty, as it is if packed
  std::shared_ptr<const kvq::Matrix> packed = nullptr;  // weights and bias
};

}  // namespace llama
