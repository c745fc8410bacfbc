// Assignment of pages to blocks: a part of one unit each, or a share of all units' pages in sequence.
#pragma once

#include "kernels/attend/units.cuh"

namespace kvq::cuda {

/// Pages [begin, end) of a unit, walked by one block.
struct Segment {
  Unit unit;
  int32_t index;  // among the unit's segments
  int32_t begin;
  int32_t end;
  int32_t part;
  int32_t parts;
  int32_t first_partial;  // partial of the unit's segment 0
};

/// A block's share of all units' pages in sequence.
struct Share {
  int32_t begin;
  int32_t pages;
  int32_t next_unit;
  int32_t last_unit;
};

/// Returns the segment given by the block's place in a grid of units and parts, if it is not empty.
template <int kRows>
__device__ __forceinline__ bool take_part(const AttendArguments& arguments, const Lane& lane, Segment& to) {
  const auto row_block = static_cast<int32_t>(blockIdx.x);
  const auto head = static_cast<int32_t>(blockIdx.y);
  if (arguments.pooled != 0 && row_block * arguments.kv_heads >= unit_count(arguments)) return false;
  to.unit = unit_of<kRows>(arguments, row_block, head);
  to.index = row_block * arguments.kv_heads + head;
  to.part = static_cast<int32_t>(blockIdx.z);
  to.parts = arguments.parts;
  to.first_partial = to.index * arguments.parts;
  const int32_t pages = page_count(arguments, to.unit);
  int32_t part_pages = arguments.part_pages;
  if (part_pages == 0) {
    const auto even = static_cast<uint32_t>(pages + arguments.parts - 1) / static_cast<uint32_t>(arguments.parts);
    part_pages = max(static_cast<int32_t>(even), lane.warps);
    to.parts = static_cast<int32_t>(static_cast<uint32_t>(pages + part_pages - 1) / static_cast<uint32_t>(part_pages));
  }
  to.begin = to.part * part_pages;
  to.end = to.begin + min(pages - to.begin, part_pages);
  if (to.begin < to.end) return true;
  if (pages == 0 && to.part == 0) write_zeros<kRows>(arguments, to.unit);
  return false;
}

/// The unit that reads page `page` of all pages in sequence, by the plan of a pool.
__device__ __forceinline__ int32_t planned_unit(const AttendArguments& arguments, int32_t page) {
  const PoolPages& pool = arguments.lists.pages;
  const int32_t heads = arguments.kv_heads;
  const int32_t sequence = last_not_above(pool.page_starts, arguments.n_sequences, page / heads);
  const int32_t of_sequence = page - __ldg(pool.page_starts + sequence) * heads;
  return __ldg(pool.row_starts + sequence) * heads + of_sequence / __ldg(&pool.sequences[sequence].pages);
}

/// Pages before those of unit `index` in the row of all units' pages.
__device__ __forceinline__ int32_t pages_before(const AttendArguments& arguments, const int32_t* page_ends,
                                                const Unit& unit, int32_t index) {
  if (arguments.planned == 0) return index == 0 ? 0 : page_ends[index - 1];
  const PoolPages& pool = arguments.lists.pages;
  const int32_t of_sequence = index - __ldg(pool.row_starts + unit.sequence) * arguments.kv_heads;
  return __ldg(pool.page_starts + unit.sequence) * arguments.kv_heads + of_sequence * page_count(arguments, unit);
}

/// Cuts the pages of all units of a pool into equal shares, one per block. Returns false if the block has no pages.
__device__ __forceinline__ bool take_planned_share(const AttendArguments& arguments, const Lane& lane, Share& to) {
  const int32_t total = __ldg(arguments.lists.pages.page_starts + arguments.n_sequences) * arguments.kv_heads;
  const auto blocks = static_cast<int32_t>(gridDim.x);
  to.pages = max((total + blocks - 1) / blocks, lane.warps);
  to.begin = static_cast<int32_t>(blockIdx.x) * to.pages;
  if (to.begin >= total) return false;
  to.next_unit = planned_unit(arguments, to.begin);
  to.last_unit = planned_unit(arguments, min(to.begin + to.pages, total) - 1);
  return true;
}

/// Chooses a block's share of pages. Returns whether units are padded to whole shares.
__device__ __forceinline__ bool choose_share(int32_t units, const Lane& lane, int32_t total, int32_t most,
                                             int32_t least, int32_t& share) {
  const auto blocks = static_cast<int32_t>(gridDim.x);
  share = max((total + blocks - 1) / blocks, lane.warps);
  int32_t padded_share = INT32_MAX;
  if (most == least && units <= blocks) {
    const int32_t parts = blocks / units;
    padded_share = (most + parts - 1) / parts;
  } else if (units < blocks) {
    padded_share = (total + blocks - units - 1) / (blocks - units);
  }
  padded_share = max(padded_share, lane.warps);
  if (padded_share > share + kCrossing) return false;
  share = padded_share;
  return true;
}

/// Returns the unit that holds page `page` of all units in sequence.
__device__ __forceinline__ int32_t first_unit(const int32_t* page_ends, int32_t units, int32_t page) {
  int32_t low = 0;
  int32_t high = units - 1;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (page_ends[middle] > page) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// Cuts all units' pages in sequence into equal shares, one per block. Units are padded to whole shares where that
/// costs fewer pages than it saves. Fills page_ends in shared memory; returns false if the block has no pages.
template <int kRows>
__device__ __forceinline__ bool take_share(const AttendArguments& arguments, const Lane& lane, int32_t* page_ends,
                                           Share& to) {
  if (arguments.planned != 0) return take_planned_share(arguments, lane, to);
  const int32_t units = unit_count(arguments);
  int32_t total = 0;
  int32_t most = 0;
  int32_t least = INT32_MAX;
  // Every warp counts, so that none has to wait.
#pragma unroll 1
  for (int32_t base = 0; base < units; base += 32) {
    const int32_t u = base + lane.index;
    const bool exists = u < units;
    const int32_t count = exists ? page_count(arguments, find_unit<kRows>(arguments, u)) : 0;
    total += __reduce_add_sync(kAll, count);
    most = max(most, __reduce_max_sync(kAll, count));
    least = min(least, __reduce_min_sync(kAll, exists ? count : INT32_MAX));
  }
  const bool padded = choose_share(units, lane, total, most, least, to.pages);
  int32_t before = 0;
#pragma unroll 1
  for (int32_t base = 0; base < units; base += 32) {
    const int32_t u = base + lane.index;
    int32_t sum = u < units ? page_count(arguments, find_unit<kRows>(arguments, u)) : 0;
    if (padded) sum = (sum + to.pages - 1) / to.pages * to.pages;
#pragma unroll 1
    for (int32_t d = 1; d < 32; d *= 2) {
      const int32_t other = __shfl_up_sync(kAll, sum, d);
      if (lane.index >= d) sum += other;
    }
    if (lane.warp == 0 && u < units) page_ends[u] = before + sum;
    before += __shfl_sync(kAll, sum, 31);
  }
  if (least == 0) {
    for (auto u = static_cast<int32_t>(blockIdx.x); u < units; u += static_cast<int32_t>(gridDim.x)) {
      const Unit unit = find_unit<kRows>(arguments, u);
      if (page_count(arguments, unit) == 0) write_zeros<kRows>(arguments, unit);
    }
  }
  __syncthreads();
  to.begin = static_cast<int32_t>(blockIdx.x) * to.pages;
  if (to.begin >= before) return false;
  to.next_unit = first_unit(page_ends, units, to.begin);
  to.last_unit = first_unit(page_ends, units, min(to.begin + to.pages, before) - 1);
  return true;
}

/// Advances to the next unit of the block's share; false at its end.
template <int kRows>
__device__ __forceinline__ bool next_segment(const AttendArguments& arguments, const int32_t* page_ends, Share& share,
                                             Segment& to) {
#pragma unroll 1
  while (share.next_unit <= share.last_unit) {
    to.index = share.next_unit++;
    to.unit = find_unit<kRows>(arguments, to.index);
    const int32_t from = pages_before(arguments, page_ends, to.unit, to.index);
    const int32_t pages = page_count(arguments, to.unit);
    to.begin = max(share.begin - from, 0);
    to.end = min(share.begin + share.pages - from, pages);
    if (to.begin >= to.end) continue;  // an empty unit, or the share ends in its padding
    const int32_t first_block = from / share.pages;
    to.part = static_cast<int32_t>(blockIdx.x) - first_block;
    to.parts = (from + pages - 1) / share.pages - first_block + 1;
    // A unit in several blocks ends in a later one than it begins in, and the next such unit begins there or later: no
    // two segments of them share an index.
    to.first_partial = 2 * first_block;
    return true;
  }
  return false;
}

}  // namespace kvq::cuda
