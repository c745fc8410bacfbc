// Tiles in shared memory, and the range of tiles that a block's rows see.
#pragma once

#include "kernels/attend/units.cuh"
#include "kernels/device/bulk_copies.cuh"
#include "kernels/device/warpgroup.cuh"
#include "kernels/prefill/prefill.h"

namespace kvq::cuda {

constexpr int32_t kConsumers = 2;  // warpgroups
constexpr int32_t kGroupRows = kBlockRows / kConsumers;
constexpr int32_t kTileStages = 2;

/// Shared memory of a block.
template <int D>
struct PrefillShared {
  alignas(1024) uint8_t queries[kConsumers][kGroupRows * D * 2];  // [D / 64] planes with one row per query
  alignas(1024) uint8_t keys[kTileStages][tile_bytes(D)];
  alignas(1024) uint8_t values[kTileStages][tile_bytes(D)];
  float row_scale[kBlockRows];
  int32_t row_position[kBlockRows];
  uint64_t keys_arrived[kTileStages];
  uint64_t values_arrived[kTileStages];
  uint64_t keys_free[kTileStages];
  uint64_t values_free[kTileStages];
};

using TileState = PipelineState<kTileStages>;

/// Returns the first of n indices for which `holds` is false; `holds` must be monotonic. A warp searches with 32 probes
/// per round.
template <typename Predicate>
__device__ __forceinline__ int32_t count_while(int32_t n, const Predicate& holds) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  int32_t low = 0;
  int32_t high = n;
#pragma unroll 1
  while (low < high) {
    const int32_t step = (high - low + 31) / 32;
    const int32_t mine = low + lane * step;
    const int32_t held = __popc(__ballot_sync(kAll, mine < high && holds(mine)));
    if (held == 0) break;
    high = min(high, low + held * step);
    low += (held - 1) * step + 1;
  }
  return low;
}

/// Consecutive tiles of a head.
struct TileRun {
  int32_t begin;
  int32_t end;
};

/// Returns part `part` of the tiles that rows at positions `first` to `last` can see.
__device__ __forceinline__ TileRun visible_tiles(const TileTokens* tokens, int32_t tiles, int32_t first, int32_t last,
                                                 int32_t window, int32_t part, int32_t parts) {
  TileRun run{};
  run.end = count_while(tiles, [&](int32_t i) { return __ldg(&tokens[i].first) <= last; });
  if (window > 0) {
    const int64_t before = static_cast<int64_t>(first) - window;
    run.begin = count_while(run.end, [&](int32_t i) { return __ldg(&tokens[i].last) <= before; });
  }
  if (parts > 1) {
    const int32_t share = (run.end - run.begin + parts - 1) / parts;
    run.begin = min(run.begin + part * share, run.end);
    run.end = min(run.begin + share, run.end);
  }
  return run;
}

}  // namespace kvq::cuda
