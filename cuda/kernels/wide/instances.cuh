// Kernels for blocks of many rows.
#pragma once

#include "kernels/wide/launch.cuh"
#include "kernels/wide/memory.cuh"

namespace kvq::cuda {

/// The kernel with the largest ring; without a launch function if there is no room for the pages of a step.
template <typename S, auto kKernel>
WideKernel wide_kernel_of(const HeadShape& head, const WideWidths& widths, int32_t shared_limit) {
  WideKernel kernel = wide_kernel_with<S, kKernel>(1);
  kernel.widths = widths;
  WideLaunch launch{};
  static_cast<WideWidths&>(launch) = widths;
  const int32_t before = WidePlaces::of<S>(launch).ring + static_cast<int32_t>(sizeof(WideHeader<S>));
  launch.ring_bytes = (shared_limit - before) / 128 * 128;
  kernel.ring_bytes = launch.ring_bytes;
  kernel.shared_bytes = WidePlaces::of<S>(launch).bytes;
  const bool fits = launch.ring_bytes >= S::kLeastCopies * largest_copy(head) && kernel.shared_bytes <= shared_limit;
  return fits ? kernel : WideKernel{};
}

}  // namespace kvq::cuda
