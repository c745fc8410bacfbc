// Gain–shape sides one number at a time: the arithmetic and the bytes that every backend's encoder must repeat.
#pragma once

#include "formats/gain_shape/layout.h"

#include <array>
#include <cstddef>
#include <span>

namespace kvq::gain_shape {

/// Channels whose products are summed up one after the other; sums of these are then added in order.
inline constexpr int32_t kSumBlock = 32;

/// Codes of a page's mean are −127 … 127.
inline constexpr float kTopMean = 127.0F;

/// Factors of a step among which the one is taken that makes code and vector point the same way; of one and two bits
/// none but 1 gains anything.
inline constexpr std::array<float, 1> kOneFactor = {1.0F};
inline constexpr std::array<float, 3> kFactors3 = {0.85F, 1.0F, 1.15F};
inline constexpr std::array<float, 4> kFactors4 = {0.8F, 0.93F, 1.07F, 1.25F};
constexpr std::span<const float> step_factors(int32_t bits) {
  if (bits == 4) return kFactors4;
  if (bits == 3) return kFactors3;
  return kOneFactor;
}

/// The best uniform steps of a normal distribution with variance 1.
constexpr float step_of(int32_t bits) {
  return bits == 1 ? 1.596F : bits == 2 ? 0.9957F : bits == 3 ? 0.586F : 0.3352F;
}

/// Write the codes of what is left of a slot's vector after its centre, rotated, `[head_dim]`; returns its gain. The
/// bytes must be zeros.
float encode_residual(const SideLayout& layout, const float* row, int32_t slot, std::byte* out);
/// Write the gains of a page's slots, and the largest.
void put_gains(const SideLayout& layout, const std::array<float, kPageSlots>& gains, std::byte* out);

/// A number in units of a level, as the search for a path takes it.
int16_t target_of(float units);

/// Levels of a slot's codes, `[head_dim]`.
void decode_levels(const SideLayout& layout, const std::byte* data, int32_t slot, float* row);
/// What they are multiplied by.
float read_gain(const SideLayout& layout, const std::byte* data, int32_t slot);

}  // namespace kvq::gain_shape
