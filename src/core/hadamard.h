#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvq {

/// Width of the rotation: the largest power of two that divides the head size.
constexpr int32_t hadamard_block(int32_t head_dim) { return head_dim & -head_dim; }

/// Multiply one head `[head_dim]` in place by the orthonormal block Hadamard matrix, which is its own inverse.
inline void hadamard(float* head, int32_t head_dim) {
  const int32_t block = hadamard_block(head_dim);
  const float norm = 1.0F / std::sqrt(static_cast<float>(block));
  for (int32_t begin = 0; begin < head_dim; begin += block) {
    float* x = head + begin;
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
