// Codes of a trellis shape and their levels. Also compiled as device code.
//
// Trellis-coded quantization: the highest bit of a code, u, enters a shift register of six bits. Three of its parities
// and the code's other bits choose among four times as many levels as codes alone could distinguish, and the encoder
// searches the 64 states for the path closest to the whole vector. The register holds the bits of the preceding
// numbers, for the first number those of the last ones (tail-biting): no start state is stored. Parities were chosen
// among thousands of random ones for all three widths by the error of normal vectors; few terms decode fast.
#pragma once

#include "formats/side_format.h"

#include <array>

namespace kvq::gain_shape {

inline constexpr int32_t kMemory = 6;  // bits of the shift register
inline constexpr int32_t kStates = 1 << kMemory;
inline constexpr int32_t kParities = 3;
inline constexpr int32_t kSubsets = 1 << kParities;

/// Parity i is that of the register bits in taps[i]; bit d is u of d numbers before.
inline constexpr std::array<uint32_t, kParities> kTaps = {022, 064, 0121};

/// Levels in units of 1/48 of the root mean square, by other bits · 8 + parities. Squared errors for normal vectors of
/// 128: .282, .0749 and .0197.
inline constexpr float kLevelUnit = 48.0F;
inline constexpr std::array<int8_t, 8> kLevels1 = {-72, -31, -30, -11, 11, 30, 31, 72};
inline constexpr std::array<int8_t, 16> kLevels2 = {-102, -66, -58, -39, -33, -20, -14, -3,
                                                    3,    14,  20,  33,  39,  58,  66,  102};
inline constexpr std::array<int8_t, 32> kLevels3 = {-126, -96, -79, -65, -61, -49, -47, -39, -35, -28, -25,
                                                    -19,  -15, -10, -7,  -2,  2,   7,   10,  15,  19,  25,
                                                    28,   35,  39,  47,  49,  61,  65,  79,  96,  126};

constexpr const int8_t* levels(int32_t bits) {
  return bits == 1 ? kLevels1.data() : bits == 2 ? kLevels2.data() : kLevels3.data();
}

/// The parities of a register with the newest bit, u, at the bottom.
KVQ_HOST_DEVICE constexpr int32_t parities(uint32_t bits) {
  const auto bit = [bits](uint32_t d) { return bits >> d; };
  const uint32_t first = bit(1) ^ bit(4);
  const uint32_t second = bit(2) ^ bit(4) ^ bit(5);
  const uint32_t third = bit(0) ^ bit(4) ^ bit(6);
  return static_cast<int32_t>((first & 1U) | (second & 1U) << 1U | (third & 1U) << 2U);
}
static_assert(kTaps[0] == 0b10010 && kTaps[1] == 0b110100 && kTaps[2] == 0b1010001);

/// The trellis order of a token's channels: along the bits of keys' words, and across the vectors of 16 lanes of
/// values, so that preceding bits are near.
struct Chain {
  Side side;
  PackedPlane plane;  // with the highest bits of codes

  KVQ_HOST_DEVICE constexpr int32_t length() const {
    return side == Side::kKeys ? plane.blocks() * plane.block() : plane.lanes;
  }
  /// Channels from the head size on are padding.
  KVQ_HOST_DEVICE constexpr int32_t channel(int32_t step) const {
    if (side == Side::kValues) {
      const int32_t vectors = plane.lanes / 16;
      return 16 * (step % vectors) + step / vectors;
    }
    const int32_t fields = plane.block() / 4;  // fields per byte
    const int32_t within = step % plane.block();
    return step - within + 4 * (within % fields) + within / fields;
  }
};

}  // namespace kvq::gain_shape
