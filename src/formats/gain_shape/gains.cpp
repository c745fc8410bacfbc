#include "formats/gain_shape/gains.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvq::gain_shape {
namespace {

// 2^(i/64) for i = 0 … 63, to be the same wherever it is compiled.
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
constexpr std::array<double, 64> kRoots = make_roots();

constexpr std::array<float, kTopGain + 1> make_factors() {
  std::array<float, kTopGain + 1> factors{};
  for (int32_t code = 1; code <= kTopGain; ++code) {
    double factor = 1.0;
    int32_t below = kTopGain - code;
    for (; below % kGainSteps != 0; ++below) factor *= kRoots[2];
    for (; below > 0; below -= kGainSteps) factor /= 2.0;
    factors[static_cast<size_t>(code)] = static_cast<float>(factor);
  }
  return factors;
}

constexpr std::array<float, kGainSteps> make_thresholds() {
  std::array<float, kGainSteps> thresholds{};
  for (size_t i = 0; i < thresholds.size(); ++i) thresholds[i] = static_cast<float>(kRoots[2 * i + 1]);
  return thresholds;
}

}  // namespace

constexpr std::array<float, kTopGain + 1> kGainFactors = make_factors();
constexpr std::array<float, kGainSteps> kGainThresholds = make_thresholds();

uint8_t gain_code(float gain, float largest) {
  const auto bits = std::bit_cast<uint32_t>(gain / largest);
  const int32_t exponent = static_cast<int32_t>(bits >> 23U) - 127;
  const float mantissa = std::bit_cast<float>((bits & 0x7FFFFFU) | 0x3F800000U);
  const auto step =
      std::upper_bound(kGainThresholds.begin(), kGainThresholds.end(), mantissa) - kGainThresholds.begin();
  return static_cast<uint8_t>(std::clamp(kTopGain + kGainSteps * exponent + static_cast<int32_t>(step), 0, kTopGain));
}

}  // namespace kvq::gain_shape
