#pragma once

#include "palette/scheme.h"

#include <cstdint>
#include <span>

namespace kvq::palette {

/// What the windows of a code stand for: small integers, so that integer products can use them as they are. A weight of
/// a row with unit variance is level · unit.
///
/// nuq   levels[window]
/// vq    levels[2 window + dim]
/// tcq   u = window (window + 1) mod 2^16, levels[2 ((u >> (15 − index_bits)) mod 2^index_bits) + dim], of which the
///       first one changes its sign if bit 15 of u is set
/// tcx   a quarter of the sum of the four bytes of window · multiplier mod 2^32, rounded down, − zero_point
struct Codebook {
  Code code;
  float unit;
  std::span<const int8_t> levels;  // empty if computed
  int32_t index_bits;              // of a table's entries
  uint32_t multiplier;             // of a computed code
  int32_t zero_point;              // level + zero_point is an unsigned byte
};

/// Of computed codes: near the mean of what they sum up.
inline constexpr int32_t kComputedZeroPoint = 127;

/// The codebook of a code that some scheme uses.
const Codebook& codebook_of(const Code& code);

/// The level of one weight of a step, from −127 to 127.
constexpr int32_t level_of(const Codebook& codebook, uint32_t window, int32_t dim) {
  const auto at = [&](uint32_t entry) {
    return static_cast<int32_t>(codebook.levels[2 * entry + static_cast<uint32_t>(dim)]);
  };
  switch (codebook.code.family) {
    case Family::kNuq:
      return codebook.levels[window];
    case Family::kVq:
      return at(window);
    case Family::kTcq: {
      const uint32_t u = window * (window + 1) & 0xFFFFU;
      const uint32_t mask = (1U << static_cast<uint32_t>(codebook.index_bits)) - 1U;
      const int32_t level = at((u >> static_cast<uint32_t>(15 - codebook.index_bits)) & mask);
      return dim == 0 && (u >> 15U) != 0 ? -level : level;
    }
    default: {
      const uint32_t product = window * codebook.multiplier;
      const uint32_t sum = (product & 255U) + (product >> 8U & 255U) + (product >> 16U & 255U) + (product >> 24U);
      return static_cast<int32_t>(sum / 4) - codebook.zero_point;
    }
  }
}

/// The window of a step in the stream of its tile.
inline uint32_t window_at(const Code& code, std::span<const uint8_t> stream, int32_t step) {
  const auto first = static_cast<size_t>(code.first_bit(step));
  uint32_t window = 0;
  for (size_t i = 0; i < 4; ++i) {  // a window of up to 16 bits lies in three bytes
    window |= static_cast<uint32_t>(stream[(first / 8 + i) % stream.size()]) << (8 * i);
  }
  return window >> (first % 8) & ((1U << static_cast<uint32_t>(code.window_bits())) - 1U);
}

/// Levels of a tile, [16 rows, 16 columns].
void decode_tile(const Codebook& codebook, std::span<const uint8_t> stream, std::span<int8_t> levels);

}  // namespace kvq::palette
