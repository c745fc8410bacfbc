// Sizes of a block, and its shared memory.
#pragma once

#include "kernels/attend/queries.cuh"
#include "kernels/pages/layout.cuh"
#include "kernels/prefill/made_side.cuh"
#include "kernels/wide/wide.h"

namespace kvq::cuda {

/// kRowTiles: 16 rows each, per warp; kRowWarps: groups of warps with different rows; kColumnWarps: groups that divide
/// a step's tokens, and the channels of outputs; kPages: of a step, weighed at a time; kTiles: decoded pages or sides;
/// kValues: most channels of values.
template <int kTilesOfRows, int kWarpsOfRows, int kWarpsOfColumns, int kPagesOfStep, int kMostValues>
struct WideShape {
  static constexpr int32_t kColumnWarps = kWarpsOfColumns;
  static constexpr int32_t kRowTiles = kTilesOfRows;
  static constexpr int32_t kRowWarps = kWarpsOfRows;
  static constexpr int32_t kPages = kPagesOfStep;
  static constexpr int32_t kTiles = kPages;
  static constexpr int32_t kValues = kMostValues;
  static constexpr int32_t kRows = 16 * kRowTiles * kRowWarps;
  static constexpr int32_t kWarps = kColumnWarps * kRowWarps;
  static constexpr int32_t kThreads = 32 * kWarps;
  static constexpr int32_t kLeastCopies = kPages;                             // of the ring
  static constexpr int32_t kReadRows = 2;                                     // queries that a warp reads at a time
  static constexpr int32_t kPageWarps = kWarps / kPages;                      // decode a page together
  static constexpr int32_t kTokenTiles = kSlots / 8 * kPages / kColumnWarps;  // of eight tokens, per warp
  static constexpr int32_t kChannelTiles = kValues / 16 / kColumnWarps;       // of 16 channels, per warp

  struct Extra {};

  /// A barrier of the warps that hold rows.
  __device__ __forceinline__ static void wait() { __syncthreads(); }
};

/// A warp's scores of a step: for each tile of 16 rows and of eight tokens, an accumulator.
template <typename S>
using WideScores = float[S::kRowTiles][S::kTokenTiles][4];
/// A warp's outputs: for each tile of 16 rows and of 16 channels, two accumulators.
template <typename S>
using WideOutputs = float[S::kRowTiles][8 * S::kChannelTiles];

/// What a block's warps tell each other, in shared memory.
template <typename S>
struct WideHeader {
  float row_scale[S::kRows];
  float row_bias[S::kRows];  // added to the scores of latents, from offsets of their scales
  int32_t row_position[S::kRows];
  float maxima[S::kColumnWarps][S::kRows];  // of a step; at the end, sums
  float highest[S::kRows];                  // at the end, logits
  uint64_t arrived[kMaxStages];
  typename S::Extra extra;
  PageLayout layout;  // of a run of pages: too much for registers
};

/// Places in shared memory. Queries come first, since swizzled planes are aligned to 1024 bytes.
struct WidePlaces {
  int32_t weights;  // [pages][rows][32 slots]
  int32_t tiles;    // with the ring also memory for rows of floats
  int32_t tile_bytes;
  int32_t common;  // of a tile: a latent's common channels
  int32_t ring;
  int32_t header;  // what lanes of missing groups read behind the ring is here
  int32_t bytes;

  template <typename S>
  KVQ_HOST_DEVICE static WidePlaces of(const WideLaunch& launch) {
    static_assert(sizeof(WideHeader<S>) >= kOverrun);
    static_assert(S::kRows == kManyRows);
    WidePlaces at{};
    at.weights = 2 * S::kRows * (launch.key_width + launch.common_width);
    at.tiles = at.weights + 2 * S::kRows * kSlots * S::kPages;
    at.common = 2 * kSlots * launch.key_width;
    const int32_t keys_and_common = at.common + 2 * kSlots * launch.common_width;
    const int32_t values = launch.common_width > 0 ? 0 : 2 * kSlots * launch.value_width;
    at.tile_bytes = keys_and_common > values ? keys_and_common : values;
    at.ring = at.tiles + S::kTiles * at.tile_bytes;
    // Rows of outputs, or of queries on their way there.
    const int32_t rows = 4 * S::kRows * S::kValues;
    const int32_t queries = 4 * S::kWarps * S::kReadRows * (launch.key_width + launch.common_width);
    const int32_t floats = at.tiles + (rows > queries ? rows : queries);
    at.header = at.ring + launch.ring_bytes;
    if (at.header < floats) at.header = floats;
    at.bytes = at.header + static_cast<int32_t>(sizeof(WideHeader<S>));
    return at;
  }
};

/// A block's threads share this.
template <typename S>
struct WideBlock {
  const AttendArguments& arguments;
  const WideLaunch& launch;
  WidePlaces at;
  uint8_t* memory;
  Unit unit;
  int32_t rows;
  Lane lane;

  __device__ __forceinline__ WideHeader<S>& header() const {
    return *reinterpret_cast<WideHeader<S>*>(memory + at.header);
  }
  __device__ __forceinline__ float* row_memory() const { return reinterpret_cast<float*>(memory + at.tiles); }
};

/// A warp's place among a block's rows and columns.
struct WarpPlace {
  int32_t column;
  int32_t first_row;
  // Of its tokens: their page of the step, and the first slot.
  int32_t page;
  int32_t slot;
};

template <typename S>
__device__ __forceinline__ WarpPlace warp_place(const Lane& lane) {
  const int32_t column = lane.warp / S::kRowWarps;
  const int32_t token = column * 8 * S::kTokenTiles;
  return {column, lane.warp % S::kRowWarps * 16 * S::kRowTiles, token / kSlots, token % kSlots};
}

}  // namespace kvq::cuda
