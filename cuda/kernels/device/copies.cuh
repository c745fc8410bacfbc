// Asynchronous copies of pages into shared memory, and the barriers that signal their arrival.
//
// On Hopper, one lane copies any number of bytes with one instruction; before, every lane copies 16 bytes at a time.
// Both signal the same kind of barrier.
#pragma once

#include <cstdint>

namespace kvq::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Called by one thread before any use; a barrier of all threads must follow.
__device__ inline void make_copy_barrier(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  constexpr uint32_t kArrivals = 1;
#else
  constexpr uint32_t kArrivals = 32;
#endif
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(kArrivals) : "memory");
}

/// Takes a ticket after publishing all writes of this block's threads up to their last barrier; acquires the writes
/// published before earlier tickets. Called by one thread; returns the number of earlier tickets.
__device__ inline int32_t take_ticket(int32_t* tickets) {
  int32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;\n" : "=r"(before) : "l"(tickets) : "memory");
  return before;
}

/// Orders this thread's writes to shared memory before bulk copies that it starts later.
__device__ inline void order_before_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
#endif
}

/// A warp copies `bytes`, a multiple of 16, from the `from` of lane `owner`; the phase of `barrier` completes when they
/// have arrived.
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

/// Copies 16 bytes that are constant while the kernel runs, by one thread.
__device__ inline void copy_chunk(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}

/// Waits for this thread's copy_chunk copies.
__device__ inline void wait_chunks() { asm volatile("cp.async.wait_all;\n" ::: "memory"); }

/// Waits for the phase of the given parity.
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
