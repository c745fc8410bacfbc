// Rotation of 32 heads at once, with the order of sums of hadamard() and rotate_head() (core/head_rotation.h).
#if defined(KVQ_APPEND_HADAMARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_APPEND_HADAMARD_INL_H
#undef KVQ_APPEND_HADAMARD_INL_H
#else
#define KVQ_APPEND_HADAMARD_INL_H
#endif

#include "backend/cpu/vectors.h"
#include "core/head_rotation.h"

#include <hwy/highway.h>

#include <bit>
#include <cmath>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Butterflies over distances from `first` to block / 2, in n / block blocks. Two distances at a time halve the memory
/// traffic.
inline void butterflies(float* x, int32_t n, int32_t first, int32_t block) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  int32_t half = first;
  for (; 2 * half < block; half *= 4) {
    for (int32_t i = 0; i < n; i += 4 * half) {
      for (int32_t j = i; j < i + half; j += lanes) {
        const auto x0 = hn::Load(d, x + j);
        const auto x1 = hn::Load(d, x + j + half);
        const auto x2 = hn::Load(d, x + j + 2 * half);
        const auto x3 = hn::Load(d, x + j + 3 * half);
        const auto sum = hn::Add(x0, x1);
        const auto difference = hn::Sub(x0, x1);
        const auto next_sum = hn::Add(x2, x3);
        const auto next_difference = hn::Sub(x2, x3);
        hn::Store(hn::Add(sum, next_sum), d, x + j);
        hn::Store(hn::Add(difference, next_difference), d, x + j + half);
        hn::Store(hn::Sub(sum, next_sum), d, x + j + 2 * half);
        hn::Store(hn::Sub(difference, next_difference), d, x + j + 3 * half);
      }
    }
  }
  if (half >= block) return;
  for (int32_t i = 0; i < n; i += 2 * half) {
    for (int32_t j = i; j < i + half; j += lanes) {
      const auto x0 = hn::Load(d, x + j);
      const auto x1 = hn::Load(d, x + j + half);
      hn::Store(hn::Add(x0, x1), d, x + j);
      hn::Store(hn::Sub(x0, x1), d, x + j + half);
    }
  }
}

/// Lane i of the result is lane i ^ kDistance.
template <int kDistance, class D>
HWY_INLINE hn::Vec<D> exchanged(D d, hn::Vec<D> x) {
  if constexpr (kDistance == 1) return hn::Reverse2(d, x);
  if constexpr (kDistance == 2) return hn::Shuffle1032(x);
  if constexpr (kDistance == 4) return hn::SwapAdjacentBlocks(x);
  return hn::ConcatLowerUpper(d, x, x);
}

/// Butterflies within one vector. A difference is a sum with the second operand's sign flipped.
template <int kDistance, class D>
HWY_INLINE hn::Vec<D> butterfly(D d, hn::Vec<D> x) {
  if constexpr (kDistance >= hn::MaxLanes(D())) {
    return x;
  } else {
    const hn::RebindToUnsigned<D> du;
    constexpr int kToSign = 31 - std::countr_zero(static_cast<unsigned>(kDistance));
    const auto second = hn::And(hn::Iota(du, 0), hn::Set(du, static_cast<uint32_t>(kDistance)));
    return hn::Add(exchanged<kDistance>(d, x), hn::Xor(x, hn::BitCast(d, hn::ShiftLeft<kToSign>(second))));
  }
}

inline void scale(float* x, int32_t n, float factor) {
  const hn::ScalableTag<float> d;
  for (int32_t i = 0; i < n; i += static_cast<int32_t>(hn::Lanes(d))) {
    hn::Store(hn::Mul(hn::Load(d, x + i), hn::Set(d, factor)), d, x + i);
  }
}

inline float hadamard_norm(int32_t block) { return 1.0F / std::sqrt(static_cast<float>(block)); }

/// x: [head_dim][slots]
inline void hadamard_columns(float* x, int32_t head_dim, int32_t slots) {
  const int32_t block = hadamard_block(head_dim);
  butterflies(x, head_dim * slots, slots, block * slots);
  scale(x, head_dim * slots, hadamard_norm(block));
}

/// x: [slots][stride], padded_dim(head_dim) of each row in use.
inline void hadamard_rows(float* x, int32_t slots, int32_t head_dim, int32_t stride) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t block = hadamard_block(head_dim);
  const int32_t width = padded_dim(head_dim);
  for (int32_t slot = 0; slot < slots; ++slot) {
    float* row = x + slot * stride;
    for (int32_t i = 0; i < width; i += lanes) {
      auto v = hn::Load(d, row + i);
      v = butterfly<1>(d, v);
      v = butterfly<2>(d, v);
      v = butterfly<4>(d, v);
      if (block > 8) v = butterfly<8>(d, v);
      hn::Store(v, d, row + i);
    }
    butterflies(row, head_dim, lanes, block);
    scale(row, width, hadamard_norm(block));
  }
}

/// Multiplies by T vectors `stride` apart that each begin at block 0; their next block is `apart` further.
template <int kVectors, class D>
inline void mix_vectors(D d, float* x, int32_t stride, int32_t blocks, int32_t apart) {
  const float* factors = kBlockFactors.numbers + first_factor(blocks);
  constexpr auto kLanes = static_cast<int32_t>(hn::MaxLanes(D()));
  HWY_ALIGN_MAX float from[kMaxBlocks][kVectors * kLanes];
  for (int32_t block = 0; block < blocks; ++block) {
    for (int32_t i = 0; i < kVectors; ++i) {
      const auto v = hn::Load(d, x + block * apart + i * stride);
      hn::Store(flips_sign(block) ? hn::Neg(v) : v, d, from[block] + i * kLanes);
    }
  }
  for (int32_t to = 0; to < blocks; ++to) {
    hn::Vec<D> sums[kVectors];
    for (int32_t i = 0; i < kVectors; ++i) sums[i] = hn::Mul(hn::Set(d, factors[0]), hn::Load(d, from[0] + i * kLanes));
    int32_t number = 0;
    for (int32_t block = 1; block < blocks; ++block) {
      number += number + to < blocks ? to : to - blocks;
      const auto factor = hn::Set(d, factors[number]);
      for (int32_t i = 0; i < kVectors; ++i) {
        sums[i] = hn::Add(sums[i], hn::Mul(factor, hn::Load(d, from[block] + i * kLanes)));
      }
    }
    for (int32_t i = 0; i < kVectors; ++i) {
      hn::Store(flips_sign(to) ? hn::Neg(sums[i]) : sums[i], d, x + to * apart + i * stride);
    }
  }
}

/// Rotates heads in place; x: [head_dim][kPageSlots]
inline void rotate_columns(float* x, int32_t head_dim) {
  hadamard_columns(x, head_dim, kPageSlots);
  const hn::ScalableTag<float> d;
  constexpr int kVectors = 2;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t block = hadamard_block(head_dim);
  if (block == head_dim) return;
  for (int32_t i = 0; i < block * kPageSlots; i += kVectors * lanes) {
    mix_vectors<kVectors>(d, x + i, lanes, head_dim / block, block * kPageSlots);
  }
}

/// Rotates heads in place; x: [kPageSlots][stride], padded_dim(head_dim) of each row in use.
inline void rotate_rows(float* x, int32_t head_dim, int32_t stride) {
  hadamard_rows(x, kPageSlots, head_dim, stride);
  const hn::CappedTag<float, 8> d;  // a block may have no more
  constexpr int kVectors = 4;
  const int32_t block = hadamard_block(head_dim);
  if (block == head_dim) return;
  for (int32_t slot = 0; slot < kPageSlots; slot += kVectors) {
    for (int32_t i = 0; i < block; i += static_cast<int32_t>(hn::Lanes(d))) {
      mix_vectors<kVectors>(d, x + slot * stride + i, stride, head_dim / block, block);
    }
  }
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
