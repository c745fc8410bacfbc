// Encodes numbers tile by tile.
#pragma once

#include "core/memory.h"
#include "weights/codebook.h"
#include "weights/trellis_search.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace kvq::weights {

/// 16 rows of 16 numbers in coding order: columns that a step codes together are neighbours.
using TileNumbers = std::array<std::array<float, kTileColumns>, kTileRows>;

class TileEncoder {
 public:
  /// For rows with unit variance.
  TileEncoder(Allocator& allocator, const Code& code);

  const Code& code() const { return codebook_.code; }
  size_t work_floats() const { return code().is_trellis() ? search_floats(code()) : 0; }

  /// Code the columns begin, … of `targets` that are coded together. `decoded`: their decoded codes, in the same
  /// columns. `stream`: of the tile, zeros before its first columns are coded.
  void encode(const TileNumbers& targets, int32_t begin, std::span<float> work, std::span<uint8_t> stream,
              TileNumbers& decoded) const noexcept;
  /// Decode a whole tile, in coding order.
  void decode(std::span<const uint8_t> stream, TileNumbers& decoded) const noexcept;

 private:
  void encode_path(const TileNumbers& targets, std::span<float> work, std::span<uint8_t> stream,
                   TileNumbers& decoded) const noexcept;
  float value(int32_t level) const { return codebook_.unit * static_cast<float>(level); }

  const Codebook& codebook_;
  std::optional<StateLevels> states_;    // of a trellis
  std::array<Vector<float>, 2> values_;  // of a table: [dims][entries]
};

}  // namespace kvq::weights
