// Units of work, and which block walks which pages.
#pragma once

#include "kernels/attend_block.cuh"

namespace kvq::cuda {

template <int DP, bool kFull, int NT>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::row_blocks(const AttendSequenceArguments& sequence) const {
  return static_cast<int32_t>((static_cast<uint32_t>(sequence.query_count) * a_.group.number + kRows - 1) / kRows);
}

/// Of all sequences in a row, the unit of block `row_block` of rows.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ Unit Block<DP, kFull, NT>::unit_of(int32_t row_block, int32_t head) const {
  int32_t i = row_block;
  int32_t of_sequence = 0;
  if (a_.one_row_block == 0) {
    of_sequence = row_block;
    for (i = 0;; ++i) {
      const int32_t blocks = row_blocks(a_.sequences[i]);
      if (of_sequence < blocks) break;
      of_sequence -= blocks;
    }
  }
  return {i, head, of_sequence * kRows};
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ Unit Block<DP, kFull, NT>::find_unit(int32_t unit) const {
  return unit_of(unit / a_.kv_heads, unit % a_.kv_heads);
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::page_count(const Unit& unit) const {
  return a_.uniform_pages >= 0 ? a_.uniform_pages : sequence_of(unit).view.heads[unit.head].pages;
}

/// The block's place in a grid of units and parts says which pages it walks, if any.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ bool Block<DP, kFull, NT>::take_part(Segment& to) const {
  const auto row_block = static_cast<int32_t>(blockIdx.x);
  const auto head = static_cast<int32_t>(blockIdx.y);
  to.unit = unit_of(row_block, head);
  to.index = row_block * a_.kv_heads + head;
  to.part = static_cast<int32_t>(blockIdx.z);
  to.parts = a_.parts;
  to.first_partial = to.index * a_.parts;
  const int32_t pages = page_count(to.unit);
  int32_t part_pages = a_.part_pages;
  if (part_pages == 0) {
    const auto even = static_cast<uint32_t>(pages + a_.parts - 1) / static_cast<uint32_t>(a_.parts);
    part_pages = max(static_cast<int32_t>(even), warps_);
    to.parts = static_cast<int32_t>(static_cast<uint32_t>(pages + part_pages - 1) / static_cast<uint32_t>(part_pages));
  }
  to.begin = to.part * part_pages;
  to.end = to.begin + min(pages - to.begin, part_pages);
  if (to.begin < to.end) return true;
  if (pages == 0 && to.part == 0) write_zeros(to.unit);
  return false;
}

/// All units' pages in a row are cut into equal shares, one a block. Units are padded to whole shares where that costs
/// fewer pages than it saves. Fills page_ends; false if there is nothing for this block.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ bool Block<DP, kFull, NT>::take_share(Share& to) {
  int32_t total = 0;
  int32_t most = 0;
  int32_t least = INT32_MAX;
  // Every warp counts, so that none has to wait.
#pragma unroll 1
  for (int32_t base = 0; base < a_.units; base += 32) {
    const bool exists = base + lane_ < a_.units;
    const int32_t count = exists ? page_count(find_unit(base + lane_)) : 0;
    total += __reduce_add_sync(kAll, count);
    most = max(most, __reduce_max_sync(kAll, count));
    least = min(least, __reduce_min_sync(kAll, exists ? count : INT32_MAX));
  }
  const bool padded = choose_share(total, most, least, to.pages);
  int32_t before = 0;
#pragma unroll 1
  for (int32_t base = 0; base < a_.units; base += 32) {
    const int32_t u = base + lane_;
    int32_t sum = u < a_.units ? page_count(find_unit(u)) : 0;
    if (padded) sum = (sum + to.pages - 1) / to.pages * to.pages;
#pragma unroll 1
    for (int32_t d = 1; d < 32; d *= 2) {
      const int32_t other = __shfl_up_sync(kAll, sum, d);
      if (lane_ >= d) sum += other;
    }
    if (warp_ == 0 && u < a_.units) s_.page_ends[u] = before + sum;
    before += __shfl_sync(kAll, sum, 31);
  }
  if (least == 0) {
    for (auto u = static_cast<int32_t>(blockIdx.x); u < a_.units; u += static_cast<int32_t>(gridDim.x)) {
      if (page_count(find_unit(u)) == 0) write_zeros(find_unit(u));
    }
  }
  __syncthreads();
  to.begin = static_cast<int32_t>(blockIdx.x) * to.pages;
  if (to.begin >= before) return false;
  to.next_unit = first_unit(to.begin);
  to.last_unit = first_unit(min(to.begin + to.pages, before) - 1);
  return true;
}

/// Pages of a block's share. True if units are padded to whole shares.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ bool Block<DP, kFull, NT>::choose_share(int32_t total, int32_t most, int32_t least,
                                                                   int32_t& share) const {
  const auto blocks = static_cast<int32_t>(gridDim.x);
  share = max((total + blocks - 1) / blocks, warps_);
  int32_t padded_share = INT32_MAX;
  if (most == least && a_.units <= blocks) {
    const int32_t parts = blocks / a_.units;
    padded_share = (most + parts - 1) / parts;
  } else if (a_.units < blocks) {
    padded_share = (total + blocks - a_.units - 1) / (blocks - a_.units);
  }
  padded_share = max(padded_share, warps_);
  if (padded_share > share + kCrossing) return false;
  share = padded_share;
  return true;
}

/// The unit that holds page `page` of all units in a row.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::first_unit(int32_t page) const {
  int32_t low = 0;
  int32_t high = a_.units - 1;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (s_.page_ends[middle] > page) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// The next unit's pages of the block's share, if there are more.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ bool Block<DP, kFull, NT>::next_segment(Share& share, Segment& to) const {
#pragma unroll 1
  while (share.next_unit <= share.last_unit) {
    to.index = share.next_unit++;
    to.unit = find_unit(to.index);
    const int32_t from = to.index == 0 ? 0 : s_.page_ends[to.index - 1];
    const int32_t pages = page_count(to.unit);
    to.begin = max(share.begin - from, 0);
    to.end = min(share.begin + share.pages - from, pages);
    if (to.begin >= to.end) continue;  // an empty unit, or the share ends in its padding
    const int32_t first_block = from / share.pages;
    to.part = static_cast<int32_t>(blockIdx.x) - first_block;
    to.parts = (from + pages - 1) / share.pages - first_block + 1;
    // Blocks and units only ever rise along the line of pages, so no two segments share a number.
    to.first_partial = first_block + to.index;
    return true;
  }
  return false;
}

}  // namespace kvq::cuda
