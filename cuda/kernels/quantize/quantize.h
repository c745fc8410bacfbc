// Kernels of weight quantization: trellis search, nearest levels and error feedback.
#pragma once

#include "weights/codebook.h"

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

/// Tiles of a segment in some panels. Arrays of weights are [panels][16][in], with columns in coding order.
struct TilesToCode {
  weights::Codebook codebook;  // levels in device memory
  const float* numbers;
  uint8_t* codes;  // [panels][panel_bytes]
  int64_t panel_bytes;
  int64_t segment_bytes;  // bytes of a panel before the segment's codes
  int32_t in;
  int32_t panels;
  int32_t segment_tile;  // first tile of the segment
  int32_t first_tile;
  int32_t tiles;  // per panel

  bool feed_back;        // whether errors of later columns are fed back to earlier ones
  const float* factors;  // F of the only tile, [columns from its first one on][16]; null without a Hessian
  float* errors;         // weight minus decoded weight
  float* error_sums;     // Σ_j errors[j] · F[j][column] over j past the tile; later includes the tile's own
  float* number_sums;    // the same sums of the weights
};

/// Whether blocks may have the shared memory that a search with this code needs.
bool searches_trellis(const weights::Code& code, int32_t shared_limit);
/// Bytes of kept costs per block.
size_t trellis_block_bytes(const weights::Code& code);
/// Searches the tail-biting paths of least error; finds the host's paths. \param blocks  resident thread blocks.
/// \param kept  [blocks][trellis_block_bytes]
cudaError_t launch_search_trellis(const TilesToCode& tiles, int32_t blocks, float* kept, cudaStream_t stream);

/// Encodes to nearest levels or pairs of levels, column by column from the last one.
cudaError_t launch_nearest_levels(const TilesToCode& tiles, cudaStream_t stream);

/// Computes error_sums and number_sums of a tile in every panel: errors and weights past the tile times F, in the
/// host's order.
cudaError_t launch_feedback_sums(const TilesToCode& tiles, cudaStream_t stream);

}  // namespace kvq::cuda
