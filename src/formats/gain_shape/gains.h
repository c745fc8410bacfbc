// Gains in eight bits. Also compiled as device code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvq::gain_shape {

/// Steps per octave: doubling them gains nothing measurable, halving them loses a quarter more at four bits.
inline constexpr int32_t kGainSteps = 32;
inline constexpr int32_t kTopGain = 255;

namespace gains_internal {
// 2^(i/64) for i = 0 … 63, identical wherever it is compiled.
constexpr std::array<double, 64> make_roots() {
  constexpr double kRoot = 1.0108892860517004600204097905618605;  // 2^(1/64)
  std::array<double, 64> roots{};
  double power = 1.0;
  for (double& each : roots) {
    each = power;
    power *= kRoot;
  }
  return roots;
}
inline constexpr std::array<double, 64> kRoots = make_roots();

constexpr std::array<float, kGainSteps> make_thresholds() {
  std::array<float, kGainSteps> thresholds{};
  for (size_t i = 0; i < thresholds.size(); ++i) thresholds[i] = static_cast<float>(kRoots[2 * i + 1]);
  return thresholds;
}
}  // namespace gains_internal

/// Least mantissas that are nearer to the next step: 2^((i + 1/2)/32).
inline constexpr std::array<float, kGainSteps> kGainThresholds = gains_internal::make_thresholds();

/// Gain code over the largest gain of the page: 2^((code − 255)/32), and 0 for code 0.
extern const std::array<float, kTopGain + 1> kGainFactors;

/// Nearest code, in logarithms; gains below all codes get code 0. largest > 0.
uint8_t gain_code(float gain, float largest);

}  // namespace kvq::gain_shape
