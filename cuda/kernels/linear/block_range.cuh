// Ranges of code blocks that warps multiply, and the addresses of their codes.
#pragma once

#include "kernels/device/overlap.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/linear/decode.cuh"
#include "kernels/linear/linear.h"

namespace kvq::cuda {

/// Threads of a block that multiplies few rows.
inline constexpr int32_t kLinearThreads = 512;
inline constexpr int32_t kLinearWarps = kLinearThreads / kWarpLanes;
/// Code blocks per warp that are prefetched into the L2 cache. More would evict those of other warps.
inline constexpr int32_t kPanelsAhead = 2;

/// Warp index; the shuffle tells the compiler that it is uniform.
__device__ __forceinline__ int32_t this_warp() {
  return __shfl_sync(0xFFFFFFFFU, static_cast<int32_t>(threadIdx.x) / kWarpLanes, 0);
}

struct PanelRange {
  int32_t first;
  int32_t n;
};

/// Code blocks of a warp: some columns of blocks in all panels, then the next columns.
struct BlockRange {
  int32_t column;  // column of the first block
  int32_t panel;   // panel of the first block
  int32_t blocks;

  __device__ __forceinline__ BlockRange(const LinearSegment& segment, const PanelRange& panels) {
    const int32_t all = blocks_of(segment.columns) * panels.n;
    const int32_t first = all * this_warp() / kLinearWarps;
    blocks = all * (this_warp() + 1) / kLinearWarps - first;
    column = first / panels.n;
    panel = first - column * panels.n;
  }
};

/// Codes of a segment in some panels.
template <typename Code>
class SegmentCodes {
 public:
  static constexpr auto kBlockBytes = static_cast<int32_t>(block_bytes(Code::kCode));

  __device__ __forceinline__ SegmentCodes(const LinearMatrix& matrix, const LinearSegment& segment,
                                          const PanelRange& panels)
      : codes_(matrix.codes + panels.first * matrix.panel_bytes + segment.begin),
        panel_bytes_(matrix.panel_bytes),
        panels_(panels.n) {}

  __device__ __forceinline__ const uint8_t* column(int32_t i) const { return codes_ + int64_t{i} * kBlockBytes; }
  __device__ __forceinline__ int64_t panel_bytes() const { return panel_bytes_; }

  /// Prefetches the first panels of a column of blocks into the L2 cache.
  __device__ __forceinline__ void fetch_column(int32_t i) const {
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % kWarpLanes;
    if (lane < min(panels_, kPanelsAhead)) fetch_to_l2(column(i) + lane * panel_bytes_, kBlockBytes);
  }
  /// Prefetches kPanelsAhead panels ahead of `panel`, whose block is at `from`.
  __device__ __forceinline__ void fetch_panel(const uint8_t* from, int32_t panel) const {
    if (panel + kPanelsAhead < panels_ && threadIdx.x % kWarpLanes == 0) {
      fetch_to_l2(from + kPanelsAhead * panel_bytes_, kBlockBytes);
    }
  }

  __device__ __forceinline__ void load_first(const BlockRange& range, uint32_t (&words)[Code::kWords]) const {
    if (range.blocks > 0) load_words<Code>(column(range.column) + range.panel * panel_bytes_, words);
  }

 private:
  const uint8_t* codes_;
  int64_t panel_bytes_;
  int32_t panels_;
};

}  // namespace kvq::cuda
