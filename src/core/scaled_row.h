// FP16 numbers with a common power of two, which keeps any finite numbers at full precision. Also compiled as device
// code.
#pragma once

#include "core/host_device.h"

#include <cstddef>
#include <cstdint>

namespace kvq {

/// Exponent, biased as in FP32, of the power of two by which a row is divided: its largest magnitude, given as bits, is
/// then in [2^14, 2^15). Rows of smaller numbers than 2^-112 get the smallest power.
KVQ_HOST_DEVICE constexpr uint32_t row_exponent(uint32_t largest_bits) {
  const uint32_t exponent = largest_bits >> 23U;
  return exponent > 15 ? exponent - 14 : 1;
}
/// The power and its inverse, as bits of an FP32 number.
KVQ_HOST_DEVICE constexpr uint32_t power_bits(uint32_t exponent) { return exponent << 23U; }
KVQ_HOST_DEVICE constexpr uint32_t inverse_bits(uint32_t exponent) { return (254 - exponent) << 23U; }

/// Words of a row of `n` numbers: its exponent, then the numbers in FP16.
KVQ_HOST_DEVICE constexpr size_t scaled_row_words(int32_t n) { return static_cast<size_t>(n) + 1; }

}  // namespace kvq
