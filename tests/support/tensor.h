// Tensors in each element type of the API, and their values after rounding.
#pragma once

#include "kvq.h"
#include "support/float_formats.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

namespace kvq_test {

inline size_t dtype_size(kvq_dtype dtype) { return dtype == KVQ_F32 ? 4 : 2; }

inline FloatFormat format_of(kvq_dtype dtype) {
  if (dtype == KVQ_F16) return kHalf;
  if (dtype == KVQ_BF16) return kBrain;
  throw std::invalid_argument("not a 16-bit type");
}

// A dense tensor in the caller's memory, read through doubles.
class Tensor {
 public:
  Tensor(size_t n, kvq_dtype dtype) : dtype_(dtype), bytes_(n * dtype_size(dtype)) {}

  // Rounded to the element type.
  Tensor(std::span<const float> values, kvq_dtype dtype) : Tensor(values.size(), dtype) {
    for (size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }

  size_t size() const { return bytes_.size() / dtype_size(dtype_); }
  kvq_dtype dtype() const { return dtype_; }
  const void* data() const { return bytes_.data(); }
  void* data() { return bytes_.data(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  // Address of element i, for calls that take part of the tensor.
  const void* at(size_t i) const { return bytes_.data() + i * dtype_size(dtype_); }

  double operator[](size_t i) const {
    if (dtype_ == KVQ_F32) {
      float value;
      std::memcpy(&value, at(i), sizeof value);
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, at(i), sizeof bits);
    return decode_bits(bits, format_of(dtype_));
  }

  void set(size_t i, float value) {
    if (dtype_ == KVQ_F32) {
      std::memcpy(bytes_.data() + 4 * i, &value, sizeof value);
      return;
    }
    const uint16_t bits = encode_bits(value, format_of(dtype_));
    std::memcpy(bytes_.data() + 2 * i, &bits, sizeof bits);
  }

 private:
  kvq_dtype dtype_;
  std::vector<std::byte> bytes_;
};

}  // namespace kvq_test
