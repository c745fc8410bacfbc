// FP16 and BF16 by arithmetic on doubles, independent of the conversions of the library and the machine.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace kvq_test {

// A binary floating-point format: exponent and fraction bits.
struct FloatFormat {
  int exponent_bits;
  int fraction_bits;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int min_exponent() const { return 1 - bias(); }  // smallest exponent of normal numbers
  constexpr int max_exponent() const { return bias(); }
};

inline constexpr FloatFormat kHalf{5, 10};
inline constexpr FloatFormat kBrain{8, 7};

// The nearest number of the format, ties to even; infinity beyond its range.
inline double round_to(double x, FloatFormat format) {
  if (x == 0.0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), format.min_exponent());
  const double unit = std::ldexp(1.0, exponent - format.fraction_bits);
  const double rounded = std::nearbyint(x / unit) * unit;
  const double largest = std::ldexp(2.0 - std::ldexp(1.0, -format.fraction_bits), format.max_exponent());
  return std::fabs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}

inline double decode_bits(uint16_t bits, FloatFormat format) {
  const int exponent = (bits >> format.fraction_bits) & ((1 << format.exponent_bits) - 1);
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << format.exponent_bits) - 1) {
    const double infinity = std::numeric_limits<double>::infinity();
    return fraction == 0 ? sign * infinity : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, format.min_exponent() - format.fraction_bits);
  return sign * std::ldexp(fraction + (1 << format.fraction_bits), exponent - format.bias() - format.fraction_bits);
}

// Rounds to nearest; `x` is finite.
inline uint16_t encode_bits(double x, FloatFormat format) {
  const double rounded = round_to(x, format);
  const unsigned sign = std::signbit(x) ? 0x8000u : 0u;
  const double magnitude = std::fabs(rounded);
  const unsigned fraction_mask = (1u << format.fraction_bits) - 1u;
  if (std::isinf(magnitude)) {
    return static_cast<uint16_t>(sign | (((1u << format.exponent_bits) - 1u) << format.fraction_bits));
  }
  const double smallest_normal = std::ldexp(1.0, format.min_exponent());
  if (magnitude < smallest_normal) {
    const double steps = std::ldexp(magnitude, format.fraction_bits - format.min_exponent());
    return static_cast<uint16_t>(sign | static_cast<unsigned>(steps));
  }
  const int exponent = std::ilogb(magnitude);
  const auto fraction = static_cast<unsigned>(std::ldexp(magnitude, format.fraction_bits - exponent)) & fraction_mask;
  const auto field = static_cast<unsigned>(exponent + format.bias());
  return static_cast<uint16_t>(sign | (field << format.fraction_bits) | fraction);
}

inline double to_half(double x) { return round_to(x, kHalf); }

// Distance between neighbouring FP16 numbers around x: the rounding error is at most half of it.
inline double half_spacing(double x) {
  const int exponent = x == 0.0 ? kHalf.min_exponent() : std::max(std::ilogb(x), kHalf.min_exponent());
  return std::ldexp(1.0, exponent - kHalf.fraction_bits);
}

}  // namespace kvq_test
