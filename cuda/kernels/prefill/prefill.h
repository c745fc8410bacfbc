// Attention of many queries on Hopper: pages are decoded once to FP16 tiles in device memory, and warpgroups multiply
// them by all rows that see them.
#pragma once

#include "kernels/attend/attend.h"

#include <cstddef>

namespace kvq::cuda {

inline constexpr int32_t kTilePages = 4;
inline constexpr int32_t kTileTokens = kTilePages * kSlots;
/// Rows of a block, shared by two warpgroups.
inline constexpr int32_t kBlockRows = 128;
/// Rows per KV head from which on decoding to tiles pays off.
inline constexpr int32_t kManyRows = 320;
/// Memory for tiles; it limits the KV heads that are decoded at a time, at least one.
inline constexpr size_t kTileMemory = size_t{132} << 20U;

/// Token positions of a tile, for masks.
struct TileTokens {
  int32_t positions[kTileTokens];  // INT32_MAX: no token
  int32_t first;                   // lowest position
  int32_t last;                    // highest position; INT32_MAX if some slot has no token
  int32_t padding[2];
};

/// Bytes of a tile's keys, or of its values.
inline constexpr size_t tile_bytes(int32_t head_dim) { return size_t{2} * kTileTokens * static_cast<size_t>(head_dim); }

/// Pages of some KV heads of the launch's sequences as tiles, in the shared-memory layout of warpgroup products: keys
/// as [channels / 64] planes with a row of 128 bytes per token, values as one plane per page with a row of 64 bytes per
/// channel. The 16-byte chunks of rows are permuted by the row's number.
struct Tiles {
  int32_t first_head;
  int32_t heads;
  std::byte* keys;     // [tiles]
  std::byte* values;   // [tiles]
  TileTokens* tokens;  // [tiles]
  float* partials;     // [units][parts], see prefill/rows.cuh
  int32_t row_blocks;
  int32_t parts;                        // per unit, one block each
  int32_t begins[kMaxLaunchSequences];  // tile 0 of the sequence's first head
  int32_t counts[kMaxLaunchSequences];  // tiles per head of the sequence
  int32_t total;                        // tiles of all sequences and heads
};

/// Whether a device, and a head size, supports tiles.
inline bool has_prefill(int32_t compute_capability) { return compute_capability == 90; }
inline bool has_prefill_of(int32_t head_dim) { return head_dim == 64 || head_dim == 128; }

/// Raise the shared-memory limits, once per supported device.
cudaError_t prepare_unpack();
cudaError_t prepare_prefill();

/// Decodes the pages of all sequences to `tiles`.
cudaError_t launch_unpack(const AttendArguments& arguments, const Tiles& tiles, int32_t multiprocessors,
                          cudaStream_t stream);
/// Runs attention over the tiles.
cudaError_t launch_prefill(const AttendArguments& arguments, const Tiles& tiles, cudaStream_t stream);

/// Floats in a partial of one unit and part.
inline constexpr size_t prefill_partial_floats(int32_t head_dim) {
  return static_cast<size_t>(kBlockRows) * static_cast<size_t>(head_dim + 2);
}

}  // namespace kvq::cuda
