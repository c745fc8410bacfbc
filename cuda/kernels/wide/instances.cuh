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

/// The kernel with the largest ring that leaves room for `blocks` blocks on a multiprocessor of `shared_limit` bytes,
/// or for one; without a launch function if there is no room for `least_ring` bytes.
template <typename S>
WideKernel wide_kernel_of(const HeadShape& head, int32_t blocks, int32_t least_ring, int32_t shared_limit) {
  constexpr int32_t kReserved = 1024;  // by the driver, per block
  WideKernel kernel{.rows = S::kRows,
                    .blocks = blocks,
                    .partial_floats = static_cast<int32_t>(partial_floats(S::kRows, S::kValues)),
                    .launch = launch_wide<S>};
  WideLaunch launch = wide_widths(head);
  for (; kernel.blocks > 0; --kernel.blocks) {
    const int32_t limit = (shared_limit + kReserved) / kernel.blocks - kReserved;
    const int32_t before = WidePlaces::of<S>(launch).ring + static_cast<int32_t>(sizeof(WideHeader<S>));
    launch.ring_bytes = (limit - before) / 128 * 128;
    kernel.ring_bytes = launch.ring_bytes;
    kernel.shared_bytes = WidePlaces::of<S>(launch).bytes;
    if (launch.ring_bytes >= least_ring && kernel.shared_bytes <= limit) return kernel;
  }
  return {};
}

/// The same for blocks of a size, by the channels of values.
template <int kRowTiles, int kRowWarps, int kColumnWarps, int kPages>
WideKernel wide_kernel_by_values(const HeadShape& head, int32_t blocks, int32_t shared_limit) {
  const int32_t ring = kPages * largest_copy(head);
  return head.values <= 256 ? wide_kernel_of<WideShape<kRowTiles, kRowWarps, kColumnWarps, kPages, 256>>(
                                  head, blocks, ring, shared_limit)
                            : wide_kernel_of<WideShape<kRowTiles, kRowWarps, kColumnWarps, kPages, 512>>(
                                  head, blocks, ring, shared_limit);
}

}  // namespace kvq::cuda
