// Copies of a run of pages to a block's shared memory, ahead of use.
#pragma once

#include "kernels/attend/ring.cuh"

namespace kvq::cuda {

/// Shared memory of a block's copies.
struct CopyRing {
  uint32_t memory;
  int32_t bytes;
  uint32_t barriers;  // [kMaxStages], one per stage
};

__device__ __forceinline__ PageLayout layout_of_pages(const AttendArguments& arguments, FormatCode format) {
  return {page_places(format, arguments.head), format, format.group_shift()};
}

/// Copies of pages [first, end) of a unit's list, which have one layout, in steps of some pages. A copy is a page, or
/// one side of a large page: of a step first all keys, then all values. `done` copies are those whose stages all
/// threads have left.
class RunCopies {
 public:
  __device__ __forceinline__ RunCopies(const AttendArguments& arguments, const Unit& unit, const Lane& lane,
                                       const CopyRing& ring, const PageLayout& layout, int32_t first, int32_t end,
                                       int32_t pages_per_step)
      : layout_(layout),
        lane_(lane),
        ring_(ring),
        records_(pages_of(arguments, unit) + first),
        pages_(end - first),
        pages_per_step_(pages_per_step) {
    by_side_ = !arguments.head.is_latent && !layout.format.both_have_gains() &&
               2 * pages_per_step * layout_.bytes > ring.bytes;
    stage_bytes_ = by_side_ ? max(layout_.keys.bytes, layout_.values.bytes) : layout_.bytes;
    stages_ = min(kMaxStages, ring.bytes / stage_bytes_);
    copies_ = by_side_ ? 2 * pages_ : pages_;
  }

  __device__ __forceinline__ int32_t pages() const { return pages_; }
  __device__ __forceinline__ bool by_side() const { return by_side_; }

  /// Starts as many copies as there is room for. Called by all warps; the first one copies.
  __device__ __forceinline__ void start() {
    if (lane_.warp != 0) return;
#pragma unroll 1
    for (; started_ < min(copies_, done_ + stages_); ++started_) {
      int32_t page = started_;
      bool values = false;
      if (by_side_) {
        const int32_t step = started_ / (2 * pages_per_step_);
        const int32_t of_step = started_ - step * 2 * pages_per_step_;
        const int32_t pages = min(pages_per_step_, pages_ - step * pages_per_step_);
        values = of_step >= pages;
        page = step * pages_per_step_ + (values ? of_step - pages : of_step);
      }
      if (page / 32 != batch_) {
        batch_ = page / 32;
        const int32_t mine = min(32 * batch_ + lane_.index, pages_ - 1);
        data_ = __ldg(reinterpret_cast<const unsigned long long*>(&records_[mine].data));
      }
      const int32_t stage = started_stage_;
      started_stage_ = behind(stage, 1);
      start_copy(address_of(stage), data_ + static_cast<uint64_t>(values ? layout_.values_at : 0),
                 by_side_ ? (values ? layout_.values.bytes : layout_.keys.bytes) : layout_.bytes, barrier_of(stage),
                 lane_.index, page % 32);
    }
  }

  /// Waits for copies [from, from + count) of those that are not done.
  __device__ __forceinline__ void wait(int32_t from, int32_t count, uint32_t& parity) const {
    for (int32_t i = from; i < from + count; ++i) {
      const int32_t stage = behind(stage_, i);
      wait_copy(barrier_of(stage), parity >> stage & 1U);
      parity ^= 1U << stage;
    }
  }
  /// Shared address of copy `i` of those that are not done.
  __device__ __forceinline__ uint32_t address(int32_t i) const { return address_of(behind(stage_, i)); }
  __device__ __forceinline__ void leave(int32_t copies) {
    done_ += copies;
    stage_ = behind(stage_, copies);
  }

 private:
  /// The stage `n` behind another, at most as many as there are.
  __device__ __forceinline__ int32_t behind(int32_t stage, int32_t n) const {
    return stage + n >= stages_ ? stage + n - stages_ : stage + n;
  }
  __device__ __forceinline__ uint32_t address_of(int32_t stage) const {
    return ring_.memory + static_cast<uint32_t>(stage * stage_bytes_);
  }
  __device__ __forceinline__ uint32_t barrier_of(int32_t stage) const {
    return ring_.barriers + static_cast<uint32_t>(8 * stage);
  }

  const PageLayout& layout_;
  const Lane lane_;
  const CopyRing ring_;
  const DevicePage* records_;
  int32_t pages_;
  int32_t pages_per_step_;
  bool by_side_;
  int32_t stage_bytes_;
  int32_t stages_;
  int32_t copies_;
  int32_t batch_ = -1;  // of 32 pages, of which each lane knows one
  uint64_t data_ = 0;
  int32_t started_ = 0;
  int32_t started_stage_ = 0;  // of the next copy
  int32_t done_ = 0;
  int32_t stage_ = 0;  // of the first copy that is not done
};

}  // namespace kvq::cuda
