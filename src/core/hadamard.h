#pragma once

#include "core/host_device.h"

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvq {

/// Largest power of two that divides a row's length: width of a block.
KVQ_HOST_DEVICE constexpr int32_t hadamard_block(int32_t n) { return n & -n; }

/// Multiply each block of a row `[n]` in place by the orthonormal Hadamard matrix, which is its own inverse.
inline void hadamard(float* row, int32_t n) {
  const int32_t block = hadamard_block(n);
  const float norm = 1.0F / std::sqrt(static_cast<float>(block));
  for (int32_t begin = 0; begin < n; begin += block) {
    float* x = row + begin;
    for (int32_t half = 1; half < block; half *= 2) {
      for (int32_t i = 0; i < block; i += 2 * half) {
        for (int32_t j = i; j < i + half; ++j) {
          const float sum = x[j] + x[j + half];
          x[j + half] = x[j] - x[j + half];
          x[j] = sum;
        }
      }
    }
    for (int32_t i = 0; i < block; ++i) x[i] *= norm;
  }
}

}  // namespace kvq
