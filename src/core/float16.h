#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace kvq {

/// Largest finite FP16 number.
inline constexpr float kMaxFloat16 = 65504.0F;

/// Round to the nearest FP16 number, ties to even. Magnitudes that would round beyond 65504 become infinite, NaN stays
/// NaN.
constexpr uint16_t to_float16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16U) & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<uint16_t>(sign | 0x7C00U);
  if (magnitude < 0x38800000U) {
    // Below the smallest normal FP16 number: adding 0.5 aligns the mantissa so that the FPU rounds at the subnormal
    // step.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3F000000U));
  }
  const uint32_t odd = (magnitude >> 13U) & 1U;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + odd) >> 13U));
}

/// The same, but finite numbers stay finite: those beyond ±65504 become ±65504.
constexpr uint16_t to_finite_float16(float value) { return to_float16(std::clamp(value, -kMaxFloat16, kMaxFloat16)); }

constexpr float from_float16(uint16_t half) {
  const uint32_t sign = (half & 0x8000U) << 16U;
  const uint32_t exponent = (half >> 10U) & 0x1FU;
  const uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13U));
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
}

constexpr float from_bfloat16(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16U); }

/// Round to the nearest bfloat16, ties to even.
constexpr uint16_t to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16U) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

constexpr bool is_finite_float16(uint16_t half) { return (half & 0x7C00U) != 0x7C00U; }
/// Finite and without a sign.
constexpr bool is_scale(uint16_t half) { return half < 0x7C00U; }

}  // namespace kvq
