// The walk over pages: segments, batches of page records, runs of one format, copies through the ring.
#pragma once

#include "kernels/attend_block.cuh"

namespace kvq::cuda {

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::run() {
  const bool split = a_.split != 0;
  const auto block = static_cast<int32_t>(blockIdx.x);
  int32_t u = block;
  int32_t last = block;
  int32_t begin = 0;
  int32_t share = INT32_MAX;
  if (split) {
    const int32_t total = share_pages(share);
    if (empty_units_) {
      for (; u < a_.units; u += static_cast<int32_t>(gridDim.x)) {
        if (page_count(find_unit(u)) == 0) write_zeros(find_unit(u));
      }
    }
    if (static_cast<int64_t>(block) * share >= total) return;
    begin = block * share;
    u = first_unit(begin);
    last = first_unit(min(begin + share, total) - 1);
  }
#pragma unroll 1
  for (; u <= last; ++u) {
    const Unit unit = find_unit(u);
    const int32_t from = split ? unit_begin(u) : 0;
    const int32_t to = from + page_count(unit);
    if (from == to) {
      if (!split) write_zeros(unit);
      continue;
    }
    const int32_t end = split ? min(begin + share, to) : to;
    const int32_t first = max(begin, from);
    if (first >= end) continue;
    const int32_t first_block = split ? from / share : block;
    const int32_t parts = split ? (to - 1) / share - first_block + 1 : 1;
    run_segment(unit, u, first - from, end - from, parts, first_block);
  }
}

/// Pages [begin, end) of a unit. `parts` blocks share the unit, block `first_block` the first.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::run_segment(const Unit& unit, int32_t index, int32_t begin,
                                                                  int32_t end, int32_t parts, int32_t first_block) {
  __syncthreads();  // the rings may still hold the last segment's outputs
  const SequenceView& view = unit.sequence->view;
  const auto* pages = reinterpret_cast<const uint4*>(view.pages + static_cast<int64_t>(unit.head) * view.capacity);
  const int32_t stride = warps_;
  int32_t base = begin + warp_;
  const auto load_records = [&] {
    const int32_t mine = base + lane_ * stride;
    return mine < end ? __ldg(pages + mine) : uint4{0, 0, 0, 0};
  };
  uint4 record = load_records();
  rows_ = rows_of(unit);
  reset();
  QueryRow row;
  load_row(unit, warp_, row);
  // A single newest query sees every page, so copies can start before it is known where it is.
  prepared_ = false;
  if (a_.query_positions == nullptr && unit.sequence->query_count == 1 && a_.window == 0 && base < end) {
    const uint32_t pages = __ballot_sync(kAll, record.w != 0);
    prepare_run(first_run(record, pages, __ballot_sync(kAll, is_partial(record))), record, kEarlyCopies);
    prepared_ = true;
  }
  load_queries(unit, row);
  __syncthreads();
  read_rows();
#pragma unroll 1
  for (; base < end; base += 32 * stride, record = load_records()) run_batch(unit, base, stride, record);
  finish_run();
  store_warp();
  __syncthreads();
  merge_warps();
  if (parts > 1) {
    store_partial(index);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      const int32_t before = atomicAdd(&a_.tickets[index], 1);
      s_.is_last = before == parts - 1 ? 1 : 0;
      if (s_.is_last != 0) a_.tickets[index] = 0;
    }
    __syncthreads();
    if (s_.is_last == 0) return;
    __threadfence();
  }
  write_output(unit, index, parts, first_block);
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
  rotated_space_ = false;
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
  min_position_ = max_position_ = s_.row_position[0];
#pragma unroll 1
  for (int32_t row = 1; row < rows_; ++row) {
    min_position_ = min(min_position_, s_.row_position[row]);
    max_position_ = max(max_position_, s_.row_position[row]);
  }
}

/// Up to 32 pages of this warp; lane i holds the record of page base + i · stride, or zeros.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::run_batch(const Unit& unit, int32_t base, int32_t stride,
                                                                const uint4& record) {
  const auto first = static_cast<int32_t>(record.z);
  bool visible = record.w != 0 && first <= max_position_;
  if (visible && a_.window > 0) {
    const DevicePage page{0, first, 0, static_cast<uint8_t>(record.w >> 16U), static_cast<uint8_t>(record.w >> 24U)};
    const int32_t last = position_in_page(unit, page, base + lane_ * stride, page.count - 1);
    visible = last > static_cast<int64_t>(min_position_) - a_.window;
  }
  uint32_t wanted = __ballot_sync(kAll, visible);
  const uint32_t masked = __ballot_sync(kAll, needs_mask(record));
#pragma unroll 1
  while (wanted != 0) {
    const uint32_t run = first_run(record, wanted, masked);
    wanted &= ~run;
    if (!prepared_) prepare_run(run, record, 0);
    prepared_ = false;
    start_copies(record, stages_ - 1);
    load_query_fragments();
    // Most pages have both sides of one kind and need nothing special: loops without a choice inside.
    const bool closer = (run & masked) != 0 || a_.softcap > 0.0F || format_.keys() != format_.values();
    const Pages pages{unit, base, stride, record, run, masked};
    if (closer) {
      run_pages<0>(pages);
      continue;
    }
    switch (format_.keys()) {
      case Kind::kFloat16:
        run_pages<16>(pages);
        break;
      case Kind::kInt8:
        run_pages<8>(pages);
        break;
      case Kind::kInt4:
        run_pages<4>(pages);
        break;
      case Kind::kInt3:
        run_pages<3>(pages);
        break;
      case Kind::kInt2:
        run_pages<2>(pages);
        break;
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
__device__ __forceinline__ uint32_t Block<DP, kFull, NT>::first_run(const uint4& record, uint32_t wanted,
                                                                    uint32_t masked) const {
  const uint32_t kind = (record.w & 0xFFFFU) | (masked >> lane_ & 1U) << 16U;
  const uint32_t of_first = __shfl_sync(kAll, kind, __ffs(static_cast<int>(wanted)) - 1);
  const uint32_t differs = __ballot_sync(kAll, kind != of_first) & wanted;
  return differs == 0 ? wanted : wanted & ((1U << (__ffs(static_cast<int>(differs)) - 1)) - 1U);
}

/// Take on the format of a run of pages, and start the first copies.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::prepare_run(uint32_t run, const uint4& record, int32_t copies) {
  const FormatCode format{__shfl_sync(kAll, record.w & 0xFFFFU, __ffs(static_cast<int>(run)) - 1)};
  if (!nothing_added()) {
    finish_run();
    change_space(format.hadamard_values());
    if (format.values() != Kind::kFloat16) scale_outputs(1.0F / kSubnormalScale);
  }
  rotated_space_ = format.hadamard_values();
  format_ = format;
  keys_ = key_bytes(format.keys(), a_.head_dim);
  values_ = value_bytes(format.values(), format.group_shift(), a_.head_dim);
  group_shift_ = format.group_shift();
  const int32_t page = keys_.bytes() + values_.bytes();
  by_side_ = 2 * page > a_.ring_bytes;
  slot_bytes_ = by_side_ ? max(keys_.bytes(), values_.bytes()) : page;
  stages_ = min(a_.ring_bytes / slot_bytes_, kMaxStages);
  to_copy_ = run;
  copy_values_next_ = false;
  copy_slot_ = slot_ = 0;
  started_ = 0;
  start_copies(record, min(copies, stages_ - 1));
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
  uint64_t from = static_cast<uint64_t>(__shfl_sync(kAll, record.y, at)) << 32U |
                  static_cast<uint64_t>(__shfl_sync(kAll, record.x, at));
  int32_t bytes = by_side_ ? keys_.bytes() : slot_bytes_;
  if (copy_values_next_) {
    from += static_cast<uint64_t>(bytes);
    bytes = values_.bytes();
  }
  start_copy(ring_ + static_cast<uint32_t>(copy_slot_ * slot_bytes_), from, bytes,
             arrived_ + static_cast<uint32_t>(8 * copy_slot_), lane_);
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
__device__ __forceinline__ void Block<DP, kFull, NT>::run_pages(const Pages& pages) {
  uint32_t wanted = pages.wanted;
#pragma unroll 1
  while (wanted != 0) {
    copy_next(pages.record);
    const int32_t at = __ffs(static_cast<int>(wanted)) - 1;
    wanted &= wanted - 1;
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
      copy_next(pages.record);
    }
    if constexpr (kBits == 0) {
      if (a_.softcap > 0.0F) cap(scores);
      if ((pages.masked >> at & 1U) != 0) mask(pages, at, scores);
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
