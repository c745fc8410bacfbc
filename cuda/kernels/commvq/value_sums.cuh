// Sums of probabilities per bit of the value codes: code rows (words of pages) times columns of weights. A warp sums 64
// bits; shifts and masks turn a lane's words into operands (fragments.cuh).
#pragma once

#include "kernels/commvq/attend.h"
#include "kernels/commvq/codebook.cuh"
#include "kernels/device/copies.cuh"
#include "kernels/device/fragments.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/pages/math.cuh"

namespace kvq::cuda {

inline constexpr int32_t kSumWarps = kBlockBits / kWarpBits;
inline constexpr int32_t kSumThreads = kSumWarps * kWarpLanes;
/// Tokens per step of a block; a thread computes the weights of one of them for some rows.
inline constexpr int32_t kSumTokens = kSumPages * kSlots;
inline constexpr int32_t kRowGroups = kSumThreads / kSumTokens;
inline constexpr int32_t kBitTiles = kWarpBits / 16;

/// Weights in the order of the second operand: slots 4k, 4k + 2, 4k + 1, 4k + 3 of each page. Rows begin 16 words apart
/// in the banks, so that lanes of four rows do not conflict.
template <int kTiles>
struct SumShared {
  __half weights[2][8 * kTiles][kSumTokens + 16];
  uint32_t words[kSumWarps][kSumPages][kWarpBits];  // next pages' words: each page's place is reused for the next step
  float maxima[8 * kTiles];
  float totals[kSumWarps][8 * kTiles / kRowGroups];
};

/// Highest score of a row over all parts of its list, by one warp.
__device__ __forceinline__ float row_maximum(const CommvqAttention& commvq, int64_t row, int32_t lane) {
  float most = minus_infinity();
  for (int32_t part = lane; part < commvq.parts; part += kWarpLanes) {
    most = fmaxf(most, commvq.maxima[row * commvq.parts + part]);
  }
  return largest_of_lanes(most);
}

__device__ __forceinline__ void copy_eight_bytes(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;\n" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until at most `kLeft` copy groups are pending.
template <int kLeft>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kLeft) : "memory");
}

template <int kTiles>
class BitSummer {
 public:
  static constexpr int32_t kRows = 8 * kTiles;
  static constexpr int32_t kOwnRows = kRows / kRowGroups;  // rows whose weights a thread computes

  __device__ BitSummer(const AttendArguments& arguments, const CommvqAttention& commvq, SumShared<kTiles>& shared)
      : c_(commvq),
        shared_(shared),
        values_(commvq.tables.values),
        warp_(static_cast<int32_t>(threadIdx.x) / kWarpLanes),
        lane_(static_cast<int32_t>(threadIdx.x) % kWarpLanes),
        bit_blocks_((values_.bits + kBlockBits - 1) / kBlockBits),
        part_(static_cast<int32_t>(blockIdx.x)),
        bit_block_(static_cast<int32_t>(blockIdx.y) % bit_blocks_),
        first_row_(static_cast<int32_t>(blockIdx.y) / bit_blocks_ * kRows),
        sequence_(static_cast<int32_t>(blockIdx.z) / commvq.vectors()),
        vector_(static_cast<int32_t>(blockIdx.z) % commvq.vectors()),
        first_head_(vector_ * commvq.heads_together()),
        first_bit_(bit_block_ * kBlockBits + warp_ % commvq.bit_warps() * kWarpBits),
        view_(arguments.sequences[sequence_].view),
        pages_(view_.heads[first_head_].pages) {}

  __device__ void run() {
    for (int32_t row = warp_; row < kRows; row += kSumWarps) {
      const bool exists = first_row_ + row < c_.vector_rows();
      const float most = exists ? row_maximum(c_, row_at(row), lane_) : minus_infinity();
      if (lane_ == 0) shared_.maxima[row] = most;
    }
    __syncthreads();
    const auto blocks = static_cast<int32_t>(gridDim.x);
    const int32_t steps = (pages_ + kSumPages - 1) / kSumPages;
    const bool has_bits = first_bit_ < values_.bits;
    int32_t phase = 0;
    uint64_t words = has_bits ? find_words(part_) : 0;
    for (int32_t page = first_page(); has_bits && page < kSumPages; page += c_.page_warps()) start_copy(page, words);
#pragma unroll 1
    for (int32_t step = part_; step < steps; step += blocks, phase ^= 1) {
      const uint64_t next = has_bits ? find_words(step + blocks) : 0;
      weigh(step * kSumPages, phase);
      __syncthreads();
      if (!has_bits) continue;
#pragma unroll 1
      for (int32_t page = first_page(); page < kSumPages; page += c_.page_warps()) {
        wait_for_page();
        if (__shfl_sync(kAll, words, page) != 0) add(page, phase);
        __syncwarp();
        start_copy(page, next);
      }
      words = next;
    }
    if (has_bits) store_sums();
    store_totals();
  }

 private:
  __device__ __forceinline__ DevicePage record_of(int32_t head, int32_t index) const {
    const uint4 words =
        __ldg(reinterpret_cast<const uint4*>(view_.pages + static_cast<int64_t>(head) * view_.capacity + index));
    return *reinterpret_cast<const DevicePage*>(&words);
  }
  /// Row index among all sequences.
  __device__ __forceinline__ int64_t row_at(int32_t row) const {
    return static_cast<int64_t>(sequence_) * c_.all_rows() + first_head_ * c_.rows + first_row_ + row;
  }

  /// First row whose weights the thread computes.
  __device__ __forceinline__ int32_t own_row() const {
    return static_cast<int32_t>(threadIdx.x) / kSumTokens * kOwnRows;
  }

  /// Computes a token's weights in the thread's rows, times the scale of its values.
  __device__ __forceinline__ void weigh(int32_t first_page, int32_t phase) {
    const int32_t token = static_cast<int32_t>(threadIdx.x) % kSumTokens;
    const int32_t slot = token % kSlots;
    const int32_t index = first_page + token / kSlots;
    float scale = 0.0F;
    if (index < pages_) {
      const int32_t head = values_.of_layer() ? slot / values_.numbers.share : first_head_;
      const DevicePage holder = record_of(head, index);
      if (holder.format() == c_.format) {
        const uint64_t place = holder.data + static_cast<uint64_t>(c_.values_at + place_of(values_.numbers, slot));
        scale = __half2float(__ushort_as_half(__ldg(reinterpret_cast<const uint16_t*>(place))));
      }
    }
    const int32_t place = token - slot + (slot & ~3) + (slot & 1) * 2 + (slot >> 1 & 1);
    const int32_t first = own_row();
    const float* scores = c_.scores + row_at(first) * c_.tokens + index * kSlots + slot;
#pragma unroll
    for (int32_t i = 0; i < kOwnRows; ++i) {
      const float maximum = shared_.maxima[first + i];
      float weight = 0.0F;
      if (index < pages_ && maximum > minus_infinity()) {
        weight = exp2_fast(__ldcs(scores + static_cast<int64_t>(i) * c_.tokens) - maximum);
      }
      shared_.weights[phase][first + i][place] = __float2half_rn(weight * scale);
      totals_[i] += weight;
    }
  }

  /// First page of a step that the warp takes.
  __device__ __forceinline__ int32_t first_page() const { return warp_ / c_.bit_warps(); }

  /// One page of a step per lane: address of the warp's words, or 0 if the page has no codes.
  __device__ __forceinline__ uint64_t find_words(int32_t step) const {
    const int32_t index = step * kSumPages + lane_;
    if (lane_ >= kSumPages || index >= pages_) return 0;
    const DevicePage page = record_of(first_head_ + (values_.of_layer() ? first_bit_ / values_.lanes : 0), index);
    if (page.format() != c_.format) return 0;
    return page.data + static_cast<uint64_t>(c_.values_at + 4 * (first_bit_ % values_.lanes));
  }

  __device__ __forceinline__ void start_copy(int32_t page, uint64_t words) const {
    const uint64_t from = __shfl_sync(kAll, words, page);
    if (from != 0) {
#pragma unroll
      for (int32_t i = 2 * lane_; i < kWarpBits; i += 2 * kWarpLanes) {
        copy_eight_bytes(shared_address(&shared_.words[warp_][page][i]), reinterpret_cast<const uint32_t*>(from) + i);
      }
    }
    commit_copies();
  }

  /// Waits for the step's oldest copy.
  __device__ __forceinline__ void wait_for_page() const {
    const int32_t pages = kSumPages / c_.page_warps();
    if (pages == 8) {
      wait_copies<7>();
    } else if (pages == 4) {
      wait_copies<3>();
    } else if (pages == 2) {
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncwarp();
  }

  __device__ __forceinline__ void add(int32_t page, int32_t phase) {
    const int32_t g = lane_ / 4;
    const int32_t t = lane_ % 4;
    const uint32_t* words = shared_.words[warp_][page] + g;
#pragma unroll
    for (int32_t step = 0; step < 2; ++step) {
      uint2 weights[kTiles];
#pragma unroll
      for (int32_t n = 0; n < kTiles; ++n) {
        weights[n] =
            *reinterpret_cast<const uint2*>(&shared_.weights[phase][8 * n + g][page * kSlots + 16 * step + 4 * t]);
      }
      if (sums_scales()) {
#pragma unroll
        for (int32_t n = 0; n < kTiles; ++n) {
          mma(scales_[n], 0x00010001U, 0, 0x00010001U, 0, weights[n].x, weights[n].y);
        }
      }
#pragma unroll
      for (int32_t tile = 0; tile < kBitTiles; ++tile) {
        // Bit k of bytes 0 and 2 of a word belongs to slots 4k and 4k + 2; bytes 1 and 3 hold the slots after these.
        uint32_t bits[4];
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
          const uint32_t word = words[16 * tile + 8 * i] >> (t + 4 * step);
          bits[i] = word & 0x00010001U;
          bits[2 + i] = word >> 8U & 0x00010001U;
        }
#pragma unroll
        for (int32_t n = 0; n < kTiles; ++n) mma(sums_[tile][n], bits, weights[n].x, weights[n].y);
      }
    }
  }

  __device__ void store_sums() const {
    const int32_t g = lane_ / 4;
    const int32_t t = lane_ % 4;
    const int32_t part = part_ * c_.page_warps() + warp_ / c_.bit_warps();
    const int64_t vector = static_cast<int64_t>(sequence_) * c_.vectors() + vector_;
    float* to = c_.sums + (vector * c_.sum_parts + part) * c_.vector_rows() * values_.bits;
#pragma unroll
    for (int32_t tile = 0; tile < kBitTiles; ++tile) {
#pragma unroll
      for (int32_t n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t row = first_row_ + 8 * n + 2 * t + i % 2;
          const int32_t bit = first_bit_ + 16 * tile + 8 * (i / 2) + g;
          if (row < c_.vector_rows()) to[static_cast<int64_t>(row) * values_.bits + bit] = sums_[tile][n][i];
        }
      }
    }
  }

  /// The warps of the first bits also sum weights times scales, as a bit that is set in every token.
  __device__ __forceinline__ bool sums_scales() const { return first_bit_ == 0; }
  /// Totals of a row for the part of page group `group`.
  __device__ __forceinline__ float* weights_of(int32_t row, int32_t group) const {
    return c_.weights + (row_at(row) * c_.sum_parts + part_ * c_.page_warps() + group) * 2;
  }

  /// The first page group stores the total weight of all tokens.
  __device__ void store_totals() {
    if (sums_scales() && lane_ < 4) {
#pragma unroll
      for (int32_t n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int32_t c = 0; c < 2; ++c) {
          const int32_t row = 8 * n + 2 * lane_ + c;
          if (first_row_ + row < c_.vector_rows()) {
            weights_of(row, warp_ / c_.bit_warps())[1] = scales_[n][c] * kSubnormalScale;
          }
        }
      }
    }
#pragma unroll
    for (int32_t i = 0; i < kOwnRows; ++i) {
      const float sum = sum_of_lanes(totals_[i]);
      if (lane_ == 0) shared_.totals[warp_][i] = sum;
    }
    __syncthreads();
    const auto row = static_cast<int32_t>(threadIdx.x);
    if (bit_block_ != 0 || row >= kRows || first_row_ + row >= c_.vector_rows()) return;
    constexpr int32_t kGroupWarps = kSumWarps / kRowGroups;
    float sum = 0.0F;
    for (int32_t i = 0; i < kGroupWarps; ++i) sum += shared_.totals[row / kOwnRows * kGroupWarps + i][row % kOwnRows];
    for (int32_t group = 0; group < c_.page_warps(); ++group) weights_of(row, group)[0] = group == 0 ? sum : 0.0F;
  }

  const CommvqAttention& c_;
  SumShared<kTiles>& shared_;
  const ValueTables& values_;
  int32_t warp_;
  int32_t lane_;
  int32_t bit_blocks_;
  int32_t part_;
  int32_t bit_block_;
  int32_t first_row_;
  int32_t sequence_;
  int32_t vector_;
  int32_t first_head_;
  int32_t first_bit_;
  const SequenceView& view_;
  int32_t pages_;
  float sums_[kBitTiles][kTiles][4] = {};
  float totals_[kOwnRows] = {};
  float scales_[kTiles][4] = {};
};

}  // namespace kvq::cuda
