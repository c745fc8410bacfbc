// Page records in batches of a warp, and their runs of one format.
#pragma once

#include "kernels/attend/segments.cuh"
#include "kernels/attend/visibility.cuh"

namespace kvq::cuda {

/// Up to 32 pages of a warp: lane i holds the record of page base + i · warps, or zeros.
struct Batch {
  int32_t base;
  uint4 record;
  uint32_t wanted;
  uint32_t masked;  // pages that need a mask
};

__device__ __forceinline__ void load_batch(const AttendArguments& arguments, const Segment& segment, const Lane& lane,
                                           Batch& batch) {
  const int32_t mine = batch.base + lane.index * lane.warps;
  batch.record = uint4{0, 0, 0, 0};
  if (mine >= segment.end) return;
  const DevicePage page = page_record(arguments, segment.unit, mine);
  batch.record = {static_cast<uint32_t>(page.data), static_cast<uint32_t>(page.data >> 32U),
                  static_cast<uint32_t>(page.first_position), page.state};
}

/// Selects the pages that some query sees, and among them those that some query may not see entirely.
__device__ __forceinline__ void choose_pages(const AttendArguments& arguments, const Unit& unit,
                                             const VisibleRange& queries, const Lane& lane, Batch& batch) {
  const uint4& record = batch.record;
  bool visible = record.w != 0;
  // The newest query sees all tokens, whatever their positions, but keys around centres may be rotated by per-slot
  // positions.
  bool masked = arguments.any_centres != 0 ? is_partial(record) : is_short(record);
  if (arguments.single_newest == 0) {
    const int32_t index = batch.base + lane.index * lane.warps;
    visible = visible && is_visible(arguments, unit, record, index, queries);
    masked = needs_mask(record, index, queries, arguments.window);
  }
  batch.wanted = __ballot_sync(kAll, visible);
  batch.masked = __ballot_sync(kAll, masked);
}

/// Returns the first of a set of pages, a bit mask by lane.
__device__ __forceinline__ int32_t first_page(uint32_t pages) { return __ffs(static_cast<int>(pages)) - 1; }

/// Returns the fields of a page's record that masks need.
__device__ __forceinline__ DevicePage page_at(const Batch& batch, int32_t at) {
  const uint32_t state = __shfl_sync(kAll, batch.record.w, at);
  return page_of(__shfl_sync(kAll, batch.record.z, at), state);
}

/// Returns the first wanted page and those after it, up to a page that differs in format or in `masked`.
__device__ __forceinline__ uint32_t first_run(const Batch& batch, const Lane& lane) {
  const uint32_t kind = (batch.record.w & FormatCode::kMask) | (batch.masked >> lane.index & 1U) << FormatCode::kBits;
  const uint32_t of_first = __shfl_sync(kAll, kind, first_page(batch.wanted));
  const uint32_t differs = __ballot_sync(kAll, kind != of_first) & batch.wanted;
  // All pages before the first that differs; all wanted ones if none does.
  return batch.wanted & ((differs & -differs) - 1U);
}

__device__ __forceinline__ FormatCode format_of(const Batch& batch, uint32_t run) {
  return {__shfl_sync(kAll, batch.record.w & FormatCode::kMask, first_page(run))};
}

}  // namespace kvq::cuda
