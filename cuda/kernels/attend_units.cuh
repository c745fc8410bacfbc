// Units of work, and which block walks which pages.
#pragma once

#include "kernels/attend_block.cuh"

namespace kvq::cuda {

template <int DP, bool kFull, int NT>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::row_blocks(const AttendSequenceArguments& sequence) const {
  return (sequence.query_count * group_ + kRows - 1) / kRows;
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ Unit Block<DP, kFull, NT>::find_unit(int32_t unit) const {
  int32_t i = 0;
  for (;; ++i) {
    const int32_t units = row_blocks(a_.sequences[i]) * a_.kv_heads;
    if (unit < units) break;
    unit -= units;
  }
  return {&a_.sequences[i], unit % a_.kv_heads, unit / a_.kv_heads * kRows};
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::page_count(const Unit& unit) const {
  return a_.uniform_pages >= 0 ? a_.uniform_pages : unit.sequence->view.heads[unit.head].pages;
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::unit_begin(int32_t unit) const {
  if (a_.uniform_pages >= 0) return unit * uniform_length_;
  return unit == 0 ? 0 : s_.page_ends[unit - 1];
}

/// All units' pages in a row are cut into equal shares, one a block. A block that crosses from one unit to the next
/// pays for queries and outputs twice, so units are padded to whole shares where that costs fewer pages than it
/// saves. Fills page_ends; returns the end of the last unit.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::share_pages(int32_t& share) {
  if (a_.uniform_pages >= 0) {
    const int32_t total = a_.uniform_pages * a_.units;
    const bool padded = choose_share(total, a_.uniform_pages, a_.uniform_pages, share);
    uniform_length_ = padded ? (a_.uniform_pages + share - 1) / share * share : a_.uniform_pages;
    empty_units_ = a_.uniform_pages == 0;
    return uniform_length_ * a_.units;
  }
  int32_t total = 0;
  int32_t most = 0;
  int32_t least = INT32_MAX;
  int32_t first_count = 0;
  // Every warp counts, so that none has to wait.
#pragma unroll 1
  for (int32_t base = 0; base < a_.units; base += 32) {
    const bool exists = base + lane_ < a_.units;
    const int32_t count = exists ? page_count(find_unit(base + lane_)) : 0;
    if (base == 0) first_count = count;
    total += __reduce_add_sync(kAll, count);
    most = max(most, __reduce_max_sync(kAll, count));
    least = min(least, __reduce_min_sync(kAll, exists ? count : INT32_MAX));
  }
  const bool padded = choose_share(total, most, least, share);
  int32_t before = 0;
#pragma unroll 1
  for (int32_t base = 0; base < a_.units; base += 32) {
    const int32_t u = base + lane_;
    int32_t sum = base == 0 ? first_count : (u < a_.units ? page_count(find_unit(u)) : 0);
    if (padded) sum = (sum + share - 1) / share * share;
#pragma unroll
    for (int32_t d = 1; d < 32; d *= 2) {
      const int32_t other = __shfl_up_sync(kAll, sum, d);
      if (lane_ >= d) sum += other;
    }
    if (warp_ == 0 && u < a_.units) s_.page_ends[u] = before + sum;
    before += __shfl_sync(kAll, sum, 31);
  }
  empty_units_ = least == 0;
  __syncthreads();
  return before;
}

/// Pages of a block's share. True if units are padded to whole shares.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ bool Block<DP, kFull, NT>::choose_share(int32_t total, int32_t most, int32_t least,
                                                                   int32_t& share) const {
  constexpr int32_t kCrossing = 48;  // pages that a block could have walked instead
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
  if (a_.uniform_pages >= 0) return page / uniform_length_;
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

}  // namespace kvq::cuda
