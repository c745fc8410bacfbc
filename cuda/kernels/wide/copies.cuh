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

/// A side of a page of a run.
struct RunSide {
  int32_t page;
  bool values;
};

/// Sides in steps of some pages: of each step first all keys, then all values.
struct SteppedSides {
  int32_t pages_per_step;

  __device__ __forceinline__ RunSide operator()(int32_t i, int32_t pages) const {
    const int32_t step = i / (2 * pages_per_step);
    const int32_t of_step = i - step * 2 * pages_per_step;
    const int32_t of_this = min(pages_per_step, pages - step * pages_per_step);
    const bool values = of_step >= of_this;
    return {step * pages_per_step + (values ? of_step - of_this : of_step), values};
  }
};

/// The keys of each page before the values of the page before it.
struct KeysAhead {
  __device__ __forceinline__ RunSide operator()(int32_t i, int32_t pages) const {
    const int32_t keys = (i + 1) / 2;
    if (i == 0 || (i % 2 != 0 && keys < pages)) return {keys, false};
    return {i % 2 != 0 ? pages - 1 : i / 2 - 1, true};
  }
};

/// Copies of a run of pages, which have one layout. A copy is a page, or one side of a large page, in the order
/// `Sides`. `done` copies are those whose stages all threads have left.
template <typename Sides>
class RunCopies {
 public:
  __device__ __forceinline__ RunCopies(const HeadShape& head, const DevicePage* records, const Lane& lane,
                                       const CopyRing& ring, const PageLayout& layout, int32_t pages,
                                       const Sides& sides, int32_t least_pages)
      : layout_(layout), lane_(lane), ring_(ring), records_(records), pages_(pages), sides_(sides) {
    by_side_ = !head.is_latent && !layout.format.both_have_gains() && least_pages * layout_.bytes > ring.bytes;
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
      const auto [page, values] = by_side_ ? sides_(started_, pages_) : RunSide{started_, false};
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
  const Sides sides_;
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
