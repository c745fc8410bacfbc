// Sizes that the attention kernel is compiled for, the shared memory they make, and who a thread is.
#pragma once

#include "kernels/attend.h"

#include <cuda_fp16.h>

namespace kvq::cuda {

/// Two a scheduler, with all the registers that they can use, do more than three with fewer.
constexpr int32_t kMaxWarps = 8;
constexpr int32_t kMaxStages = 8;
/// Lanes of groups that a head does not have read minima of values past the end of a page.
constexpr int32_t kOverrun = 512;
constexpr uint32_t kAll = 0xFFFFFFFFU;

/// DP: width of a row, the head size if kFull, at least that otherwise; NT: tiles of eight query rows; kAnyGains: some
/// pages may be in gain–shape codes.
template <int DP, bool kFull, int NT, bool kAnyGains>
struct Geometry {
  static constexpr bool kGains = kAnyGains;
  static constexpr int32_t kWidth = DP;
  static constexpr bool kExact = kFull;
  static constexpr int32_t kTiles = NT;
  static constexpr int32_t kRows = 8 * NT;
  static constexpr int32_t kSteps = DP / 16;     // products over channels
  static constexpr int32_t kChannels = DP / 32;  // blocks of 32 channels

  const int32_t& dim;  // the head size

  __device__ __forceinline__ bool has_channel(int32_t channel) const { return kFull || channel < dim; }
  __device__ __forceinline__ int32_t head_dim() const { return kFull ? DP : dim; }
  /// Channels that a Hadamard rotation takes together.
  __device__ __forceinline__ int32_t hadamard_block() const { return kFull ? DP : dim & -dim; }
};

/// A thread's place in its block, and in tensor-core fragments: (g, t).
struct Lane {
  int32_t warps;  // of the block
  int32_t warp;
  int32_t index;  // in the warp
  int32_t g;
  int32_t t;
};

__device__ __forceinline__ Lane this_lane() {
  const auto index = static_cast<int32_t>(threadIdx.x % 32);
  return {static_cast<int32_t>(blockDim.x / 32), static_cast<int32_t>(threadIdx.x / 32), index, index / 4, index % 4};
}

/// Query rows of the unit at hand.
template <int DP, int NT>
struct SharedQueries {
  static constexpr int32_t kStride = DP + 8;  // halves; keeps rows in different banks

  alignas(16) __half plain[8 * NT][kStride];    // each row scaled to below 1
  alignas(16) __half rotated[8 * NT][kStride];  // the same after the Hadamard rotation
  float row_scale[8 * NT];                      // what the scaling took off, times the scale of logits
  int32_t row_position[8 * NT];
};

/// Shared memory of a block, ahead of the rings.
template <int DP, int NT>
struct Shared {
  SharedQueries<DP, NT> queries;
  float maxima[kMaxWarps][8 * NT];
  float sums[kMaxWarps][8 * NT];
  uint64_t arrived[kMaxWarps][kMaxStages];  // barriers of the rings
  int32_t page_ends[kMaxSplitUnits];        // running number of pages up to and with each unit
};

template <typename G>
using SharedOf = Shared<G::kWidth, G::kTiles>;

/// The rings of all warps in a row. They hold pages during a walk, and outputs after it.
struct Rings {
  uint8_t* memory;
  int32_t bytes;  // of each

  __device__ __forceinline__ uint8_t* of(int32_t warp) const { return memory + warp * bytes; }
};

/// What a thread's block works with.
template <typename G>
struct Block {
  const AttendArguments& arguments;
  SharedOf<G>& shared;
  Rings rings;
  G geometry;
  Lane lane;
};

}  // namespace kvq::cuda
