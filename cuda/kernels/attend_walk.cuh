// The walk over pages: segments, batches of page records, runs of one format, copies through the ring.
#pragma once

#include "kernels/attend_block.cuh"

namespace kvq::cuda {

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::run() {
  Segment segment;
  Share share;
  bool ready = false;
  if (a_.parts != 0) {
    ready = take_part(segment);
    if (!ready) return;
  }
  // What is common comes first: instructions are fetched in the order they are written in.
#pragma unroll 1
  for (;;) {
    if (ready) {
      run_segment(segment);
      if (a_.parts != 0) break;
      __syncthreads();  // the rings still hold outputs
    } else if (!take_share(share)) {
      return;
    }
    if (!next_segment(share, segment)) return;
    ready = true;
  }
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::run_segment(const Segment& segment) {
  // Whatever comes from memory is asked for at once.
  Batch batch;
  batch.base = segment.begin + warp_;
  load_batch(segment, batch);
  rows_ = rows_of(segment.unit);
  QueryRow row;
  load_row(segment.unit, warp_, row);
  if (!has_barriers_) make_barriers();
  reset();
  // A single newest query sees every page, so copies can start before it is known where it is.
  const bool early = a_.single_newest != 0 && batch.base < segment.end;
  if (early) {
    choose_pages(segment.unit, batch);
    const uint32_t run = first_run(batch);
    prepare_run(format_of(batch, run), run);
    start_copies(batch.record, min(kEarlyCopies, stages_ - 1));
  }
  load_queries(segment.unit, row);
  __syncthreads();
  read_rows();
  walk(segment, batch, early);
  store_warp();
  __syncthreads();
  write_output(segment);
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::make_barriers() {
  if (lane_ == 0) {
#pragma unroll 1
    for (uint32_t i = 0; i < kMaxStages; ++i) make_copy_barrier(arrived_ + 8 * i);
  }
  order_before_copies();
  __syncwarp();
  has_barriers_ = true;
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::reset() {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      maximum_[n][c] = minus_infinity();
      sum_[n][c] = 0.0F;
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) bias_[n][i] = 0.0F;
#pragma unroll
    for (int32_t m = 0; m < kChannels; ++m) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) out_[n][m][0][i] = out_[n][m][1][i] = 0.0F;
    }
  }
  any_run_ = false;
  format_ = FormatCode{};
  group_shift_ = 0;
}

/// What load_queries left in shared memory.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::read_rows() {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      row_scale_[n][c] = s_.row_scale[8 * n + 2 * t_ + c];
    }
  }
  const int32_t position = s_.row_position[min(lane_, rows_ - 1)];
  min_position_ = __reduce_min_sync(kAll, position);
  max_position_ = __reduce_max_sync(kAll, position);
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::load_batch(const Segment& segment, Batch& batch) const {
  const SequenceView& view = sequence_of(segment.unit).view;
  const auto* pages =
      reinterpret_cast<const uint4*>(view.pages + static_cast<int64_t>(segment.unit.head) * view.capacity);
  const int32_t mine = batch.base + lane_ * warps_;
  batch.record = mine < segment.end ? __ldg(pages + mine) : uint4{0, 0, 0, 0};
}

/// Pages that some query sees, and those of which not every query may see all.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::choose_pages(const Unit& unit, Batch& batch) const {
  const uint4& record = batch.record;
  bool visible = record.w != 0;
  bool masked = is_partial(record);
  if (a_.single_newest == 0) {
    const auto first = static_cast<int32_t>(record.z);
    visible = visible && first <= max_position_;
    masked = needs_mask(record);
    if (visible && a_.window > 0) {
      const DevicePage page{0, first, 0, static_cast<uint8_t>(record.w >> 16U), static_cast<uint8_t>(record.w >> 24U)};
      const int32_t last = position_in_page(unit, page, batch.base + lane_ * warps_, page.count - 1);
      visible = last > static_cast<int64_t>(min_position_) - a_.window;
    }
  }
  batch.wanted = __ballot_sync(kAll, visible);
  batch.masked = __ballot_sync(kAll, masked);
}

/// All of the warp's pages. With `early` the first batch's pages have been chosen, and the first run is prepared.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::walk(const Segment& segment, Batch& batch, bool early) {
  bool chosen = early;
#pragma unroll 1
  for (;;) {
    if (!chosen) choose_pages(segment.unit, batch);
    chosen = true;
    if (batch.wanted == 0 && batch.base + 32 * warps_ < segment.end) {
      batch.base += 32 * warps_;
      load_batch(segment, batch);
      chosen = false;
      continue;
    }
    const bool done = batch.wanted == 0;
    const uint32_t run = first_run(batch);
    // Sums end like those of FP16 pages, rotated if any page of the layer may be.
    const FormatCode format =
        done ? FormatCode{a_.hadamard_values != 0 ? FormatCode::kHadamardValues : 0U} : format_of(batch, run);
    if (any_run_ && format.bits != format_.bits) leave_run(format);
    if (done) return;
    any_run_ = true;
    batch.wanted &= ~run;
    if (!early) prepare_run(format, run);
    early = false;
    start_copies(batch.record, stages_ - 1);
    // Most pages have both sides of one kind and need nothing special: loops without a choice inside.
    const bool special = (run & batch.masked) != 0 || a_.softcap > 0.0F || format_.keys() != format_.values();
    const Kind kind = format_.keys();
    if (special) {
      run_pages<0>(segment.unit, batch, run);
    } else if (kind == Kind::kInt4) {
      run_pages<4>(segment.unit, batch, run);
    } else if (kind == Kind::kInt2) {
      run_pages<2>(segment.unit, batch, run);
    } else if (kind == Kind::kInt8) {
      run_pages<8>(segment.unit, batch, run);
    } else if (kind == Kind::kInt3) {
      run_pages<3>(segment.unit, batch, run);
    } else {
      run_pages<16>(segment.unit, batch, run);
    }
  }
}

/// Whether some query may not see all of 32 slots.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ bool Block<DP, kFull, NT>::needs_mask(const uint4& record) const {
  const auto first = static_cast<int32_t>(record.z);
  return is_partial(record) || first + kSlots - 1 > min_position_ ||
         (a_.window > 0 && first <= static_cast<int64_t>(max_position_) - a_.window);
}

/// Fewer than 32 slots, or positions with gaps. A single newest query needs masks for nothing else.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ bool Block<DP, kFull, NT>::is_partial(const uint4& record) {
  return record.w >> 24U != 0 || ((record.w >> 16U) & 0xFFU) < kSlots;
}

/// The first of the wanted pages and those after it, up to one of another format or one that is `masked` if it is
/// not, or the other way round.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ uint32_t Block<DP, kFull, NT>::first_run(const Batch& batch) const {
  const uint32_t kind = (batch.record.w & 0xFFFFU) | (batch.masked >> lane_ & 1U) << 16U;
  const uint32_t of_first = __shfl_sync(kAll, kind, __ffs(static_cast<int>(batch.wanted)) - 1);
  const uint32_t differs = __ballot_sync(kAll, kind != of_first) & batch.wanted;
  // Those before the first that differs: all, if none does.
  return batch.wanted & ((differs & -differs) - 1U);
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ FormatCode Block<DP, kFull, NT>::format_of(const Batch& batch, uint32_t run) const {
  return {__shfl_sync(kAll, batch.record.w & 0xFFFFU, __ffs(static_cast<int>(run)) - 1)};
}

/// Have the sums so far as pages of another format go on with them.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::leave_run(FormatCode next) {
  finish_run();
  if (next.hadamard_values() != format_.hadamard_values()) change_space();
  if (next.values() != Kind::kFloat16) scale_outputs(1.0F / kSubnormalScale);
}

/// Take on the format of a run of pages. The ring is empty.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::prepare_run(FormatCode format, uint32_t run) {
  format_ = format;
  keys_ = key_bytes(format.keys(), kFull ? DP : a_.head_dim);
  values_ = value_bytes(format.values(), format.group_shift(), kFull ? DP : a_.head_dim);
  group_shift_ = format.group_shift();
  const int32_t page = keys_.bytes() + values_.bytes();
  by_side_ = 2 * page > a_.ring_bytes;
  slot_bytes_ = by_side_ ? max(keys_.bytes(), values_.bytes()) : page;
  // As many as fit, without a division.
  const int32_t limit = min(a_.ring_bytes, max(kAhead, 2 * slot_bytes_));
  stages_ = __popc(__ballot_sync(kAll, lane_ < kMaxStages && (lane_ + 1) * slot_bytes_ <= limit));
  to_copy_ = run;
  copy_values_next_ = false;
  copy_slot_ = slot_ = 0;
  started_ = 0;
}

/// Have at least n copies of the run on their way.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::start_copies(const uint4& record, int32_t n) {
#pragma unroll 1
  for (; started_ < n; ++started_) copy_next(record);
}

/// Pages go through the ring one by one, or large ones side by side; copies run ahead of their use.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::copy_next(const uint4& record) {
  if (to_copy_ == 0) return;
  const int32_t at = __ffs(static_cast<int>(to_copy_)) - 1;
  uint64_t from = static_cast<uint64_t>(record.y) << 32U | record.x;
  int32_t bytes = by_side_ ? keys_.bytes() : slot_bytes_;
  if (copy_values_next_) {
    from += static_cast<uint64_t>(bytes);
    bytes = values_.bytes();
  }
  start_copy(ring_ + static_cast<uint32_t>(copy_slot_ * slot_bytes_), from, bytes,
             arrived_ + static_cast<uint32_t>(8 * copy_slot_), lane_, at);
  copy_values_next_ = by_side_ && !copy_values_next_;
  if (!copy_values_next_) to_copy_ &= to_copy_ - 1;
  copy_slot_ = copy_slot_ + 1 == stages_ ? 0 : copy_slot_ + 1;
}

/// Address of the oldest slot once its copy has arrived.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ uint32_t Block<DP, kFull, NT>::wait_for_slot() {
  wait_copy(arrived_ + static_cast<uint32_t>(8 * slot_), (parity_ >> slot_) & 1U);
  parity_ ^= 1U << slot_;
  return ring_ + static_cast<uint32_t>(slot_ * slot_bytes_);
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::leave_slot() {
  __syncwarp();
  slot_ = slot_ + 1 == stages_ ? 0 : slot_ + 1;
}

/// Codes of kBits bits on both sides; 0: any kinds, chosen page by page.
template <int DP, bool kFull, int NT>
template <int kBits>
__device__ __forceinline__ void Block<DP, kFull, NT>::run_pages(const Unit& unit, const Batch& batch, uint32_t run) {
  load_query_fragments<kBits>();
#pragma unroll 1
  for (; run != 0; run &= run - 1) {
    copy_next(batch.record);
    uint32_t side = wait_for_slot();
    float scores[NT][2][4];
    if constexpr (kBits == 0) {
      score(side, scores);
    } else if constexpr (kBits == 16) {
      score_float16(side, scores);
    } else {
      score_codes<kBits>(side, scores);
    }
    if (by_side_) {
      leave_slot();
      copy_next(batch.record);
    }
    if constexpr (kBits == 0) {
      if (a_.softcap > 0.0F) cap(scores);
      const int32_t at = __ffs(static_cast<int>(run)) - 1;
      if ((batch.masked >> at & 1U) != 0) mask(unit, batch, at, scores);
    }
    uint32_t p[NT][4];
    softmax(scores, p);
    side = by_side_ ? wait_for_slot() : side + static_cast<uint32_t>(key_layout<kBits>().bytes());
    if constexpr (kBits == 0) {
      add_values(side, p);
    } else if constexpr (kBits == 16) {
      add_float16(side, p);
    } else {
      add_codes<kBits>(side, p);
    }
    leave_slot();
  }
}

/// Where the numbers of a side are, known when compiling if the kind and the head size are.
template <int DP, bool kFull, int NT>
template <int kBits>
__device__ __forceinline__ SideBytes Block<DP, kFull, NT>::key_layout() const {
  if constexpr (kFull && kBits != 0) {
    constexpr SideBytes kBytes = key_bytes(kKindOf<kBits>, DP);
    return kBytes;
  }
  return keys_;
}

template <int DP, bool kFull, int NT>
template <int kBits>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::value_codes() const {
  if constexpr (kFull && kBits != 0) {
    constexpr int32_t kBytes = value_bytes(kKindOf<kBits>, 0, DP).codes;
    return kBytes;
  }
  return values_.codes;
}

}  // namespace kvq::cuda
