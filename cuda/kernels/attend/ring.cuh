// Ring of a warp: its pages arrive there by asynchronous copies ahead of use.
#pragma once

#include "kernels/attend/batch.cuh"
#include "kernels/device/copies.cuh"
#include "kernels/pages/layout.cuh"

namespace kvq::cuda {

/// Bytes per warp in flight or in use, at least two stages. More than saturates memory only queues there and slows it
/// down.
constexpr int32_t kAhead = 9 * 1024;

/// Stages of one page each, or of one side of a large page, with a barrier per stage.
struct Ring {
  uint32_t memory;       // shared address of stage 0
  uint32_t arrived = 0;  // barrier of stage 0; 0: barriers are not initialized
  uint32_t parity = 0;   // next phase's parity, one bit per stage

  // For the current run.
  int32_t stage_bytes;
  int32_t stages;
  bool by_side;   // a stage holds one side instead of a page
  int32_t stage;  // in use, or used next
};

/// Pages of a run whose copies have not started.
struct Copies {
  uint32_t pages;
  bool values_next;  // the first page's keys are in flight
  int32_t stage;     // receives the next copy
  int32_t started;   // copies started ahead of the first page
};

__device__ __forceinline__ void make_barriers(uint64_t (&barriers)[kMaxStages], const Lane& lane, Ring& ring) {
  ring.arrived = shared_address(barriers);
  if (lane.index == 0) {
#pragma unroll 1
    for (uint32_t i = 0; i < kMaxStages; ++i) make_copy_barrier(ring.arrived + 8 * i);
  }
  order_before_copies();
  __syncwarp();
}

/// Divides the empty ring into stages for pages of a layout.
__device__ __forceinline__ void cut_stages(const PageLayout& layout, int32_t ring_bytes, const Lane& lane, Ring& ring) {
  const int32_t page = layout.bytes;
  // Pages whose sides' bytes are mixed are small.
  const bool mixed = layout.format.both_have_gains();
  ring.by_side = 2 * page > ring_bytes && !mixed;
  ring.stage_bytes = ring.by_side ? max(layout.keys.bytes, layout.values.bytes) : page;
  // As many stages as fit, without a division.
  const int32_t limit = min(ring_bytes, max(kAhead, 2 * ring.stage_bytes));
  ring.stages = __popc(__ballot_sync(kAll, lane.index < kMaxStages && (lane.index + 1) * ring.stage_bytes <= limit));
  ring.stage = 0;
}

__device__ __forceinline__ int32_t next_stage(const Ring& ring, int32_t stage) {
  return stage + 1 == ring.stages ? 0 : stage + 1;
}

/// Whether a stage holds one side of a page; `K`: kind of both sides, or MixedPages.
template <typename K>
__device__ __forceinline__ bool goes_by_side(const Ring& ring) {
  if constexpr (PageKind<K>) {
    if constexpr (K::kCode.has_gains()) return false;
  }
  return ring.by_side;
}

/// Starts the next copy: a page, or one side of a large page.
__device__ __forceinline__ void copy_next(const Ring& ring, bool by_side, const PageLayout& layout, const Batch& batch,
                                          const Lane& lane, Copies& copies) {
  if (copies.pages == 0) return;
  const int32_t at = first_page(copies.pages);
  uint64_t from = static_cast<uint64_t>(batch.record.y) << 32U | batch.record.x;
  int32_t bytes = by_side ? layout.keys.bytes : ring.stage_bytes;
  if (by_side && copies.values_next) {
    from += static_cast<uint64_t>(bytes);
    bytes = layout.values.bytes;
  }
  start_copy(ring.memory + static_cast<uint32_t>(copies.stage * ring.stage_bytes), from, bytes,
             ring.arrived + static_cast<uint32_t>(8 * copies.stage), lane.index, at);
  copies.values_next = by_side && !copies.values_next;
  if (!copies.values_next) copies.pages &= copies.pages - 1;
  copies.stage = next_stage(ring, copies.stage);
}

/// Starts copies until `n` of the run are in flight.
__device__ __forceinline__ void start_copies(const Ring& ring, const PageLayout& layout, const Batch& batch,
                                             const Lane& lane, int32_t n, Copies& copies) {
#pragma unroll 1
  for (; copies.started < n; ++copies.started) copy_next(ring, ring.by_side, layout, batch, lane, copies);
}

/// Waits for the oldest copy and returns its stage's address.
__device__ __forceinline__ uint32_t wait_for_stage(Ring& ring) {
  wait_copy(ring.arrived + static_cast<uint32_t>(8 * ring.stage), (ring.parity >> ring.stage) & 1U);
  ring.parity ^= 1U << ring.stage;
  return ring.memory + static_cast<uint32_t>(ring.stage * ring.stage_bytes);
}

__device__ __forceinline__ void leave_stage(Ring& ring) {
  __syncwarp();
  ring.stage = next_stage(ring, ring.stage);
}

}  // namespace kvq::cuda
