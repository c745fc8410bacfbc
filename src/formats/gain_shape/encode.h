// Gain–shape sides one number at a time: every backend's encoder must repeat this arithmetic and these bytes.
#pragma once

#include "formats/gain_shape/layout.h"

#include <array>
#include <cstddef>
#include <span>

namespace kvq::gain_shape {

/// Channels with products summed in sequence; sums of blocks are then added in order.
inline constexpr int32_t kSumBlock = 32;

/// Codes of a page's mean are −127 … 127.
inline constexpr float kTopMean = 127.0F;

/// Candidate factors of a step; the encoder takes the one with the best cosine between code and vector. One and two
/// bits gain nothing from more than 1.
inline constexpr std::array<float, 1> kOneFactor = {1.0F};
inline constexpr std::array<float, 3> kFactors3 = {0.85F, 1.0F, 1.15F};
inline constexpr std::array<float, 4> kFactors4 = {0.8F, 0.93F, 1.07F, 1.25F};
constexpr std::span<const float> step_factors(int32_t bits) {
  if (bits == 4) return kFactors4;
  if (bits == 3) return kFactors3;
  return kOneFactor;
}

/// Optimal uniform steps for a normal distribution with variance 1.
constexpr float step_of(int32_t bits) {
  return bits == 1 ? 1.596F : bits == 2 ? 0.9957F : bits == 3 ? 0.586F : 0.3352F;
}

/// Write the codes of a slot's rotated residual `[head_dim]` after subtracting its centre; returns its gain. The bytes
/// must be zeros.
float encode_residual(const SideLayout& layout, const float* row, int32_t slot, std::byte* out);
/// Write the gains of a page's slots, and the largest.
void put_gains(const SideLayout& layout, const std::array<float, kPageSlots>& gains, std::byte* out);

/// A number in units of a level, for the path search.
int16_t target_of(float units);

/// Levels of a slot's codes, `[head_dim]`.
void decode_levels(const SideLayout& layout, const std::byte* data, int32_t slot, float* row);
/// Factor of the levels.
float read_gain(const SideLayout& layout, const std::byte* data, int32_t slot);

}  // namespace kvq::gain_shape
