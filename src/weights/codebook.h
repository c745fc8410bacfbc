#pragma once

#include "weights/scheme.h"

#include <cstdint>
#include <span>

namespace kvq::weights {

/// Levels of the windows of a code: small integers, usable in integer products as they are. A weight of a row with unit
/// variance is level · unit.
///
/// nuq   levels[window]
/// vq    levels[2 window + dim]
/// tcq, tcx   u = window (window + addend) mod 2^16, levels[dims ((u >> (15 − index_bits)) mod 2^index_bits) + dim], of
///            which the first one changes its sign if bit 15 of u is set
struct Codebook {
  Code code;
  float unit;
  std::span<const int8_t> levels;
  int32_t index_bits;  // of a table's entries
  uint32_t addend;     // of a trellis; 1 for steps of pairs
};

/// Unit of all codebooks.
inline constexpr int32_t kMostIndexBits = 11;

/// level + kZeroPoint is an unsigned byte, as byte products need.
inline constexpr int32_t kZeroPoint = 128;

/// Codebook of a scheme's code.
const Codebook& codebook_of(const Code& code);

/// Level of one weight of a step, from −127 to 127.
constexpr int32_t level_of(const Codebook& codebook, uint32_t window, int32_t dim) {
  const auto at = [&](uint32_t entry) {
    return static_cast<int32_t>(
        codebook.levels[static_cast<uint32_t>(codebook.code.dims()) * entry + static_cast<uint32_t>(dim)]);
  };
  switch (codebook.code.family) {
    case Family::kNuq:
    case Family::kVq:
      return at(window);
    default: {
      const uint32_t u = window * (window + codebook.addend) & 0xFFFFU;
      const uint32_t mask = (1U << static_cast<uint32_t>(codebook.index_bits)) - 1U;
      const int32_t level = at((u >> static_cast<uint32_t>(15 - codebook.index_bits)) & mask);
      return dim == 0 && (u >> 15U) != 0 ? -level : level;
    }
  }
}

/// Window of a step in the stream of its tile.
inline uint32_t window_at(const Code& code, std::span<const uint8_t> stream, int32_t step) {
  const auto first = static_cast<size_t>(code.first_bit(step));
  uint32_t window = 0;
  for (size_t i = 0; i < 4; ++i) {  // a window of up to 16 bits spans three bytes
    window |= static_cast<uint32_t>(stream[(first / 8 + i) % stream.size()]) << (8 * i);
  }
  return window >> (first % 8) & ((1U << static_cast<uint32_t>(code.window_bits())) - 1U);
}

/// Levels of a tile, [16 rows, 16 columns].
void decode_tile(const Codebook& codebook, std::span<const uint8_t> stream, std::span<int8_t> levels);

}  // namespace kvq::weights
