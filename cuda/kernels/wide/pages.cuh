// A run of pages of one format, decoded to tiles in shared memory.
#pragma once

#include "kernels/wide/copies.cuh"
#include "kernels/wide/memory.cuh"

namespace kvq::cuda {

/// Decodes a side of pages; its head size is the side's.
using WideSide = Geometry<kMaxChannels, false, 1, Lists::kGains>;

/// A run of pages [first, end) of a list, which have one layout, in steps of S::kPages.
template <typename S>
class PageRun {
 public:
  __device__ __forceinline__ PageRun(const WideBlock<S>& block, const PageLayout& layout, int32_t first, int32_t end)
      : block_(block),
        keys_{block.arguments.head.keys},
        values_{block.arguments.head.values},
        layout_(layout),
        copies_(block.arguments, block.unit, block.lane,
                {shared_address(block.memory + block.at.ring), block.launch.ring_bytes,
                 shared_address(block.header().arrived)},
                layout, first, end, S::kPages),
        first_(first) {}

  __device__ __forceinline__ int32_t steps() const { return (copies_.pages() + S::kPages - 1) / S::kPages; }
  /// Pages of a step.
  __device__ __forceinline__ int32_t pages_of(int32_t step) const {
    return min(S::kPages, copies_.pages() - step * S::kPages);
  }
  __device__ __forceinline__ int32_t page_of(int32_t step, int32_t of_step) const {
    return first_ + step * S::kPages + of_step;
  }

  __device__ __forceinline__ void start_copies() { copies_.start(); }

  /// Waits for the keys of a step, or for all of its pages where they are copied whole, and decodes them.
  __device__ __forceinline__ void make_keys(int32_t step, uint32_t& parity) {
    copies_.wait(0, pages_of(step), parity);
    make<Side::kKeys>(step, keys_, block_.launch.key_width, 0, 0);
    if (copies_.by_side()) copies_.leave(pages_of(step));
  }
  /// The same for values, to place `at` of the tile.
  __device__ __forceinline__ void make_values(int32_t step, int32_t at, uint32_t& parity) {
    if (copies_.by_side()) copies_.wait(0, pages_of(step), parity);
    make<Side::kValues>(step, values_, block_.launch.value_width, at, copies_.by_side() ? 0 : layout_.values_at);
    copies_.leave(pages_of(step));
  }

 private:
  __device__ __forceinline__ int32_t warp_page() const { return block_.lane.warp / S::kPageWarps; }
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
    const uint32_t address = copies_.address(warp_page()) + static_cast<uint32_t>(from);
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
  const PageLayout& layout_;
  RunCopies copies_;
  int32_t first_;
};

}  // namespace kvq::cuda
