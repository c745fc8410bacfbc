// Attention of many queries: pages are decoded once to FP16 tiles in device memory, and tensor cores multiply them by
// all rows that see them.
#pragma once

#include "kernels/attend/attend.h"

#include <cstddef>

namespace kvq::cuda {

inline constexpr int32_t kTilePages = 4;
inline constexpr int32_t kTileTokens = kTilePages * kSlots;
/// Memory for tiles; it limits the KV heads that are decoded at a time, at least one.
inline constexpr size_t kTileMemory = size_t{132} << 20U;

/// Token positions of a tile, for masks.
struct TileTokens {
  int32_t positions[kTileTokens];  // INT32_MAX: no token
  int32_t first;                   // lowest position
  int32_t last;                    // highest position; INT32_MAX if some slot has no token
  int32_t padding[2];
};

/// Bytes of a tile's keys, or of its values. `width`: channels of a row, zeros behind those of the head.
inline constexpr size_t tile_bytes(int32_t width) { return size_t{2} * kTileTokens * static_cast<size_t>(width); }

/// Floats in a partial of one unit and part.
KVQ_HOST_DEVICE constexpr size_t partial_floats(int32_t rows, int32_t value_width) {
  return static_cast<size_t>(rows) * static_cast<size_t>(value_width + 2);
}

/// Channels of a plane of keys.
KVQ_HOST_DEVICE constexpr int32_t plane_channels(int32_t width) { return width % 64 == 0 ? 64 : 32; }

/// Pages of some KV heads of the launch's sequences as tiles, in a shared-memory layout that suits warpgroup products
/// and ldmatrix: keys as planes of 64 channels (32 if the width is no multiple of 64) with a row per token, values as
/// one plane per page with a row of 64 bytes per channel. The 16-byte chunks of rows are permuted by the row's number.
struct Tiles {
  int32_t first_head;
  int32_t heads;
  int32_t key_width;
  int32_t value_width;
  int32_t rotated_keys;  // all of them are, and none otherwise
  int32_t rotated_values;
  std::byte* keys;     // [tiles]
  std::byte* values;   // [tiles]
  TileTokens* tokens;  // [tiles]
  float* partials;     // [units][parts], see prefill/rows.cuh
  int32_t row_blocks;
  int32_t parts;                        // per unit, one block each
  int32_t begins[kMaxLaunchSequences];  // tile 0 of the sequence's first head
  int32_t counts[kMaxLaunchSequences];  // tiles per head of the sequence
  int32_t total;                        // tiles of all sequences and heads; of a pool, at most so many
  // Of a pool, whose sequences have no begins and counts: the lists whose tiles are in memory are those from [0] to [1]
  // in the row of all tiles, of all heads of one sequence after the other. The launch has all lists' units.
  const int32_t* round;

  /// Whether blocks leave partials, which another kernel merges and rotates back.
  KVQ_HOST_DEVICE bool merges() const { return parts > 1 || rotated_values != 0; }
};

/// A kernel that multiplies tiles by queries.
struct PrefillKernel {
  int32_t key_width;  // of tiles
  int32_t value_width;
  int32_t block_rows;
  int32_t blocks;      // per multiprocessor
  int32_t least_rows;  // per KV head, from which on tiles are faster than reading pages as they are
  cudaError_t (*launch)(const AttendArguments& arguments, const Tiles& tiles, cudaStream_t stream);

  size_t bytes_of_tiles(int32_t tiles) const {
    return static_cast<size_t>(tiles) * (tile_bytes(key_width) + tile_bytes(value_width) + sizeof(TileTokens));
  }
};

/// Products by mma.sync, for any device and heads of at most kMaxHeadDim channels of keys and of values.
PrefillKernel general_prefill(const HeadShape& head, int32_t shared_limit);
/// Products by wgmma, for compute capability 9.0; without a launch function if the general kernel is faster.
PrefillKernel hopper_prefill(const HeadShape& head);
inline PrefillKernel choose_prefill(const HeadShape& head, int32_t compute_capability, int32_t shared_limit) {
  const PrefillKernel hopper = compute_capability == 90 ? hopper_prefill(head) : PrefillKernel{};
  return hopper.launch != nullptr ? hopper : general_prefill(head, shared_limit);
}

/// Decodes the pages of all sequences to `tiles`.
cudaError_t launch_unpack(const AttendArguments& arguments, const Tiles& tiles, int32_t multiprocessors,
                          int32_t shared_limit, cudaStream_t stream);
/// The same for heads of more than 128 channels.
cudaError_t launch_unpack_wide(const AttendArguments& arguments, const Tiles& tiles, int32_t multiprocessors,
                               int32_t shared_limit, cudaStream_t stream);
/// Merges the partials of all parts of each unit into outputs, which it rotates back if values are rotated.
cudaError_t launch_merge(const AttendArguments& arguments, const Tiles& tiles, int32_t block_rows, cudaStream_t stream);

}  // namespace kvq::cuda
