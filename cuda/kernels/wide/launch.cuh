// Launches of blocks of one size.
#pragma once

#include "kernels/prefill/prefill.h"
#include "kernels/wide/wide.h"

namespace kvq::cuda {

/// `kKernel`: a kernel of blocks of shape S.
template <typename S, auto kKernel>
cudaError_t launch_wide(const AttendArguments& arguments, const WideLaunch& launch, int32_t shared_bytes,
                        cudaStream_t stream) {
  const cudaError_t status = cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  const auto blocks = static_cast<uint32_t>(launch.row_blocks * launch.heads * launch.parts);
  kKernel<<<blocks, S::kThreads, static_cast<size_t>(shared_bytes), stream>>>(arguments, launch);
  if (launch.parts > 1) return launch_wide_merge(arguments, launch, S::kRows, S::kValues, stream);
  return cudaGetLastError();
}

/// A kernel without its ring, of which `blocks` blocks run on a multiprocessor.
template <typename S, auto kKernel>
WideKernel wide_kernel_with(int32_t blocks) {
  return {.rows = S::kRows,
          .blocks = blocks,
          .partial_floats = static_cast<int32_t>(partial_floats(S::kRows, S::kValues)),
          .launch = launch_wide<S, kKernel>};
}

}  // namespace kvq::cuda
