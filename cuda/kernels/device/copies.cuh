// Asynchronous copies of pages into shared memory, and the barriers that say when they have arrived.
//
// Hopper copies any number of bytes with one instruction of one lane; before it, every lane copies 16 bytes at a time.
// Both report to the same kind of barrier.
#pragma once

#include <cstdint>

namespace kvq::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// One thread, before any use; all threads must be synchronised afterwards.
__device__ inline void make_copy_barrier(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  constexpr uint32_t kArrivals = 1;
#else
  constexpr uint32_t kArrivals = 32;
#endif
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(kArrivals) : "memory");
}

/// Have all that this block's threads wrote, up to their last barrier, reach the device before the ticket is taken,
/// and what others wrote before taking theirs be seen after. One thread; returns how many were taken before.
__device__ inline int32_t take_ticket(int32_t* tickets) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;\n" : "=r"(before) : "l"(tickets) : "memory");
  return before;
}

/// What this thread wrote to shared memory is visible to copies that it starts later.
__device__ inline void order_before_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}

/// A warp copies `bytes`, a multiple of 16, from what lane `owner` says; `barrier` completes a phase when they are
/// there.
__device__ inline void start_copy(uint32_t to, uint64_t from, int32_t bytes, uint32_t barrier, int32_t lane,
                                  int32_t owner) {
#if __CUDA_ARCH__ >= 900
  if (lane == owner) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
  }
#else
  from = __shfl_sync(0xFFFFFFFFU, from, owner);
  for (int32_t i = 16 * lane; i < bytes; i += 16 * 32) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to + static_cast<uint32_t>(i)),
                 "l"(from + static_cast<uint64_t>(i))
                 : "memory");
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
#endif
}

/// A thread copies 16 bytes, which do not change while the kernel runs.
__device__ inline void copy_chunk(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

/// Wait for what this thread copies so.
__device__ inline void wait_chunks() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

/// Wait for the phase of the given parity.
__device__ inline void wait_copy(uint32_t barrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#else
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
#endif
}

}  // namespace kvq::cuda
