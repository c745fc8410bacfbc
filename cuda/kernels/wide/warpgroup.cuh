// Blocks of 64 rows by wgmma: two warpgroups multiply tiles, which others make. Each of the two has all rows: of scores
// it makes those of every other page, of outputs half of the channels.
#pragma once

#include "kernels/device/bulk_copies.cuh"
#include "kernels/device/warpgroup.cuh"
#include "kernels/wide/copies.cuh"
#include "kernels/wide/memory.cuh"

namespace kvq::cuda {

constexpr int32_t kRowThreads = 256;
// Named barriers.
constexpr int32_t kRowsBarrier = 1;
constexpr int32_t kMakersBarrier = 2;
constexpr int32_t kRunBarrier = 3;  // of all threads
constexpr int32_t kWeightsBarrier = 4;

/// Planes of 64 channels: of a latent's common ones, and of keys; and most channels of values. Loops over products must
/// be unrolled, or the compiler waits for each of them.
template <int kPlanesOfCommon, int kPlanesOfKeys, int kMostValues, int kNumberOfTiles, int kWarpsThatMake>
struct WarpgroupShape : WideShape<1, 4, 2, 2, kMostValues> {
  static constexpr int32_t kCommonPlanes = kPlanesOfCommon;
  static constexpr int32_t kKeyPlanes = kPlanesOfKeys;
  static constexpr bool kLatent = kCommonPlanes > 0;
  static constexpr int32_t kTiles = kNumberOfTiles;
  static constexpr int32_t kMakerWarps = kWarpsThatMake;
  static constexpr int32_t kThreads = kRowThreads + 32 * kMakerWarps;

  /// What warps tell each other besides, in shared memory.
  struct Extra {
    uint64_t full[kTiles];
    uint64_t free[kTiles];
    float factors[2][kManyRows];  // of rows whose reference a page raises; of every other page
    uint32_t raises[2][4];        // whether it does so for rows of a warp
  };

  __device__ __forceinline__ static void wait() { wait_at(kRowsBarrier, kRowThreads); }
};

/// Warps of the block decode pages, of which the ring has one or some.
template <int kPlanesOfCommon, int kPlanesOfKeys, int kMostValues>
struct DecodingShape : WarpgroupShape<kPlanesOfCommon, kPlanesOfKeys, kMostValues, 3, 8> {
  static constexpr bool kDecodes = true;
  static constexpr int32_t kLeastCopies = 1;
  // Registers of a thread.
  static constexpr int32_t kMakerRegisters = 64;
  static constexpr int32_t kRowRegisters = 192;
};
/// Pages have been decoded in device memory.
template <int kPlanesOfCommon, int kPlanesOfKeys, int kMostValues>
struct CopyingShape : WarpgroupShape<kPlanesOfCommon, kPlanesOfKeys, kMostValues, 4, 4> {
  static constexpr bool kDecodes = false;
  static constexpr int32_t kLeastCopies = 0;
  static constexpr int32_t kMakerRegisters = 24;
  static constexpr int32_t kRowRegisters = 240;
};

/// A tile's place in the ring, and the parity of its barriers' phases. `i`: counted over all runs.
template <typename S>
struct TilePlace {
  int32_t tile;
  uint32_t parity;

  __device__ __forceinline__ explicit TilePlace(int32_t i)
      : tile(i % S::kTiles), parity(static_cast<uint32_t>(i / S::kTiles) & 1U) {}
};

/// Which of a run's tiles a side is: the order of KeysAhead, or of pages, whose sides share tiles if they are `shared`.
struct TileOrder {
  bool shared;
  int32_t first;  // tiles of the runs before
  int32_t pages;

  __device__ __forceinline__ int32_t count() const { return shared ? pages : 2 * pages; }
  __device__ __forceinline__ RunSide side(int32_t i) const { return shared ? RunSide{i, true} : KeysAhead{}(i, pages); }
  __device__ __forceinline__ int32_t of_keys(int32_t page) const {
    return first + (shared ? page : max(2 * page - 1, 0));
  }
  __device__ __forceinline__ int32_t of_values(int32_t page) const {
    return first + (shared ? page : min(2 * page + 2, 2 * pages - 1));
  }
};

template <typename S>
class WarpgroupProducts {
 public:
  __device__ __forceinline__ explicit WarpgroupProducts(const WideBlock<S>& block, int32_t column)
      : block_(block), column_(column) {}

  /// Starts the products of all rows with a page's keys.
  __device__ __forceinline__ void start_keys(int32_t tile_index, float (&sums)[16]) const {
    const uint32_t tile = tile_address(tile_index);
    const uint64_t queries = describe_plane<128>(shared_address(block_.memory));
    const uint64_t common = describe_transposed(tile + static_cast<uint32_t>(block_.at.common));
    const uint64_t keys = describe_plane<128>(tile);
    begin_products();
#pragma unroll
    for (int32_t i = 0; i < 4 * S::kCommonPlanes; ++i) {
      multiply_planes<true>(sums, further(queries, query_step(i)), further(common, i * 16 * 64), i > 0);
    }
#pragma unroll
    for (int32_t i = 0; i < 4 * S::kKeyPlanes; ++i) {
      multiply_planes<false>(sums, further(queries, query_step(4 * S::kCommonPlanes + i)),
                             further(keys, i / 4 * kSlots * 128 + i % 4 * 32), S::kCommonPlanes > 0 || i > 0);
    }
    commit_products();
  }

  /// Starts the products of weights and values.
  __device__ __forceinline__ void start_values(int32_t tile_index, int32_t page,
                                               float (&outputs)[8 * S::kChannelTiles]) const {
    constexpr int32_t kColumns = S::kValues / 2;
    const int32_t values_at = S::kLatent ? block_.at.common : 0;
    const uint64_t weights =
        describe_plane<64>(shared_address(block_.memory + block_.at.weights + page % 2 * S::kRows * 2 * kSlots));
    const uint64_t values = describe_plane<64>(tile_address(tile_index) +
                                               static_cast<uint32_t>(values_at + column_ * kColumns * 2 * kSlots));
    begin_products();
#pragma unroll
    for (int32_t i = 0; i < kSlots / 16; ++i) {
      const uint64_t of_tokens = further(weights, 32 * i);
      if constexpr (kColumns == 256 && S::kDecodes) {
        // More threads have fewer registers, for which one product has too many sums.
        auto& first = *reinterpret_cast<float(*)[64]>(&outputs[0]);
        auto& second = *reinterpret_cast<float(*)[64]>(&outputs[64]);
        multiply_planes(first, of_tokens, further(values, 32 * i));
        multiply_planes(second, of_tokens, further(values, 32 * i + 128 * 2 * kSlots));
      } else {
        multiply_planes(outputs, of_tokens, further(values, 32 * i));
      }
    }
    commit_products();
  }

 private:
  /// What leads to 16 channels of queries.
  __device__ __forceinline__ static constexpr int32_t query_step(int32_t i) {
    return i / 4 * S::kRows * 128 + i % 4 * 32;
  }
  __device__ __forceinline__ uint32_t tile_address(int32_t tile) const {
    return same_in_lanes(shared_address(block_.memory + block_.at.tiles + tile * block_.at.tile_bytes));
  }

  const WideBlock<S>& block_;
  const int32_t column_;
};

}  // namespace kvq::cuda
