// Rotation of a head before it is encoded in gain–shape codes or as `+hadamard` integers. Also compiled as device code.
//
// For m · 2^k channels with m odd, R = T ⊗ H: H is the orthonormal Hadamard matrix of the 2^k channels of a block, and
// T mixes the m blocks. T[i][j] = s(i) s(j) (cos 2πij/m + sin 2πij/m) / √m is the discrete Hartley transform with the
// signs s(b) = (−1)^(ones in b), which spread vectors that repeat from block to block. Both are symmetric and their own
// inverses, so R is. Without blocks to mix, T is 1.
#pragma once

#include "core/hadamard.h"
#include "core/host_device.h"
#include "core/limits.h"

#include <array>
#include <bit>
#include <cstdint>

namespace kvq {

inline constexpr int32_t kMaxBlocks = (kMaxHeadDim / 8 - 1) | 1;  // head sizes are multiples of 8

/// Index of the factors of `blocks`, which follow those of all smaller odd numbers.
KVQ_HOST_DEVICE constexpr int32_t first_factor(int32_t blocks) { return blocks / 2 * (blocks / 2); }

/// T without signs: T[i][j] is number i · j mod m from first_factor(m) on.
struct BlockFactors {
  float numbers[first_factor(kMaxBlocks + 2)];
};

constexpr BlockFactors make_block_factors() {
  constexpr double kPi = 3.14159265358979323846;
  BlockFactors factors{};
  for (int32_t blocks = 1; blocks <= kMaxBlocks; blocks += 2) {
    double root = blocks;  // Newton's method: standard functions are not constexpr
    for (int32_t i = 0; i < 20; ++i) root = (root + blocks / root) / 2.0;
    for (int32_t n = 0; n < blocks; ++n) {
      const double angle = 2.0 * kPi * (2 * n < blocks ? n : n - blocks) / blocks;
      double sum = 1.0;
      double term = 1.0;  // ±angle^i / i!, with the signs of cos + sin
      for (int32_t i = 1; i < 32; ++i) {
        term *= (i % 2 == 0 ? -angle : angle) / i;
        sum += term;
      }
      factors.numbers[first_factor(blocks) + n] = static_cast<float>(sum / root);
    }
  }
  return factors;
}

inline constexpr BlockFactors kBlockFactors = make_block_factors();

/// Whether s(block) is −1.
constexpr bool flips_sign(int32_t block) { return std::popcount(static_cast<uint32_t>(block)) % 2 != 0; }

/// Multiply by T in place; x: [blocks][block]. Backends repeat the order of these sums.
inline void mix_blocks(float* x, int32_t blocks, int32_t block) {
  const float* factors = kBlockFactors.numbers + first_factor(blocks);
  std::array<float, kMaxHeadDim> from;
  for (int32_t i = 0; i < blocks * block; ++i) from[static_cast<size_t>(i)] = flips_sign(i / block) ? -x[i] : x[i];
  for (int32_t to = 0; to < blocks; ++to, x += block) {
    for (int32_t i = 0; i < block; ++i) x[i] = factors[0] * from[static_cast<size_t>(i)];
    int32_t number = 0;
    for (int32_t j = 1; j < blocks; ++j) {
      number += number + to < blocks ? to : to - blocks;
      const float* other = from.data() + static_cast<ptrdiff_t>(j) * block;
      for (int32_t i = 0; i < block; ++i) x[i] += factors[number] * other[i];
    }
    if (!flips_sign(to)) continue;
    for (int32_t i = 0; i < block; ++i) x[i] = -x[i];
  }
}

/// Multiply one head `[head_dim]` in place by R.
inline void rotate_head(float* head, int32_t head_dim) {
  hadamard(head, head_dim);
  const int32_t block = hadamard_block(head_dim);
  if (block < head_dim) mix_blocks(head, head_dim / block, block);
}

}  // namespace kvq
