// Compile-time sizes of the attention kernel, its shared memory, and a thread's place.
#pragma once

#include "kernels/attend/attend.h"

#include <cuda_fp16.h>

namespace kvq::cuda {

/// Two warps per scheduler are faster than three, even where three have all the registers that they need.
constexpr int32_t kMaxWarps = 8;
constexpr int32_t kMaxStages = 8;
/// Bytes past the end of a page that lanes of missing groups read as minima of values.
constexpr int32_t kOverrun = 512;
constexpr uint32_t kAll = 0xFFFFFFFFU;

/// Kinds of pages that a kernel supports, each including those before: without gains; gain–shape codes; relative to a
/// single trained centre per head; to several centres; to several centres read from device memory, because shared
/// memory is too small.
enum class Lists { kPlain, kGains, kCentre, kCentres, kFarCentres };

/// DP: row width, equal to the head size if kFull, otherwise at least that; NT: tiles of eight query rows.
template <int DP, bool kFull, int NT, Lists kLists>
struct Geometry {
  static constexpr bool kGains = kLists >= Lists::kGains;
  static constexpr bool kCentre = kLists >= Lists::kCentre;
  static constexpr bool kCentres = kLists >= Lists::kCentres;
  static constexpr bool kFarCentres = kLists == Lists::kFarCentres;
  static constexpr int32_t kWidth = DP;
  static constexpr bool kExact = kFull;
  static constexpr int32_t kTiles = NT;
  static constexpr int32_t kRows = 8 * NT;
  static constexpr int32_t kSteps = DP / 16;     // products over channels
  static constexpr int32_t kChannels = DP / 32;  // blocks of 32 channels

  const int32_t& dim;  // head size

  __device__ __forceinline__ bool has_channel(int32_t channel) const { return kFull || channel < dim; }
  __device__ __forceinline__ int32_t head_dim() const { return kFull ? DP : dim; }
  /// First channel of those that a warp multiplies; see ChannelSlice.
  __device__ __forceinline__ static constexpr int32_t begin() { return 0; }
  /// Channels of a block of the rotation (core/head_rotation.h).
  __device__ __forceinline__ int32_t hadamard_block() const { return kFull ? DP : dim & -dim; }
};

/// A part of the channels of one side of a head, for kernels whose warps divide a head: at most DP channels from
/// `first` on, up to `end`. Row tiles as above.
template <int DP, int NT>
struct ChannelSlice {
  static constexpr bool kGains = true;
  static constexpr bool kCentre = false;
  static constexpr bool kCentres = false;
  static constexpr bool kFarCentres = false;
  static constexpr int32_t kWidth = DP;
  static constexpr bool kExact = false;
  static constexpr int32_t kTiles = NT;
  static constexpr int32_t kRows = 8 * NT;
  static constexpr int32_t kSteps = DP / 16;
  static constexpr int32_t kChannels = DP / 32;

  int32_t dim;  // channels of the side
  int32_t first;
  int32_t end;

  __device__ __forceinline__ bool is_empty() const { return first >= end; }
  __device__ __forceinline__ bool has_channel(int32_t channel) const { return channel < end; }
  __device__ __forceinline__ int32_t head_dim() const { return dim; }
  __device__ __forceinline__ int32_t begin() const { return first; }
};

/// A thread's place in its block and in tensor-core fragments, (g, t).
struct Lane {
  int32_t warps;  // per block
  int32_t warp;
  int32_t index;  // in the warp
  int32_t g;
  int32_t t;
};

__device__ __forceinline__ Lane this_lane() {
  const auto index = static_cast<int32_t>(threadIdx.x % 32);
  return {static_cast<int32_t>(blockDim.x / 32), static_cast<int32_t>(threadIdx.x / 32), index, index / 4, index % 4};
}

/// Query rows of the current unit.
template <int DP, int NT>
struct SharedQueries {
  static constexpr int32_t kStride = DP + 8;  // in FP16 values; keeps rows in different banks

  alignas(16) __half plain[8 * NT][kStride];    // each row scaled below 1
  alignas(16) __half rotated[8 * NT][kStride];  // `plain` after the Hadamard rotation
  float row_scale[8 * NT];                      // inverse of the row's scaling, times the scale of logits
  int32_t row_position[8 * NT];
};

/// Shared memory of a block, ahead of the rings.
template <int DP, int NT>
struct Shared {
  SharedQueries<DP, NT> queries;
  float maxima[kMaxWarps][8 * NT];
  float sums[kMaxWarps][8 * NT];
  uint64_t arrived[kMaxWarps][kMaxStages];  // barriers of the rings
  int32_t page_ends[kMaxSplitUnits];        // cumulative pages up to and including each unit
};

template <typename G>
using SharedOf = Shared<G::kWidth, G::kTiles>;

/// Shared memory behind it for pages relative to trained centres. Rows and rotations are in the order of query_place.
template <typename G>
struct SharedCentres {
  static constexpr int32_t kStride = G::kWidth + 32;  // in FP16 values; keeps neighbouring rows in different banks

  alignas(16) __half queries[G::kRows][kStride];  // like SharedQueries::plain
  // For the current page and the next: cosines in place of first channels, sines in place of second ones.
  alignas(16) __half rotations[kMaxWarps][2][G::kWidth];
  alignas(16) uint2 frequencies[G::kWidth / 2];
};

constexpr int32_t whole_lines(size_t bytes) { return static_cast<int32_t>((bytes + 127) / 128 * 128); }

/// Offset of SharedCentres, and of the slots' rotations, key rows and value rows behind it.
template <typename G>
inline constexpr int32_t kSharedCentresAt = whole_lines(sizeof(SharedOf<G>));
template <typename G>
inline constexpr int32_t kCentreRowsAt = kSharedCentresAt<G> + (G::kCentre ? whole_lines(sizeof(SharedCentres<G>)) : 0);

/// Bytes from SharedCentres to the rings.
template <typename G>
KVQ_HOST_DEVICE int32_t centre_row_bytes(const CentreRows& rows) {
  if (!G::kCentre) return 0;
  return rotation_bytes(rows) +
         (G::kFarCentres ? 0 : key_row_bytes(rows, G::kWidth) + value_row_bytes(rows, G::kWidth));
}

/// Rings of all warps. They hold pages during a walk, and outputs after it.
struct Rings {
  uint8_t* memory;
  int32_t bytes;  // per ring

  __device__ __forceinline__ uint8_t* of(int32_t warp) const { return memory + warp * bytes; }
};

/// State shared by a block's threads.
template <typename G>
struct Block {
  const AttendArguments& arguments;
  SharedOf<G>& shared;
  Rings rings;
  G geometry;
  Lane lane;
};

template <typename G>
__device__ __forceinline__ SharedCentres<G>& shared_centres(const Block<G>& block) {
  static_assert(G::kCentre);
  return *reinterpret_cast<SharedCentres<G>*>(reinterpret_cast<uint8_t*>(&block.shared) + kSharedCentresAt<G>);
}

}  // namespace kvq::cuda
