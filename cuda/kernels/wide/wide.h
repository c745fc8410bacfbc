// Attention with heads of any shape: more than 256 channels, keys and values of different sizes, latents, keys that are
// rotated from a later channel on.
#pragma once

#include "kernels/attend/attend.h"

#include <cstddef>

namespace kvq::cuda {

/// Decoded pages in device memory, as they are in shared memory: of each page its keys, then its values or, of a
/// latent, the common channels. [sequences][heads][pages].
struct WideTiles {
  int32_t begins[kMaxLaunchSequences];  // page 0 of the sequence's first head
  int32_t counts[kMaxLaunchSequences];  // pages per head of the sequence
  int32_t total;
};

/// Channels in shared memory: multiples of 64, zeros behind those of a side.
struct WideWidths {
  int32_t key_width;
  int32_t common_width;  // of a latent's common channels, which are both keys and values; 0: no latent
  int32_t value_width;
};

/// Blocks of a launch: a KV head, a block of rows, and a part of the pages that these see.
struct WideLaunch : WideWidths {
  int32_t first_head;
  int32_t heads;
  int32_t row_blocks;  // of all sequences
  int32_t parts;       // per block of rows
  int32_t ring_bytes;
  float* partials;         // [heads][row blocks][parts]; unused with one part
  const std::byte* tiles;  // decoded pages, see WideTiles; null: blocks decode them
  WideTiles of_tiles;
};

/// A kernel for blocks of `rows` rows.
struct WideKernel {
  int32_t rows = 0;
  WideWidths widths{};
  int32_t blocks = 0;          // per multiprocessor
  int32_t partial_floats = 0;  // of a block
  int32_t shared_bytes = 0;    // with this ring:
  int32_t ring_bytes = 0;
  bool reads_tiles = false;
  cudaError_t (*launch)(const AttendArguments& arguments, const WideLaunch& launch, int32_t shared_bytes,
                        cudaStream_t stream) = nullptr;
};

/// The least widths of a head's sides.
WideWidths least_widths(const HeadShape& head);

/// Kernels for blocks of at most 8 and 16 rows, whose warps divide channels and multiply codes as they are stored.
/// `shared_limit`: of a block; without a launch function if that is too little, or the shape is another kernel's.
WideKernel sliced_wide_8(const HeadShape& head, int32_t shared_limit);
WideKernel sliced_wide_16(const HeadShape& head, int32_t shared_limit);
/// Kernels for blocks of many rows, for which pages are decoded in shared memory.
WideKernel large_wide(const HeadShape& head, int32_t shared_limit);
/// The last by wgmma, for compute capability 9.0 and heads or latents of more than 256 channels, latents of more than
/// 128.
WideKernel hopper_wide(const HeadShape& head, int32_t shared_limit);
/// The same for pages that have been decoded.
WideKernel hopper_tiled_wide(const HeadShape& head, int32_t shared_limit);
/// Decodes all pages of the launch's sequences and heads to its tiles, for compute capability 9.0.
cudaError_t launch_wide_tiles(const AttendArguments& arguments, const WideLaunch& launch, std::byte* tiles,
                              int32_t multiprocessors, int32_t shared_limit, cudaStream_t stream);
/// What a call asks for.
struct WideWork {
  int32_t most_rows;  // query rows per KV head, of the sequence with the most
  int32_t rows;       // of all sequences and KV heads
  int32_t longest;    // pages
  int32_t multiprocessors;
  bool tiles;  // whether pages may be decoded to device memory before
};
/// Rows per KV head from which on blocks that decode pages on their own take longer than to decode all before.
constexpr int32_t kLeastTiledRows = 512;
/// Rows of a block of many.
constexpr int32_t kManyRows = 64;
/// The kernel for heads of a shape.
WideKernel choose_wide(const HeadShape& head, const WideWork& work, int32_t compute_capability, int32_t shared_limit);

/// Bytes of the largest page.
int32_t largest_page(const HeadShape& head);
/// Bytes of the largest copy of a page, or of a side where sides are copied alone.
int32_t largest_copy(const HeadShape& head);

/// Merges the partials of each row, from blocks of `rows` rows and `values` channels of outputs, into the caller's
/// outputs.
cudaError_t launch_wide_merge(const AttendArguments& arguments, const WideLaunch& launch, int32_t rows, int32_t values,
                              cudaStream_t stream);

}  // namespace kvq::cuda
