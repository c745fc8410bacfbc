// Sizes of a block whose warps divide the channels of a head, and its shared memory.
#pragma once

#include "kernels/attend/queries.cuh"
#include "kernels/device/hadamard.cuh"
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

/// Rows of floats in shared memory, to be rotated. Gaps as in transform_place.
struct FloatRows {
  float* numbers;
  BlockMix mix;
  int32_t stride;

  __device__ __forceinline__ FloatRows(void* memory, int32_t dim)
      : numbers(static_cast<float*>(memory)), mix(dim), stride(stride_of(dim)) {}

  KVQ_HOST_DEVICE static constexpr int32_t stride_of(int32_t dim) { return transform_place((dim + 63) / 64 * 64); }
  KVQ_HOST_DEVICE static constexpr int32_t bytes(int32_t rows, int32_t dim) { return 4 * rows * stride_of(dim); }

  __device__ __forceinline__ int32_t dim() const { return mix.head_dim(); }
  __device__ __forceinline__ float* row(int32_t i) const { return numbers + i * stride; }
};

template <int32_t kRadix>
__device__ __forceinline__ void turn_step(float* row, int32_t dim, int32_t half, const Lane& lane) {
  const int32_t shift = __ffs(half) - 1;
  const int32_t apart = half < 64 ? half : transform_place(half);
#pragma unroll 1
  for (int32_t i = lane.index; i < dim / kRadix; i += 32) {
    float* place = row + transform_place((i >> shift) * (kRadix << shift) + (i & (half - 1)));
    float x[kRadix];
#pragma unroll
    for (int32_t k = 0; k < kRadix; ++k) x[k] = place[k * apart];
    add_and_subtract(x);
#pragma unroll
    for (int32_t k = 0; k < kRadix; ++k) place[k * apart] = x[k];
  }
  __syncwarp();
}

/// A warp hands over the numbers of a row, rotated or, which is the same, rotated back if `turned`: calls `store` with
/// each channel and its number. Overwrites the row. The code is short rather than fast, since it runs once or twice.
template <typename Store>
__device__ __forceinline__ void deliver_row(float* row, const BlockMix& mix, bool turned, const Lane& lane,
                                            const Store& store) {
  const int32_t dim = mix.head_dim();
  float norm = 1.0F;
  __syncwarp();
  if (turned) {
    int32_t done = 1;
#pragma unroll 1
    for (; 8 * done <= mix.width(); done *= 8) turn_step<8>(row, dim, done, lane);
#pragma unroll 1
    for (; 2 * done <= mix.width(); done *= 2) turn_step<2>(row, dim, done, lane);
    norm = rsqrtf(static_cast<float>(mix.width()));
  }
  if (turned && mix.mixes()) {
#pragma unroll 1
    for (int32_t channel = lane.index; channel < dim; channel += 32) {
      const int32_t to = channel / mix.width();
      float x = 0.0F;
#pragma unroll 1
      for (int32_t from = 0; from < dim / mix.width(); ++from) {
        const int32_t place = transform_place(from * mix.width() + channel % mix.width());
        x = fmaf(mix.factor(to, from), row[place], x);
      }
      store(channel, x * norm);
    }
    return;
  }
#pragma unroll 4
  for (int32_t channel = lane.index; channel < dim; channel += 32) store(channel, row[transform_place(channel)] * norm);
}

/// Queries in shared memory while they are loaded: rows of floats for rotations, then rows of FP16.
struct SliceQueries {
  int32_t keys;    // floats of the key side; those of a latent's common channels come first
  int32_t halves;  // FP16 rows of common channels
  int32_t common_stride;
  int32_t key_halves;  // FP16 rows of the key side, but of latents in SlicePlaces::key_rows
  int32_t key_stride;
  int32_t bytes;

  template <typename S>
  KVQ_HOST_DEVICE static SliceQueries of(const HeadShape& head) {
    SliceQueries at{};
    const int32_t common = head.is_latent ? head.values : 0;
    at.keys = FloatRows::bytes(S::kRows, common);
    at.halves = at.keys + FloatRows::bytes(S::kRows, head.keys);
    // Rows in different banks.
    at.common_stride = (common + 31) / 32 * 32 + 8;
    at.key_stride = (head.keys + S::kKeySlice - 1) / S::kKeySlice * S::kKeySlice + 8;
    at.key_halves = at.halves + (head.is_latent ? 2 * S::kRows * at.common_stride : 0);
    at.bytes = at.key_halves + 2 * S::kRows * at.key_stride;
    return at;
  }
};

/// What a block's warps share.
template <typename S>
struct SliceHeader {
  float row_scale[S::kRows];  // inverse of the row's scaling, times the scale of logits
  float row_down[S::kRows];
  float row_bias[S::kRows];  // added to the scores of latents, from offsets of their scales
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
