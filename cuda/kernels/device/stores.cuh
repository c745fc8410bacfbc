// Copies from shared to device memory: on Hopper by one lane, before by all lanes at once.
#pragma once

#include "kernels/device/copies.cuh"

#include <cstddef>
#include <cstdint>

namespace kvq::cuda {

/// Starts a warp's copy from shared to device memory, which all lanes have written their part of.
__device__ __forceinline__ void start_store(std::byte* to, const std::byte* from, int32_t bytes, int32_t lane) {
#if __CUDA_ARCH__ >= 900
  if (lane == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(__cvta_generic_to_global(to)),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
  }
#else
  for (int32_t i = 16 * lane; i < bytes; i += 16 * 32) {
    *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
  }
#endif
}
__device__ __forceinline__ void commit_stores() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
#endif
}
/// Wait until the copies have read shared memory, or have completed.
__device__ __forceinline__ void wait_stores_read() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_stores() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
#endif
}

}  // namespace kvq::cuda
