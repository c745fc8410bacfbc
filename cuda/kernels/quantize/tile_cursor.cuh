#pragma once

#include "kernels/quantize/quantize.h"

namespace kvq::cuda {

/// Weights and codes of one tile.
struct TileCursor {
  int64_t first_number;  // index of its first row's first weight
  uint8_t* codes;
};

/// \param number  tile index among panels · tiles, panel by panel
__device__ inline TileCursor tile_at(const TilesToCode& tiles, int32_t number) {
  const int32_t panel = number / tiles.tiles;
  const int32_t tile = tiles.first_tile + number % tiles.tiles;
  const auto bytes = static_cast<int64_t>(tiles.codebook.code.tile_bytes());
  return {int64_t{panel} * weights::kTileRows * tiles.in + tile * weights::kTileColumns,
          tiles.codes + panel * tiles.panel_bytes + tiles.segment_bytes + (tile - tiles.segment_tile) * bytes};
}

}  // namespace kvq::cuda
