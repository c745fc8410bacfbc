// Kernels for blocks whose warps divide channels.
#pragma once

#include "kernels/wide/launch.cuh"
#include "kernels/wide/slice_walk.cuh"

#include <algorithm>

namespace kvq::cuda {

/// The kernel with the largest ring that leaves room for two blocks on a multiprocessor of `shared_limit` bytes, or for
/// one; without a launch function if there is no room for that.
template <typename S>
WideKernel slice_kernel_of(const HeadShape& head, int32_t shared_limit) {
  constexpr int32_t kReserved = 1024;  // by the driver, per block
  if (!S::serves(head)) return {};
  WideKernel kernel = wide_kernel_with<S, slice_kernel<S>>(2);
  const int32_t outputs = 4 * (S::kRows + S::kWarps) * output_stride(head.values);
  const int32_t least = std::max({2 * largest_copy(head), SliceQueries::of<S>(head).bytes, outputs});
  for (; kernel.blocks > 0; --kernel.blocks) {
    const int32_t limit = (shared_limit + kReserved) / kernel.blocks - kReserved;
    kernel.ring_bytes = (limit - SlicePlaces::of<S>(head, 0).bytes) / 128 * 128;
    kernel.shared_bytes = SlicePlaces::of<S>(head, kernel.ring_bytes).bytes;
    if (kernel.ring_bytes >= least) return kernel;
  }
  return {};
}

/// Kernels for some rows, by the channels of their heads.
template <int kTiles>
WideKernel sliced_wide_of(const HeadShape& head, int32_t shared_limit) {
  WideKernel kernel = slice_kernel_of<SliceShape<kTiles, 64, 128, true>>(head, shared_limit);
  if (kernel.launch == nullptr) kernel = slice_kernel_of<SliceShape<kTiles, 64, 64, false>>(head, shared_limit);
  if (kernel.launch == nullptr) kernel = slice_kernel_of<SliceShape<kTiles, 128, 128, false>>(head, shared_limit);
  if constexpr (kTiles == 1) {
    // More keys leave no registers for more rows.
    if (kernel.launch == nullptr) kernel = slice_kernel_of<SliceShape<kTiles, 192, 128, true>>(head, shared_limit);
    if (kernel.launch == nullptr) kernel = slice_kernel_of<SliceShape<kTiles, 192, 128, false>>(head, shared_limit);
  }
  return kernel;
}

}  // namespace kvq::cuda
