// Decodes trellis codes to FP16: shifts of whole words compute the parities of many codes at once, byte permutes look
// up levels. A level is a subnormal FP16 value, like other codes (kernels/device/fragments.cuh), with a separate sign
// where the table holds magnitudes.
#pragma once

#include "formats/gain_shape/trellis.h"

#include <cstdint>

namespace kvq::cuda {

/// Selects bytes of a and b by the nibbles of the lower half of `select`; a nibble with its highest bit set replicates
/// the selected byte's sign.
__device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t select) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(result) : "r"(a), "r"(b), "r"(select));
  return result;
}

__device__ __forceinline__ uint32_t select_bits(uint32_t a, uint32_t b, uint32_t mask) {
  return (a & mask) | (b & ~mask);
}

/// Three parities of many codes, each at the bit of the code's u.
struct Parities {
  uint32_t z[3];
};

/// `before[d]`: u of the codes `d` steps earlier. `flip` inverts all three parities.
__device__ __forceinline__ Parities parities_of(const uint32_t (&before)[7], uint32_t flip) {
  const uint32_t common = before[4] ^ flip;
  return {{before[1] ^ common, before[2] ^ before[5] ^ common, before[0] ^ before[6] ^ common}};
}

/// Parities of consecutive codes from the lowest bit on, kBits bits each; `last` holds the preceding codes.
template <int kBits>
__device__ __forceinline__ Parities parities_along(uint32_t word, uint32_t last, uint32_t flip) {
  uint32_t before[7];
  before[0] = word;
#pragma unroll
  for (uint32_t d = 1; d < 7; ++d) before[d] = __funnelshift_l(last, word, kBits * d);
  return parities_of(before, flip);
}

struct ByteTable {
  uint32_t low;
  uint32_t high;
};

/// Table of the levels from `first` on, plus `zero`.
constexpr ByteTable level_table(int32_t bits, int32_t first, int32_t zero) {
  uint32_t words[2] = {0, 0};
  for (int32_t i = 0; i < 8; ++i) {
    words[i / 4] |= static_cast<uint32_t>(gain_shape::levels(bits)[first + i] + zero) << (8 * (i % 4));
  }
  return {words[0], words[1]};
}

// All one-bit levels offset to be positive, and magnitudes of two- and three-bit levels.
inline constexpr int32_t kZero1 = 128;
inline constexpr ByteTable kTable1 = level_table(1, 0, kZero1);
inline constexpr ByteTable kTable2 = level_table(2, 8, 0);
inline constexpr ByteTable kLowTable3 = level_table(3, 16, 0);
inline constexpr ByteTable kHighTable3 = level_table(3, 24, 0);

/// Turns the low three bits of each byte into permute selectors that produce FP16 values: bytes 0 and 2 in the lower
/// half, bytes 1 and 3 in the upper half.
__device__ __forceinline__ uint32_t half_selectors(uint32_t index) {
  return permute((index & 0x07070707U) | 0x80808080U, 0, 0x3120U);
}

/// Sets the signs of bytes 0 and 2 whose bit kBit is 0; shift the word by 8 for bytes 1 and 3.
template <int kBit>
__device__ __forceinline__ uint32_t with_signs(uint32_t magnitudes, uint32_t word) {
  return magnitudes | (~(word << (15 - kBit)) & 0x80008000U);
}
template <int kBit>
__device__ __forceinline__ uint32_t with_odd_signs(uint32_t magnitudes, uint32_t word) {
  static_assert(kBit <= 7);
  return magnitudes | (~(word << (7 - kBit)) & 0x80008000U);
}

/// Moves bit kFrom of each byte or nibble of the three words to bits 0, 1 and 2.
template <int kFrom>
__device__ __forceinline__ uint32_t gather(const Parities& parities) {
  const auto moved = [&parities](int i) {
    const uint32_t z = parities.z[i];
    return kFrom >= i ? z >> (kFrom - i) : z << (i - kFrom);
  };
  return select_bits(select_bits(moved(0), moved(1), 0x11111111U), moved(2), 0x33333333U);
}

/// One-bit codes: fields are bits of bytes. All eight levels are in one table, offset by kZero.
struct TrellisCodes1 {
  static constexpr int kBits = 1;
  static constexpr int32_t kZero = kZero1;

  Parities parities[4];

  __device__ __forceinline__ void set(int32_t i, const Parities& of, uint32_t /*low*/) { parities[i] = of; }
  __device__ __forceinline__ static uint32_t flip(uint32_t /*word*/) { return 0; }

  template <int kField>
  __device__ __forceinline__ uint32_t even(int32_t i) const {
    return permute(kTable1.low, kTable1.high, half_selectors(gather<kField>(parities[i])));
  }
  template <int kField>
  __device__ __forceinline__ uint32_t odd(int32_t i) const {
    return permute(kTable1.low, kTable1.high, half_selectors(gather<kField>(parities[i])) >> 16U);
  }
};

/// Two-bit codes: u is the upper bit, the sign the lower one. Tables hold magnitudes and are indexed in reverse for
/// negative levels.
struct TrellisCodes2 {
  static constexpr int kBits = 2;
  static constexpr int32_t kZero = 0;

  uint32_t fields[2][4];  // even and odd fields: nibbles, two per byte
  uint32_t words[4];

  /// `low`: the code word itself.
  __device__ __forceinline__ void set(int32_t i, const Parities& of, uint32_t low) {
    fields[0][i] = gather<1>(of);
    fields[1][i] = gather<3>(of);
    words[i] = low;
  }
  __device__ __forceinline__ static uint32_t flip(uint32_t word) { return ~(word << 1U); }

  template <int kField>
  __device__ __forceinline__ uint32_t selectors(int32_t i) const {
    return half_selectors(fields[kField % 2][i] >> (4 * (kField / 2)));
  }
  template <int kField>
  __device__ __forceinline__ uint32_t even(int32_t i) const {
    return with_signs<2 * kField>(permute(kTable2.low, kTable2.high, selectors<kField>(i)), words[i]);
  }
  template <int kField>
  __device__ __forceinline__ uint32_t odd(int32_t i) const {
    return with_odd_signs<2 * kField>(permute(kTable2.low, kTable2.high, selectors<kField>(i) >> 16U), words[i]);
  }
};

/// Three-bit codes: u is in a plane of its own; of the other two bits, the upper is the sign and the lower selects one
/// of two tables.
struct TrellisCodes3 {
  static constexpr int kBits = 1;
  static constexpr int32_t kZero = 0;

  Parities parities[4];
  uint32_t words[4];

  __device__ __forceinline__ void set(int32_t i, const Parities& of, uint32_t low) {
    parities[i] = of;
    words[i] = low;
  }
  __device__ __forceinline__ static uint32_t flip(uint32_t /*word*/) { return 0; }

  template <int kField>
  __device__ __forceinline__ uint32_t selectors(int32_t i) const {
    const uint32_t sign = words[i] >> (2 * kField + 1) & 0x01010101U;
    const uint32_t upper = ~(words[i] ^ words[i] >> 1U) >> (2 * kField) & 0x01010101U;
    // Negative levels index the tables in reverse.
    const uint32_t index = (gather<kField>(parities[i]) & 0x07070707U) ^ (0x07070707U - 7U * sign);
    return permute(index | upper << 3U | 0x80808080U, 0, 0x3120U);
  }
  __device__ __forceinline__ static uint32_t magnitudes(uint32_t selectors) {
    return permute(kLowTable3.low, kLowTable3.high, selectors) |
           permute(kHighTable3.low, kHighTable3.high, selectors ^ 0x00000808U);
  }
  template <int kField>
  __device__ __forceinline__ uint32_t even(int32_t i) const {
    return with_signs<2 * kField + 1>(magnitudes(selectors<kField>(i)), words[i]);
  }
  template <int kField>
  __device__ __forceinline__ uint32_t odd(int32_t i) const {
    return with_odd_signs<2 * kField + 1>(magnitudes(selectors<kField>(i) >> 16U), words[i]);
  }
};

}  // namespace kvq::cuda
