// Gains in eight bits.
#pragma once

#include <array>
#include <cstdint>

namespace kvq::gain_shape {

/// Steps of an octave: twice as many lose nothing that can be measured less, half as many a quarter more at four bits.
inline constexpr int32_t kGainSteps = 32;
inline constexpr int32_t kTopGain = 255;

/// Gain code over the largest gain of the page: 2^((code − 255)/32), and 0 for code 0.
extern const std::array<float, kTopGain + 1> kGainFactors;

/// Mantissas from which on the next step is nearer: 2^((i + 1/2)/32).
extern const std::array<float, kGainSteps> kGainThresholds;

/// The nearest code, in logarithms; what is smaller than all has code 0. largest > 0.
uint8_t gain_code(float gain, float largest);

}  // namespace kvq::gain_shape
