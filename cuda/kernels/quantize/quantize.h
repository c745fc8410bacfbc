// Codes of tiles: what quantizing does for every weight.
#pragma once

#include "weights/codebook.h"

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

/// Tiles of a segment in some panels. Arrays of numbers are [panels][16][in], columns in coding order.
struct TilesToCode {
  weights::Codebook codebook;  // with levels in device memory
  const float* numbers;
  uint8_t* codes;  // [panels][panel_bytes]
  int64_t panel_bytes;
  int64_t segment_bytes;  // of a panel, before those of the segment
  int32_t in;
  int32_t panels;
  int32_t segment_tile;  // where the segment begins, in tiles
  int32_t first_tile;
  int32_t tiles;  // of each panel

  bool feed_back;        // what the columns beyond a column pass on to it
  const float* factors;  // F of the only tile, [columns from its first one on][16]; null without a Hessian
  float* errors;         // what codes miss of numbers
  float* error_sums;     // Σ_j errors[j] · F[j][column] over j beyond the tile; comes to include the tile's own
  float* number_sums;    // the same of numbers
};

/// Whether blocks of a device may have the shared memory that searching in this code takes.
bool searches_trellis(const weights::Code& code, int32_t shared_limit);
/// What a block keeps of a search.
size_t trellis_block_bytes(const weights::Code& code);
/// The tail-biting paths of least error, those that the host finds.
/// \param blocks  that work at the same time.  \param kept  [blocks][trellis_block_bytes]
cudaError_t launch_search_trellis(const TilesToCode& tiles, int32_t blocks, float* kept, cudaStream_t stream);

/// Nearest levels or pairs of them, column by column from the last one.
cudaError_t launch_nearest_levels(const TilesToCode& tiles, cudaStream_t stream);

/// error_sums and number_sums of a tile of every panel: F beyond the tile times errors and numbers, in the host's
/// order.
cudaError_t launch_sum_beyond(const TilesToCode& tiles, cudaStream_t stream);

}  // namespace kvq::cuda
