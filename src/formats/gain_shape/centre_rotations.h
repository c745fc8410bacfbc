// Rotation of key centres, which are trained before RoPE, to the positions of keys.
#pragma once

#include "core/limits.h"
#include "core/rope.h"

#include <array>
#include <cmath>
#include <span>

namespace kvq::centred {

/// Pairs that rotate by more than a radian within a page are rotated by slot; the others by the page's middle, and
/// multiplied by the mean cosine of the remaining angles.
inline bool rotates_fast(const Rope& rope, int32_t pair) {
  return std::abs(rope.inv_freq[static_cast<size_t>(pair)]) * static_cast<float>(kPageSlots) > 1.0F;
}

/// Factor on the centres of a slow pair; 1 for a fast one.
inline double factor_of(const Rope& rope, int32_t pair) {
  if (rotates_fast(rope, pair)) return 1.0;
  double sum = 0.0;
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    sum += std::cos((slot - 0.5 * (kPageSlots - 1)) * static_cast<double>(rope.inv_freq[static_cast<size_t>(pair)]));
  }
  return sum / kPageSlots;
}

/// Row of the rotation for a slot of a page of consecutive positions from `first`, times factor_of(), as in a Rope
/// table: cosines of all pairs, then sines.
inline void fill_page_rotation(const Rope& rope, int32_t first, int32_t slot, float* row) {
  for (int32_t pair = 0; pair < rope.pairs(); ++pair) {
    const double within = rotates_fast(rope, pair) ? slot : 0.5 * (kPageSlots - 1);
    const double angle = (first + within) * static_cast<double>(rope.inv_freq[static_cast<size_t>(pair)]);
    const double factor = factor_of(rope, pair);
    row[pair] = static_cast<float>(factor * std::cos(angle));
    row[rope.pairs() + pair] = static_cast<float>(factor * std::sin(angle));
  }
}

/// out = product of two rotations.
inline void multiply_rotations(int32_t pairs, const float* a, const float* b, float* out) {
  for (int32_t pair = 0; pair < pairs; ++pair) {
    const float c = a[pair] * b[pair] - a[pairs + pair] * b[pairs + pair];
    const float s = a[pair] * b[pairs + pair] + a[pairs + pair] * b[pair];
    out[pair] = c;
    out[pairs + pair] = s;
  }
}

}  // namespace kvq::centred
