// Sizes of a block whose warps divide the channels of a head, and its shared memory.
#pragma once

#include "kernels/attend/queries.cuh"
#include "kernels/pages/layout.cuh"
#include "kernels/wide/wide.h"

namespace kvq::cuda {

/// kTiles: of eight query rows; kKeySlice, kValueSlice: most channels of a warp.
template <int kTilesOfRows, int kMostKeys, int kMostValues, bool kIsLatent>
struct SliceShape {
  static constexpr int32_t kTiles = kTilesOfRows;
  static constexpr int32_t kRows = 8 * kTiles;
  static constexpr int32_t kWarps = 4;
  static constexpr int32_t kThreads = 32 * kWarps;
  static constexpr int32_t kReadRows = kRows / kWarps;  // queries that a warp reads
  static constexpr int32_t kKeySlice = kMostKeys;
  static constexpr int32_t kValues = kWarps * kMostValues;
  static constexpr int32_t kBlocks = kValues / 32;  // of channels
  static constexpr bool kLatent = kIsLatent;
  using Keys = ChannelSlice<kMostKeys, kTiles>;
  /// Of few keys whose words hold 16 channels, as the rotary part of a latent.
  using FewKeys = ChannelSlice<32, kTiles>;
  using Values = ChannelSlice<kMostValues, kTiles>;

  KVQ_HOST_DEVICE static constexpr bool serves(const HeadShape& head) {
    return head.is_latent == kLatent && head.keys <= kWarps * kMostKeys && head.values <= kValues;
  }
};

/// Queries in shared memory while they are loaded: floats of all warps, then rows of FP16.
struct SliceQueries {
  int32_t common;  // FP16 rows of a latent's common channels
  int32_t common_stride;
  int32_t keys;  // FP16 rows of the key side, but of latents in SlicePlaces::key_rows
  int32_t key_stride;
  int32_t bytes;

  template <typename S>
  KVQ_HOST_DEVICE static SliceQueries of(const HeadShape& head) {
    SliceQueries at{};
    // Rows in different banks.
    at.common_stride = ((head.is_latent ? head.values : 0) + 31) / 32 * 32 + 8;
    at.key_stride = (head.keys + S::kKeySlice - 1) / S::kKeySlice * S::kKeySlice + 8;
    at.common = 4 * S::kRows * (head.keys + (head.is_latent ? head.values : 0));
    at.keys = at.common + (head.is_latent ? 2 * S::kRows * at.common_stride : 0);
    at.bytes = at.keys + 2 * S::kRows * at.key_stride;
    return at;
  }
};

/// Floats from one row of outputs to the next, in shared memory: rows in different banks.
KVQ_HOST_DEVICE constexpr int32_t output_stride(int32_t values) { return values + 4; }

/// What a block's warps share.
template <typename S>
struct SliceHeader {
  float row_scale[S::kRows];
  float row_bias[S::kRows];
  int32_t row_position[S::kRows];
  float maxima[S::kWarps][8];               // of a page, of each warp's part of scores
  float row_maximum[S::kRows];              // at the end
  float sums[S::kWarps][8];                 // at the end, of each warp's parts
  float common_sums[S::kBlocks][S::kRows];  // of queries, over 32 common channels of a latent
  uint64_t arrived[kMaxStages];
  PageLayout layout;  // of the pages entered: too much for registers
};

/// Places in shared memory, the ring first. Lanes of missing channels read behind it, in the header.
struct SlicePlaces {
  int32_t header;
  int32_t exchange;  // [warps][2 · tiles][32] float4, what warps add to scores
  int32_t weights;   // [tiles of rows][tiles of tokens][8 tokens][8 rows], FP16
  int32_t key_rows;  // FP16 queries that meet the key side of a latent
  int32_t bytes;

  template <typename S>
  KVQ_HOST_DEVICE static SlicePlaces of(const HeadShape& head, int32_t ring_bytes) {
    static_assert(sizeof(SliceHeader<S>) >= kOverrun);
    SlicePlaces at{};
    at.header = ring_bytes;
    at.exchange = at.header + whole_lines(sizeof(SliceHeader<S>));
    at.weights = at.exchange + S::kWarps * 2 * S::kTiles * 32 * 16;
    at.key_rows = at.weights + 2 * S::kRows * kSlots;
    at.bytes = at.key_rows + (S::kLatent ? 2 * S::kRows * SliceQueries::of<S>(head).key_stride : 0);
    return at;
  }
};

/// A block's threads share this.
template <typename S>
struct SliceBlock {
  const AttendArguments& arguments;
  const WideLaunch& launch;
  uint8_t* memory;
  SlicePlaces at;
  Unit unit;
  int32_t rows;
  Lane lane;

  __device__ __forceinline__ SliceHeader<S>& header() const {
    return *reinterpret_cast<SliceHeader<S>*>(memory + at.header);
  }
};

}  // namespace kvq::cuda
