// Launches of blocks of one size.
#pragma once

#include "kernels/wide/attend.cuh"

namespace kvq::cuda {

template <typename S>
cudaError_t launch_wide(const AttendArguments& arguments, const WideLaunch& launch, int32_t shared_bytes,
                        cudaStream_t stream) {
  const cudaError_t status =
      cudaFuncSetAttribute(wide_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  const auto blocks = static_cast<uint32_t>(launch.row_blocks * arguments.kv_heads * launch.parts);
  wide_kernel<S><<<blocks, S::kThreads, static_cast<size_t>(shared_bytes), stream>>>(arguments, launch);
  if (launch.parts > 1) return launch_wide_merge(arguments, launch, S::kRows, S::kValues, stream);
  return cudaGetLastError();
}

/// The kernel with the largest ring; without a launch function if there is no room for the pages of a step.
template <typename S>
WideKernel wide_kernel_of(const HeadShape& head, int32_t shared_limit) {
  WideKernel kernel{.rows = S::kRows,
                    .blocks = 1,
                    .partial_floats = static_cast<int32_t>(partial_floats(S::kRows, S::kValues)),
                    .launch = launch_wide<S>};
  WideLaunch launch = wide_widths(head);
  const int32_t before = WidePlaces::of<S>(launch).ring + static_cast<int32_t>(sizeof(WideHeader<S>));
  launch.ring_bytes = (shared_limit - before) / 128 * 128;
  kernel.ring_bytes = launch.ring_bytes;
  kernel.shared_bytes = WidePlaces::of<S>(launch).bytes;
  const bool fits = launch.ring_bytes >= S::kPages * largest_copy(head) && kernel.shared_bytes <= shared_limit;
  return fits ? kernel : WideKernel{};
}

}  // namespace kvq::cuda
