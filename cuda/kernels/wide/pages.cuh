// A run of pages of one format, decoded to tiles in shared memory.
#pragma once

#include "kernels/wide/copies.cuh"
#include "kernels/wide/memory.cuh"

namespace kvq::cuda {

/// Decodes a side of pages; its head size is the side's.
using WideSide = Geometry<kMaxChannels, false, 1, Lists::kGains>;

/// Decodes sides of pages of one layout to tiles; `share`: of each side, this warp's.
struct PageMaker {
  const PageLayout& layout;
  Lane lane;
  SideShare share;

  /// Decodes the side at `address` to `memory`, with zeros behind its channels up to `width`.
  template <Side kSide>
  __device__ __forceinline__ void make(const WideSide& geometry, int32_t width, uint32_t address,
                                       uint8_t* memory) const {
    const MadeSide<WideSide> to{geometry, width, lane, reinterpret_cast<std::byte*>(memory), share};
    const PageSide<WideSide> side = page_side(geometry, layout, lane, address);
    if constexpr (kSide == Side::kKeys) {
      if (share.first == 0) to.pad_keys();
      if (layout.format.keys().is_float16()) {
        to.copy_keys([address](int32_t i) { return load_shared<uint32_t>(address + static_cast<uint32_t>(i)); });
      } else {
        to.decode_keys(side);
      }
    } else {
      if (share.first == 0) to.pad_values();
      if (layout.format.values().is_float16()) {
        to.copy_values([address](int32_t i) { return load_shared<uint4>(address + static_cast<uint32_t>(i)); });
      } else {
        to.decode_values(side);
      }
    }
  }

  /// Zeros, because products with weight 0 still read the side.
  __device__ __forceinline__ void clear(int32_t width, uint8_t* memory) const {
    for (int32_t i = 16 * (lane.index + 32 * share.first); i < 2 * kSlots * width; i += 16 * 32 * share.step) {
      *reinterpret_cast<uint4*>(memory + i) = {0, 0, 0, 0};
    }
  }
};

/// A run of pages [first, end) of a list, which have one layout, in steps of S::kPages.
template <typename S>
class PageRun {
 public:
  __device__ __forceinline__ PageRun(const WideBlock<S>& block, const PageLayout& layout, int32_t first, int32_t end)
      : block_(block),
        keys_{block.arguments.head.keys},
        values_{block.arguments.head.values},
        layout_(layout),
        copies_(block.arguments.head, kvq::cuda::pages_of(block.arguments, block.unit) + first, block.lane,
                {shared_address(block.memory + block.at.ring), block.launch.ring_bytes,
                 shared_address(block.header().arrived)},
                layout, end - first, SteppedSides{S::kPages}, 2 * S::kPages),
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
  __device__ __forceinline__ uint8_t* tile() const {
    return block_.memory + block_.at.tiles + warp_page() * block_.at.tile_bytes;
  }

  /// Decodes this warp's share of a side, `from` bytes into its copy, to place `at` of its page's tile.
  template <Side kSide>
  __device__ __forceinline__ void make(int32_t step, const WideSide& geometry, int32_t width, int32_t at,
                                       int32_t from) {
    const PageMaker maker{layout_, block_.lane, {block_.lane.warp % S::kPageWarps, S::kPageWarps}};
    if (warp_page() >= pages_of(step)) return maker.clear(width, tile() + at);
    maker.make<kSide>(geometry, width, copies_.address(warp_page()) + static_cast<uint32_t>(from), tile() + at);
  }

  const WideBlock<S>& block_;
  const WideSide keys_;
  const WideSide values_;
  const PageLayout& layout_;
  RunCopies<SteppedSides> copies_;
  int32_t first_;
};

}  // namespace kvq::cuda
