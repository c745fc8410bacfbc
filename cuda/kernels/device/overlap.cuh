// Programmatic dependent launch: kernels that begin before earlier ones have ended, and prefetches until then.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvq::cuda {

/// Waits until memory written by earlier kernels may be read and memory read by them may be written.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

/// Allows the next kernel to begin where resources are free.
__device__ __forceinline__ void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

/// Prefetches constant bytes into the L2 cache. \param from  aligned to 16 bytes, of which `bytes` is a multiple.
__device__ __forceinline__ void fetch_to_l2(const void* from, int32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
#else
  for (int32_t i = 0; i < bytes; i += 128) {
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(__cvta_generic_to_global(static_cast<const std::byte*>(from) + i)));
  }
#endif
}

/// Allows a kernel `bytes` of shared memory and minimizes the L1 cache: blocks of two kernels share a multiprocessor
/// only if both divide its memory in the same way.
template <typename... Parameters>
cudaError_t share_all_memory(void (*kernel)(Parameters...), int32_t bytes) {
  const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

struct Launch {
  dim3 grid;
  int32_t threads;
  size_t shared_bytes;
  bool overlaps;         // whether the device can begin it before earlier kernels have ended
  uint32_t cluster = 1;  // blocks along z that read each other's shared memory
};

/// Launches a kernel that itself waits for earlier kernels.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_early(const Launch& launch, void (*kernel)(Parameters...), cudaStream_t stream,
                         const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  uint32_t n = 0;
  if (launch.overlaps) {
    attributes[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[n++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (launch.cluster > 1) {
    attributes[n].id = cudaLaunchAttributeClusterDimension;
    attributes[n++].val.clusterDim = {1, 1, launch.cluster};
  }
  const cudaLaunchConfig_t config{
      launch.grid, dim3(static_cast<uint32_t>(launch.threads)), launch.shared_bytes, stream, attributes, n};
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace kvq::cuda
