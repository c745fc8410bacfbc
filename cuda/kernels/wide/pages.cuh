// A run of pages of one format: their copies to shared memory, ahead of use, and their decoding to tiles.
#pragma once

#include "kernels/attend/ring.cuh"
#include "kernels/wide/memory.cuh"

namespace kvq::cuda {

/// Decodes a side of pages; its head size is the side's.
using WideSide = Geometry<kMaxChannels, false, 1, Lists::kGains>;

/// A run of pages [first, end) of a list, in steps of S::kPages. Copies are of pages, or of one side of large pages: of
/// a step first all keys, then all values.
template <typename S>
class PageRun {
 public:
  __device__ __forceinline__ PageRun(const WideBlock<S>& block, FormatCode format, int32_t first, int32_t end)
      : block_(block),
        keys_{block.arguments.head.keys},
        values_{block.arguments.head.values},
        layout_{page_places(format, block.arguments.head), format, format.group_shift()},
        first_(first),
        pages_(end - first) {
    const bool whole = block.arguments.head.is_latent || format.both_have_gains() ||
                       2 * S::kPages * layout_.bytes <= block.launch.ring_bytes;
    by_side_ = !whole;
    stage_bytes_ = by_side_ ? max(layout_.keys.bytes, layout_.values.bytes) : layout_.bytes;
    stages_ = min(kMaxStages, block.launch.ring_bytes / stage_bytes_);
    copies_ = by_side_ ? 2 * pages_ : pages_;
  }

  __device__ __forceinline__ int32_t steps() const { return (pages_ + S::kPages - 1) / S::kPages; }
  /// Pages of a step.
  __device__ __forceinline__ int32_t pages_of(int32_t step) const { return min(S::kPages, pages_ - step * S::kPages); }
  __device__ __forceinline__ int32_t page_of(int32_t step, int32_t of_step) const {
    return first_ + step * S::kPages + of_step;
  }

  /// Starts as many copies as there is room for. All threads have left the stages of `done` copies.
  __device__ __forceinline__ void start_copies() {
    if (block_.lane.warp != 0) return;
    for (; started_ < min(copies_, done_ + stages_); ++started_) {
      int32_t page = started_;
      bool values = false;
      if (by_side_) {
        const int32_t step = started_ / (2 * S::kPages);
        const int32_t of_step = started_ - step * 2 * S::kPages;
        const int32_t pages = pages_of(step);
        values = of_step >= pages;
        page = step * S::kPages + (values ? of_step - pages : of_step);
      }
      const DevicePage* records = kvq::cuda::pages_of(block_.arguments, block_.unit);
      const uint64_t from = __ldg(reinterpret_cast<const unsigned long long*>(&records[first_ + page].data));
      const int32_t stage = started_stage_;
      started_stage_ = behind(stage, 1);
      start_copy(stage_at(stage), from + static_cast<uint64_t>(values ? layout_.values_at : 0),
                 by_side_ ? (values ? layout_.values.bytes : layout_.keys.bytes) : layout_.bytes, barrier_of(stage),
                 block_.lane.index, 0);
    }
  }

  /// Waits for the keys of a step, or for all of its pages where they are copied whole, and decodes them.
  __device__ __forceinline__ void make_keys(int32_t step, uint32_t& parity) {
    wait_for(pages_of(step), parity);
    make<Side::kKeys>(step, keys_, block_.launch.key_width, 0, 0);
    if (by_side_) leave(pages_of(step));
  }
  /// The same for values, to place `at` of the tile.
  __device__ __forceinline__ void make_values(int32_t step, int32_t at, uint32_t& parity) {
    if (by_side_) wait_for(pages_of(step), parity);
    make<Side::kValues>(step, values_, block_.launch.value_width, at, by_side_ ? 0 : layout_.values_at);
    leave(pages_of(step));
  }

 private:
  /// The stage `n` behind another, at most as many as there are.
  __device__ __forceinline__ int32_t behind(int32_t stage, int32_t n) const {
    return stage + n >= stages_ ? stage + n - stages_ : stage + n;
  }
  __device__ __forceinline__ void leave(int32_t copies) {
    done_ += copies;
    stage_ = behind(stage_, copies);
  }
  __device__ __forceinline__ int32_t warp_page() const { return block_.lane.warp / S::kPageWarps; }
  __device__ __forceinline__ uint32_t stage_at(int32_t stage) const {
    return shared_address(block_.memory + block_.at.ring) + static_cast<uint32_t>(stage * stage_bytes_);
  }
  __device__ __forceinline__ uint32_t barrier_of(int32_t stage) const {
    return shared_address(&block_.header().arrived[stage]);
  }
  __device__ __forceinline__ void wait_for(int32_t pages, uint32_t& parity) const {
    for (int32_t i = 0; i < pages; ++i) {
      const int32_t stage = behind(stage_, i);
      wait_copy(barrier_of(stage), parity >> stage & 1U);
      parity ^= 1U << stage;
    }
  }

  __device__ __forceinline__ std::byte* tile() const {
    return reinterpret_cast<std::byte*>(block_.memory + block_.at.tiles + warp_page() * block_.at.tile_bytes);
  }
  __device__ __forceinline__ SideShare share() const { return {block_.lane.warp % S::kPageWarps, S::kPageWarps}; }

  /// Decodes this warp's share of a side, `from` bytes into its copy, to place `at` of its page's tile.
  template <Side kSide>
  __device__ __forceinline__ void make(int32_t step, const WideSide& geometry, int32_t width, int32_t at,
                                       int32_t from) {
    const MadeSide<WideSide> to{geometry, width, block_.lane, tile() + at, share()};
    if (warp_page() >= pages_of(step)) return clear(to);
    const uint32_t address = stage_at(behind(stage_, warp_page())) + static_cast<uint32_t>(from);
    const PageSide<WideSide> side = page_side(geometry, layout_, block_.lane, address);
    if constexpr (kSide == Side::kKeys) {
      if (to.share.first == 0) to.pad_keys();
      if (layout_.format.keys().is_float16()) {
        to.copy_keys([address](int32_t i) { return load_shared<uint32_t>(address + static_cast<uint32_t>(i)); });
      } else {
        to.decode_keys(side);
      }
    } else {
      if (to.share.first == 0) to.pad_values();
      if (layout_.format.values().is_float16()) {
        to.copy_values([address](int32_t i) { return load_shared<uint4>(address + static_cast<uint32_t>(i)); });
      } else {
        to.decode_values(side);
      }
    }
  }

  /// Zeros, because products with weight 0 still read the side.
  __device__ __forceinline__ static void clear(const MadeSide<WideSide>& side) {
    const int32_t step = 16 * 32 * side.share.step;
    for (int32_t i = 16 * (side.lane.index + 32 * side.share.first); i < 2 * kSlots * side.width; i += step) {
      side.clear_chunk(i);
    }
  }

  const WideBlock<S>& block_;
  const WideSide keys_;
  const WideSide values_;
  const PageLayout layout_;
  int32_t first_;
  int32_t pages_;
  bool by_side_;
  int32_t stage_bytes_;
  int32_t stages_;
  int32_t copies_;
  int32_t started_ = 0;
  int32_t started_stage_ = 0;  // of the next copy
  int32_t done_ = 0;           // copies whose stages all threads have left
  int32_t stage_ = 0;          // of the first that is not done
};

}  // namespace kvq::cuda
