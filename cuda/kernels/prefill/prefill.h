// Attention of many queries: pages become FP16 tiles in device memory, once for all rows that see them, and tiles are
// multiplied by warpgroups (Hopper).
#pragma once

#include "kernels/attend/attend.h"

#include <cstddef>

namespace kvq::cuda {

inline constexpr int32_t kTilePages = 4;
inline constexpr int32_t kTileTokens = kTilePages * kSlots;
/// Rows of a block, shared by two warpgroups.
inline constexpr int32_t kBlockRows = 128;
/// From so many rows of a KV head on, tiles pay.
inline constexpr int32_t kManyRows = 320;
/// Tiles of as many KV heads as this holds are made at a time; of one at least.
inline constexpr size_t kTileMemory = size_t{132} << 20U;

/// What masks need to know of a tile.
struct TileTokens {
  int32_t positions[kTileTokens];  // INT32_MAX: no token
  int32_t first;                   // lowest position
  int32_t last;                    // highest; INT32_MAX if some slot has no token
  int32_t padding[2];
};

/// Bytes of a tile's keys, and of its values.
inline constexpr size_t tile_bytes(int32_t head_dim) { return size_t{2} * kTileTokens * static_cast<size_t>(head_dim); }

/// Pages of some KV heads of the launch's sequences as tiles. Both sides lie as products of warpgroups take them from
/// shared memory: keys as [channels / 64] planes with a row of 128 bytes a token, values as a plane a page with a row
/// of 64 bytes a channel. The 16-byte chunks of rows trade places by the row's number.
struct Tiles {
  int32_t first_head;
  int32_t heads;
  std::byte* keys;     // [tiles]
  std::byte* values;   // [tiles]
  TileTokens* tokens;  // [tiles]
  float* partials;     // [units][parts], see prefill_outputs.cuh
  int32_t row_blocks;
  int32_t parts;                        // of each unit's tiles, a block each
  int32_t begins[kMaxLaunchSequences];  // tile 0 of the sequence's first head
  int32_t counts[kMaxLaunchSequences];  // tiles of one of its heads
  int32_t total;                        // of all sequences and heads
};

/// Whether a device can, and heads of a size.
inline bool has_prefill(int32_t compute_capability) { return compute_capability == 90; }
inline bool has_prefill_of(int32_t head_dim) { return head_dim == 64 || head_dim == 128; }

/// Raise the shared-memory limits, once per device that can.
cudaError_t prepare_unpack();
cudaError_t prepare_prefill();

/// Tokens and pages of `tiles` from page tables.
cudaError_t launch_unpack(const AttendArguments& arguments, const Tiles& tiles, int32_t multiprocessors,
                          cudaStream_t stream);
/// Attention over them.
cudaError_t launch_prefill(const AttendArguments& arguments, const Tiles& tiles, cudaStream_t stream);

/// Floats of the partial of one unit and part.
inline constexpr size_t prefill_partial_floats(int32_t head_dim) {
  return static_cast<size_t>(kBlockRows) * static_cast<size_t>(head_dim + 2);
}

}  // namespace kvq::cuda
