#include "formats/gain_shape/gains.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvq::gain_shape {
namespace {

constexpr std::array<float, kTopGain + 1> make_factors() {
  std::array<float, kTopGain + 1> factors{};
  for (int32_t code = 1; code <= kTopGain; ++code) {
    double factor = 1.0;
    int32_t below = kTopGain - code;
    for (; below % kGainSteps != 0; ++below) factor *= gains_internal::kRoots[2];
    for (; below > 0; below -= kGainSteps) factor /= 2.0;
    factors[static_cast<size_t>(code)] = static_cast<float>(factor);
  }
  return factors;
}

}  // namespace

constexpr std::array<float, kTopGain + 1> kGainFactors = make_factors();

uint8_t gain_code(float gain, float largest) {
  const auto bits = std::bit_cast<uint32_t>(gain / largest);
  const int32_t exponent = static_cast<int32_t>(bits >> 23U) - 127;
  const float mantissa = std::bit_cast<float>((bits & 0x7FFFFFU) | 0x3F800000U);
  const auto step =
      std::upper_bound(kGainThresholds.begin(), kGainThresholds.end(), mantissa) - kGainThresholds.begin();
  return static_cast<uint8_t>(std::clamp(kTopGain + kGainSteps * exponent + static_cast<int32_t>(step), 0, kTopGain));
}

}  // namespace kvq::gain_shape
