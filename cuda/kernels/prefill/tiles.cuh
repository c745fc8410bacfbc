// Layout of tiles, and the range of tiles that a block's rows see.
#pragma once

#include "kernels/attend/units.cuh"
#include "kernels/attend/visibility.cuh"
#include "kernels/prefill/prefill.h"

namespace kvq::cuda {

/// Offset of the chunk with eight channels of a row in planes of `plane` channels and `rows` rows.
__device__ __forceinline__ int32_t plane_chunk_at(int32_t plane, int32_t rows, int32_t row, int32_t channel) {
  const int32_t swizzle = plane == 64 ? row & 7 : row >> 1 & 3;
  return (channel / plane * rows + row) * plane * 2 + ((channel / 8 % (plane / 8)) ^ swizzle) * 16;
}
/// Offset of the chunk with a channel's values of eight tokens of a page, with one row per channel.
__device__ __forceinline__ int32_t value_chunk_at(int32_t slot, int32_t channel) {
  return channel * 64 + ((slot / 8) ^ (channel / 2 & 3)) * 16;
}

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

/// The first tile with slots that a mask covers.
__device__ __forceinline__ int32_t masked_tile(int32_t first_masked) { return max(first_masked, 0) / kTileTokens; }

/// Returns part `part` of the tiles that rows at positions `first` to `last` can see: all from tile `masked` on.
__device__ __forceinline__ TileRun visible_tiles(const TileTokens* tokens, int32_t tiles, int32_t first, int32_t last,
                                                 int32_t window, int32_t masked, int32_t part, int32_t parts) {
  TileRun run{};
  run.end = masked < tiles ? tiles : count_while(tiles, [&](int32_t i) { return __ldg(&tokens[i].first) <= last; });
  if (window != 0) {
    const int64_t before = newest_hidden(first, window);
    run.begin = count_while(min(run.end, masked), [&](int32_t i) { return __ldg(&tokens[i].last) <= before; });
  }
  if (parts > 1) {
    const int32_t share = (run.end - run.begin + parts - 1) / parts;
    run.begin = min(run.begin + part * share, run.end);
    run.end = min(run.begin + share, run.end);
  }
  return run;
}

/// Tiles of one list.
struct TileList {
  int32_t first;  // in memory
  int32_t count;  // −1: they are not in memory
};

__device__ __forceinline__ TileList tile_list(const AttendArguments& arguments, const Tiles& tiles, const Unit& unit) {
  if (tiles.round == nullptr) {
    const int32_t count = tiles.counts[unit.sequence];
    return {tiles.begins[unit.sequence] + (unit.head - tiles.first_head) * count, count};
  }
  const int32_t* starts = arguments.lists.pages.page_starts + unit.sequence;
  const int32_t before = __ldg(starts);
  const int32_t count = __ldg(starts + 1) - before;
  const int32_t place = before * arguments.kv_heads + unit.head * count;
  const int32_t begin = __ldg(tiles.round);
  return {place - begin, place >= begin && place < __ldg(tiles.round + 1) ? count : -1};
}

/// Work of a block: a unit of kRows rows and a part of its tiles.
struct Work {
  Unit unit;
  int32_t rows;
  int32_t first_tile;
  int32_t tiles;  // −1: this launch does not have them
  int32_t part;
};

/// Work of block `index`. Later rows see more tokens, so they run first. Blocks of a head are adjacent to keep its
/// tiles in the L2 cache.
template <int kRows>
__device__ __forceinline__ Work work_of(const AttendArguments& arguments, const Tiles& tiles, int32_t index) {
  Work work{};
  work.part = index % tiles.parts;
  index /= tiles.parts;
  const int32_t row_block = tiles.row_blocks - 1 - index % tiles.row_blocks;
  if (tiles.round != nullptr && row_block >= __ldg(arguments.lists.pages.row_starts + arguments.n_sequences)) {
    work.tiles = -1;
    return work;
  }
  work.unit = unit_of<kRows>(arguments, row_block, tiles.first_head + index / tiles.row_blocks);
  work.rows = row_count<kRows>(arguments, work.unit);
  const TileList list = tile_list(arguments, tiles, work.unit);
  work.first_tile = list.first;
  work.tiles = list.count;
  return work;
}

/// Position of a row; those behind the last one repeat it.
__device__ __forceinline__ int32_t row_position(const AttendArguments& arguments, const Work& work, int32_t row) {
  const auto of_unit = static_cast<uint32_t>(work.unit.first_row + min(row, work.rows - 1));
  return query_position(arguments, work.unit, static_cast<int32_t>(divide(of_unit, arguments.group)));
}

/// Lowest and highest position of some rows.
__device__ __forceinline__ QueryRange positions_of(const int32_t* positions, int32_t first, int32_t end) {
  QueryRange range{INT32_MAX, INT32_MIN};
  for (int32_t row = first + static_cast<int32_t>(threadIdx.x % 32); row < end; row += 32) {
    range.first = min(range.first, positions[row]);
    range.last = max(range.last, positions[row]);
  }
  return {__reduce_min_sync(kAll, range.first), __reduce_max_sync(kAll, range.last)};
}

}  // namespace kvq::cuda
