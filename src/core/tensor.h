#pragma once

#include "core/float16.h"
#include "core/head_strides.h"
#include "kvq.h"

#include <concepts>
#include <cstddef>
#include <cstring>

namespace kvq {

constexpr bool is_dtype(kvq_dtype dtype) { return dtype == KVQ_F32 || dtype == KVQ_F16 || dtype == KVQ_BF16; }
constexpr size_t dtype_bytes(kvq_dtype dtype) { return dtype == KVQ_F32 ? 4 : 2; }

/// Read n elements of a caller's tensor, starting at element `offset`, as floats. Tensors need no alignment.
inline void read_floats(const void* tensor, kvq_dtype dtype, size_t offset, std::integral auto n, float* out) {
  const auto count = static_cast<size_t>(n);
  const char* source = static_cast<const char*>(tensor) + offset * dtype_bytes(dtype);
  if (dtype == KVQ_F32) {
    std::memcpy(out, source, count * sizeof(float));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, source + 2 * i, 2);
    out[i] = dtype == KVQ_F16 ? from_float16(bits) : from_bfloat16(bits);
  }
}

/// Write n floats to a caller's tensor, starting at element `offset`.
inline void write_floats(const float* values, std::integral auto n, void* tensor, kvq_dtype dtype, size_t offset) {
  const auto count = static_cast<size_t>(n);
  char* target = static_cast<char*>(tensor) + offset * dtype_bytes(dtype);
  if (dtype == KVQ_F32) {
    std::memcpy(target, values, count * sizeof(float));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    const uint16_t bits = dtype == KVQ_F16 ? to_float16(values[i]) : to_bfloat16(values[i]);
    std::memcpy(target + 2 * i, &bits, 2);
  }
}

}  // namespace kvq
