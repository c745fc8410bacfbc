// Work of a block: its rows, and the pages that they see.
#pragma once

#include "kernels/device/copies.cuh"
#include "kernels/prefill/tiles.cuh"
#include "kernels/wide/wide.h"

namespace kvq::cuda {

struct BlockWork {
  Unit unit;
  int32_t rows;  // none where only the device knows how many blocks there are
};

/// Work of this block, of kRows rows at most.
template <int kRows>
__device__ __forceinline__ BlockWork block_work(const AttendArguments& arguments, const WideLaunch& launch) {
  const int32_t index = static_cast<int32_t>(blockIdx.x) / launch.parts;
  // Later rows see more tokens, so they run first.
  const int32_t row_block = launch.row_blocks - 1 - index % launch.row_blocks;
  const Unit unit = unit_of<kRows>(arguments, row_block, launch.first_head + index / launch.row_blocks);
  return {unit, row_count<kRows>(arguments, unit)};
}

/// The tile of a page of a unit's list.
__device__ __forceinline__ size_t tile_of_page(const WideLaunch& launch, const Unit& unit, int32_t page) {
  const WideTiles& tiles = launch.of_tiles;
  const int32_t of_head = (unit.head - launch.first_head) * tiles.counts[unit.sequence];
  return static_cast<size_t>(tiles.begins[unit.sequence] + of_head + page);
}

/// Stores the rows' positions; rows behind the last one repeat it.
template <int kRows>
__device__ __forceinline__ void put_row_positions(const AttendArguments& arguments, const BlockWork& work,
                                                  int32_t (&positions)[kRows]) {
  for (auto row = static_cast<int32_t>(threadIdx.x); row < kRows; row += static_cast<int32_t>(blockDim.x)) {
    const auto of_unit = static_cast<uint32_t>(work.unit.first_row + min(row, work.rows - 1));
    positions[row] = query_position(arguments, work.unit, static_cast<int32_t>(divide(of_unit, arguments.group)));
  }
}

/// Initializes the barriers of stages; ends with a barrier of all threads.
__device__ __forceinline__ void make_stage_barriers(uint64_t (&barriers)[kMaxStages]) {
  if (threadIdx.x == 0) {
    for (uint64_t& each : barriers) make_copy_barrier(shared_address(&each));
  }
  order_before_copies();
  __syncthreads();
}

/// Pages that rows at positions of `range` see.
__device__ __forceinline__ TileRun visible_pages(const AttendArguments& arguments, const Unit& unit,
                                                 const VisibleRange& range) {
  const DevicePage* pages = pages_of(arguments, unit);
  const int32_t count = page_count(arguments, unit);
  const bool has_mask = range.first_masked != INT32_MAX;
  TileRun run{};
  run.end = count_while(count, [&](int32_t i) {
    return __ldg(&pages[i].state) != 0 && (has_mask || __ldg(&pages[i].first_position) <= range.last);
  });
  if (arguments.window != 0) {
    const int64_t before = newest_hidden(range.first, arguments.window);
    run.begin = count_while(min(run.end, max(range.masked_from(), 0)), [&](int32_t i) {
      const DevicePage page = page_of(static_cast<uint32_t>(__ldg(&pages[i].first_position)), __ldg(&pages[i].state));
      return position_in_page(arguments, unit, page, i, page.count() - 1) <= before;
    });
  }
  return run;
}

/// Part `part` of `parts`.
__device__ __forceinline__ TileRun part_of(const TileRun& run, int32_t part, int32_t parts) {
  const int32_t share = (run.end - run.begin + parts - 1) / parts;
  const int32_t begin = min(run.begin + part * share, run.end);
  return {begin, min(begin + share, run.end)};
}

/// This block's part of the pages that rows at positions of `range` see.
__device__ __forceinline__ TileRun visible_part(const AttendArguments& arguments, const WideLaunch& launch,
                                                const Unit& unit, const VisibleRange& range) {
  return part_of(visible_pages(arguments, unit, range), static_cast<int32_t>(blockIdx.x) % launch.parts, launch.parts);
}

struct PageParts {
  TileRun first;
  TileRun second;
};

/// The same for blocks that take long to go from one format to another: pages in FP16 at either end of a list are the
/// last block's, which have few others between them.
__device__ __forceinline__ PageParts page_parts(const AttendArguments& arguments, const WideLaunch& launch,
                                                const Unit& unit, const Lane& lane, const VisibleRange& range) {
  const TileRun all = visible_pages(arguments, unit, range);
  const int32_t part = static_cast<int32_t>(blockIdx.x) % launch.parts;
  const DevicePage* records = pages_of(arguments, unit);
  const auto is_sealed = [&](int32_t i) {
    if (i < all.begin || i >= all.end) return false;
    return !FormatCode{__ldg(&records[i].state) & FormatCode::kMask}.is_float16();
  };
  const uint32_t ahead = __ballot_sync(kAll, is_sealed(all.begin + lane.index));
  const uint32_t behind = __ballot_sync(kAll, is_sealed(all.end - 1 - lane.index));
  const TileRun sealed{all.begin + first_page(ahead), all.end - first_page(behind)};
  const int32_t others = all.end - all.begin - (sealed.end - sealed.begin);
  const int32_t share = (all.end - all.begin) / launch.parts;
  if (launch.parts < 3 || ahead == 0 || behind == 0 || others == 0 || others > 2 * share + 2) {
    return {part_of(all, part, launch.parts), {}};
  }
  if (part < launch.parts - 1) return {part_of(sealed, part, launch.parts - 1), {}};
  return {{all.begin, sealed.begin}, {sealed.end, all.end}};
}

/// Which of the pages [begin, min(begin + 32, end)) have tokens that rows at positions of `range` may not see, a bit
/// each.
__device__ __forceinline__ uint32_t masked_pages(const AttendArguments& arguments, const DevicePage* records,
                                                 const Lane& lane, const VisibleRange& range, int32_t begin,
                                                 int32_t end) {
  const int32_t mine = begin + lane.index;
  bool masked = false;
  if (mine < end) {
    const uint4 record = __ldg(reinterpret_cast<const uint4*>(records) + mine);
    masked = needs_mask(record, mine, range, arguments.window);
  }
  return __ballot_sync(kAll, masked);
}

/// The first of a warp's pages from `begin` on whose format differs, or `end`.
__device__ __forceinline__ int32_t end_of_run(const DevicePage* records, const Lane& lane, FormatCode format,
                                              int32_t begin, int32_t end) {
#pragma unroll 1
  for (; begin < end; begin += 32) {
    const int32_t mine = begin + lane.index;
    const bool differs = mine < end && (__ldg(&records[mine].state) & FormatCode::kMask) != format.bits;
    const uint32_t others = __ballot_sync(kAll, differs);
    if (others != 0) return begin + first_page(others);
  }
  return end;
}

struct FormatRun {
  FormatCode format;
  int32_t first;
  int32_t end;
};

/// The run of pages of one format that begins with page `begin`, which must be before `end`.
__device__ __forceinline__ FormatRun run_from(const DevicePage* records, const Lane& lane, int32_t begin, int32_t end) {
  const FormatCode format{__ldg(&records[begin].state) & FormatCode::kMask};
  return {format, begin, end_of_run(records, lane, format, begin, end)};
}

}  // namespace kvq::cuda
