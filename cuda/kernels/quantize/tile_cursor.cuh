#pragma once

#include "kernels/quantize/quantize.h"

namespace kvq::cuda {

/// A tile that is to be coded.
struct TileCursor {
  int64_t first_number;  // of its first row
  uint8_t* codes;
};

/// \param number  panels · tiles of them, those of a panel after each other
__device__ inline TileCursor tile_at(const TilesToCode& tiles, int32_t number) {
  const int32_t panel = number / tiles.tiles;
  const int32_t tile = tiles.first_tile + number % tiles.tiles;
  const auto bytes = static_cast<int64_t>(tiles.codebook.code.tile_bytes());
  return {int64_t{panel} * weights::kTileRows * tiles.in + tile * weights::kTileColumns,
          tiles.codes + panel * tiles.panel_bytes + tiles.segment_bytes + (tile - tiles.segment_tile) * bytes};
}

}  // namespace kvq::cuda
