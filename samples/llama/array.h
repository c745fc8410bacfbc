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

/// A weight matrix of a checkpoint, `values[rows, columns]`, widened to float.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  Array values;
};

/// A linear layer: weights as numbers, or written in few bits by the library.
struct Linear {
  Matrix weight;                                        // [out, in]; without values if packed
  Array bias;                                           // [out], or empty, as it is if packed
  std::shared_ptr<const kvq::Matrix> packed = nullptr;  // weights and bias
};

}  // namespace llama
