// Bulk copies by one thread, and the barriers through which threads of a block hand over stages of memory (Hopper).
#pragma once

#include "kernels/device/copies.cuh"

#include <cstddef>
#include <cstdint>

namespace kvq::cuda {

__device__ __forceinline__ void make_barrier(uint64_t& barrier, int32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(&barrier)) : "memory");
}
/// Called by one thread; the phase completes after `bytes` have been copied.
__device__ __forceinline__ void expect_bytes(uint64_t& barrier, size_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(&barrier)),
               "r"(static_cast<uint32_t>(bytes))
               : "memory");
}
__device__ __forceinline__ void copy_bytes(void* to, const void* from, size_t bytes, uint64_t& arrived) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
                   shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(static_cast<uint32_t>(bytes)), "r"(shared_address(&arrived))
               : "memory");
}

/// Asks for bytes of device memory, a multiple of 16, to be in the L2 cache.
__device__ __forceinline__ void prefetch_bytes(uint64_t from, int32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(from), "r"(bytes) : "memory");
}

/// Stage of a step, and how often its memory has been reused.
template <int32_t kStages>
struct PipelineState {
  int32_t stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1U;
    }
  }
};

}  // namespace kvq::cuda
