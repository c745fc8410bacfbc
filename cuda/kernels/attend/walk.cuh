// The walk of a warp over its pages of a segment, and of a block over its segments.
#pragma once

#include "kernels/attend/centres.cuh"
#include "kernels/attend/merge.cuh"
#include "kernels/attend/queries.cuh"
#include "kernels/attend/ring.cuh"
#include "kernels/pages/kinds.cuh"
#include "kernels/pages/softmax.cuh"

namespace kvq::cuda {

/// Copies that a warp starts before queries are ready. More would delay all other loads at that time, instruction
/// fetches included.
constexpr int32_t kEarlyCopies = 1;

/// State of a warp during a walk.
template <typename G>
struct Walk {
  Ring ring;
  Batch batch;
  VisibleRange range;
  // For the current run.
  PageLayout layout;
  Copies copies;

  QueryFragments<G> queries;
  SoftmaxState<G::kTiles> softmax;
  Outputs<G> outputs;

  int32_t centred_head = -1;  // head whose centres are in shared memory
};

/// Sets up the warp for a run's format. The ring must be empty.
template <typename G>
__device__ __forceinline__ void prepare_run(const Block<G>& block, FormatCode format, uint32_t run, Walk<G>& walk) {
  walk.layout = layout_of(block.geometry, format);
  cut_stages(walk.layout, block.rings.bytes, block.lane, walk.ring);
  walk.copies = {run, false, 0, 0};
}

/// Stores the rotation of the first of `pages`. An empty set is allowed: nothing reads its rotation.
template <typename G>
__device__ __forceinline__ void put_page_rotations(const Block<G>& block, const Batch& batch, uint32_t pages,
                                                   int32_t buffer) {
  put_rotations(block, static_cast<int32_t>(__shfl_sync(kAll, batch.record.z, first_page(pages) & 31)), buffer);
}

/// Adds the products with centres of keys to a page's scores.
template <typename K, typename G>
__device__ __forceinline__ void score_centres(const Block<G>& block, const Unit& unit, const PageSide<G>& keys,
                                              int32_t at, int32_t rotations_buffer, const Walk<G>& walk,
                                              Scores<G::kTiles>& scores) {
  if constexpr (!PageKind<K>) {
    if (rotated_by_slot(keys)) {
      const DevicePage page = page_at(walk.batch, at);
      return add_own_centres(block, unit, keys, page, walk.batch.base + at * block.lane.warps, walk.queries, scores);
    }
  }
  add_page_centres(block, unit, keys, rotations_buffer, walk.queries, scores);
}

/// Computes the weights of a page's values and adds the weighted sums.
template <typename K, typename G>
__device__ __forceinline__ void add_page_values(const Block<G>& block, const Unit& unit, const PageSide<G>& values,
                                                const Scores<G::kTiles>& scores, Walk<G>& walk) {
  Weights<G::kTiles> p;
  Weights<G::kTiles> without_gains;
  softmax<G::kCentres>(scores, K::value_gains(values), walk.softmax, walk.outputs, p, without_gains);
  K::add_values(values, p, walk.outputs);
  if constexpr (G::kCentres) {
    if (values.layout.format.value_indices()) {
      add_centres_of_values(block, unit, values, without_gains, walk.outputs);
    }
  }
}

/// Walks a run of pages whose sides are both of kind K, or of MixedPages: any kinds, masks and centres.
template <typename K, typename G>
__device__ __forceinline__ void run_pages(const Block<G>& block, const Unit& unit, uint32_t run, Walk<G>& walk) {
  const Lane& lane = block.lane;
  const PageLayout& layout = walk.layout;
  Ring& ring = walk.ring;
  const auto& shared = block.shared.queries;
  load_fragments(layout.format.hadamard_keys() ? shared.rotated : shared.plain, key_order<K, G>(layout.format.keys()),
                 lane, walk.queries);
  if (layout.format.keys().has_gains()) sum_queries(key_order<K, G>(layout.format.keys()), lane, walk.queries);
  const bool by_side = goes_by_side<K>(ring);
  int32_t rotations_buffer = 0;
  if constexpr (G::kCentre) {
    if (layout.format.centred_keys()) put_page_rotations(block, walk.batch, run, rotations_buffer);
    __syncwarp();
  }
#pragma unroll 1
  for (; run != 0; run &= run - 1) {
    copy_next(ring, by_side, layout, walk.batch, lane, walk.copies);
    uint32_t side = wait_for_stage(ring);
    Scores<G::kTiles> scores;
    const auto keys = page_side(block.geometry, layout, lane, side);
    K::score(keys, walk.queries, scores);
    if constexpr (G::kCentre) {
      if (layout.format.centred_keys()) {
        score_centres<K>(block, unit, keys, first_page(run), rotations_buffer, walk, scores);
        rotations_buffer ^= 1;
        put_page_rotations(block, walk.batch, run & (run - 1), rotations_buffer);  // visible after leave_stage
      }
    }
    if (by_side) {
      leave_stage(ring);
      copy_next(ring, by_side, layout, walk.batch, lane, walk.copies);
    }
    if constexpr (!PageKind<K>) {
      if (block.arguments.softcap > 0.0F) cap_scores(block.arguments.softcap, scores);
    }
    if constexpr (kMasks<K>) {
      const int32_t at = first_page(run);
      if ((walk.batch.masked >> at & 1U) != 0) {
        const DevicePage page = page_at(walk.batch, at);
        const MaskedUnit unit_rows{block.arguments, unit, row_count<G::kRows>(block.arguments, unit),
                                   walk.range.first_masked};
        mask(unit_rows, page, walk.batch.base + at * lane.warps, shared.row_position, lane, scores);
      }
    }
    side = by_side ? wait_for_stage(ring) : side + static_cast<uint32_t>(values_at<K, G>(layout));
    add_page_values<K>(block, unit, page_side(block.geometry, layout, lane, side), scores, walk);
    leave_stage(ring);
  }
}

/// Walks all of the warp's pages. With `early`, the first batch has been chosen and its first run prepared.
template <typename G>
__device__ __forceinline__ void walk_pages(const Block<G>& block, const Segment& segment, bool early, Walk<G>& walk) {
  const AttendArguments& arguments = block.arguments;
  const Lane& lane = block.lane;
  Batch& batch = walk.batch;
  bool chosen = early;
  bool any_run = false;  // outputs may be nonzero
#pragma unroll 1
  for (;;) {
    if (!chosen) choose_pages(arguments, segment.unit, walk.range, lane, batch);
    chosen = true;
    if (batch.wanted == 0 && batch.base + 32 * lane.warps < segment.end) {
      batch.base += 32 * lane.warps;
      load_batch(arguments, segment, lane, batch);
      chosen = false;
      early = false;  // a batch of places without pages
      continue;
    }
    const bool done = batch.wanted == 0;
    const uint32_t run = first_run(batch, lane);
    // Sums end in the space of FP16 pages, Hadamard-rotated if any page of the layer may be.
    const FormatCode format =
        done ? FormatCode{arguments.hadamard_values != 0 ? FormatCode::kHadamardValues : 0U} : format_of(batch, run);
    if (any_run && format.bits != walk.layout.format.bits) {
      leave_layout(block.geometry, walk.layout, format, lane, walk.outputs);
    }
    if (done) {
      if constexpr (G::kCentre) {
        if (arguments.centres.value_centres == 1) add_single_centre(block, segment.unit, walk.softmax, walk.outputs);
      }
      return;
    }
    any_run = true;
    batch.wanted &= ~run;
    if (!early) prepare_run(block, format, run, walk);
    early = false;
    start_copies(walk.ring, walk.layout, batch, lane, walk.ring.stages - 1, walk.copies);
    // Most pages have sides of one kind and no special cases: their loops have no branch on the kind.
    const CodeType keys = walk.layout.format.keys();
    const bool uncentred = !walk.layout.format.centred_values();
    if (G::kCentre && uncentred) note_uncentred(walk.softmax, -1.0F);
    const bool masked = (run & batch.masked) != 0 && !keys.is_float16();
    const bool special = masked || arguments.softcap > 0.0F || keys != walk.layout.format.values();
    if (special || !FastKinds<G>::has(keys)) {
      run_pages<MixedPages>(block, segment.unit, run, walk);
    } else {
      FastKinds<G>::visit(keys, [&](auto kind) { run_pages<decltype(kind)>(block, segment.unit, run, walk); });
    }
    if (G::kCentre && uncentred) note_uncentred(walk.softmax, 1.0F);
  }
}

template <typename G>
__device__ __forceinline__ void run_segment(const Block<G>& block, const Segment& segment, Walk<G>& walk) {
  const AttendArguments& arguments = block.arguments;
  const Lane& lane = block.lane;
  Ring& ring = walk.ring;
  // Issue all loads from memory at once.
  walk.batch.base = segment.begin + lane.warp;
  load_batch(arguments, segment, lane, walk.batch);
  const int32_t rows = row_count<G::kRows>(arguments, segment.unit);
  QueryRow<G> row;
  load_row(block, segment.unit, rows, lane.warp, row);
  if (ring.arrived == 0) make_barriers(block.shared.arrived[lane.warp], lane, ring);
  clear(walk.softmax);
  clear(walk.outputs);
  // A single newest query sees every page, so copies can start before its position is known.
  const bool early = arguments.single_newest != 0 && walk.batch.base < segment.end;
  if (early) {
    choose_pages(arguments, segment.unit, walk.range, lane, walk.batch);
    const uint32_t run = first_run(walk.batch, lane);
    prepare_run(block, format_of(walk.batch, run), run, walk);
    start_copies(ring, walk.layout, walk.batch, lane, min(kEarlyCopies, ring.stages - 1), walk.copies);
  }
  if constexpr (G::kCentre) {
    if (walk.centred_head != segment.unit.head) load_centres(block, segment.unit.head);
    walk.centred_head = segment.unit.head;
  }
  load_queries(block, segment.unit, rows, row);
  if constexpr (G::kCentre) wait_chunks();
  __syncthreads();
  load_row_scales(block.shared.queries.row_scale, lane, walk.queries);
  walk.range = range_of(block, segment.unit, rows);
  walk_pages(block, segment, early, walk);
  store_warp(block, rows, walk.softmax, walk.outputs);
  __syncthreads();
  write_output(block, segment, rows);
}

/// Walks all of the block's segments: a part of one unit, or a share of all units' pages.
template <typename G>
__device__ __forceinline__ void run_block(const Block<G>& block) {
  const AttendArguments& arguments = block.arguments;
  const Lane& lane = block.lane;
  int32_t* page_ends = block.shared.page_ends;
  Walk<G> walk;
  walk.ring.memory = shared_address(block.rings.of(lane.warp));
  Segment segment;
  Share share{};
  bool ready = arguments.parts != 0;
  if (ready && !take_part<G::kRows>(arguments, lane, segment)) return;
#pragma unroll 1
  for (;;) {
    if (ready) {
      run_segment(block, segment, walk);
      if (arguments.parts != 0) return;
      __syncthreads();  // the rings still hold outputs
    }
    ready = true;
    if (share.pages == 0 && !take_share<G::kRows>(arguments, lane, page_ends, share)) return;
    if (!next_segment<G::kRows>(arguments, page_ends, share, segment)) return;
  }
}

}  // namespace kvq::cuda
