// Outputs from the sums per bit and from values of FP16 pages. A block takes 128 bits of a head, or some of its FP16
// pages; the last block of a head adds up.
#pragma once

#include "kernels/attend/units.cuh"
#include "kernels/commvq/value_sums.cuh"
#include "kernels/device/copies.cuh"

namespace kvq::cuda {

/// Threads are channels or bits, in several groups that share parts or rows.
inline constexpr int32_t kOutputGroups = 8;
inline constexpr int32_t kOutputThreads = kOutputGroups * kCommvqDim;
inline constexpr int32_t kOutputWarps = kOutputThreads / kWarpLanes;
static_assert(kOutputBits == kCommvqDim && kMostCommvqRows <= kOutputWarps);

/// Shared memory for 8 · kTiles rows; each group owns every eighth row.
template <int kTiles>
struct OutputShared {
  static constexpr int32_t kOutputRows = kOutputGroups * kTiles;
  __half codes[kOutputBits][kCommvqDim];
  // Sums per bit of some parts, then of all; or weights of a page's slots.
  float sums[kOutputGroups][kOutputRows][kOutputBits];
  float maxima[kOutputRows];
  float weights[kOutputRows][2];
};

template <int kTiles>
class OutputMaker {
 public:
  static constexpr int32_t kOwnRows = kTiles;

  __device__ OutputMaker(const AttendArguments& arguments, const CommvqAttention& commvq, OutputShared<kTiles>& shared)
      : a_(arguments),
        c_(commvq),
        shared_(shared),
        values_(commvq.tables.values),
        block_(static_cast<int32_t>(blockIdx.x)),
        head_(static_cast<int32_t>(blockIdx.y)),
        sequence_(static_cast<int32_t>(blockIdx.z)),
        warp_(static_cast<int32_t>(threadIdx.x) / kWarpLanes),
        lane_(static_cast<int32_t>(threadIdx.x) % kWarpLanes),
        channel_(static_cast<int32_t>(threadIdx.x) % kCommvqDim),
        group_(static_cast<int32_t>(threadIdx.x) / kCommvqDim),
        view_(arguments.sequences[sequence_].view) {}

  __device__ void run() {
    const int32_t bit_blocks = values_.bits / kOutputBits;
    if (block_ < bit_blocks) {
      decode_sums();
    } else {
      add_pages(block_ - bit_blocks);
    }
    float* to = outputs(block_);
    for_own_rows([&](int32_t i, int32_t row) { to[row * kCommvqDim + channel_] = sums_[i]; });
    __syncthreads();
    const bool last = threadIdx.x == 0 && take_ticket(ticket()) == c_.output_blocks() - 1;
    if (last) *ticket() = 0;
    if (__syncthreads_or(last ? 1 : 0) != 0) finish();
  }

 private:
  template <typename Use>
  __device__ __forceinline__ void for_own_rows(const Use& use) {
#pragma unroll
    for (int32_t i = 0; i < kOwnRows; ++i) {
      const int32_t row = kOutputGroups * i + group_;
      if (row < c_.rows) use(i, row);
    }
  }
  __device__ __forceinline__ int64_t unit() const {
    return static_cast<int64_t>(sequence_) * c_.tables.kv_heads + head_;
  }
  __device__ __forceinline__ int32_t* ticket() const { return c_.tickets + unit(); }
  __device__ __forceinline__ float* outputs(int32_t block) const {
    return c_.outputs + (unit() * c_.output_blocks() + block) * c_.rows * kCommvqDim;
  }
  __device__ __forceinline__ int64_t row_at(int32_t row) const { return unit() * c_.rows + row; }
  /// Index of the head's codes, and its first channel in their vector.
  __device__ __forceinline__ int64_t vector() const { return values_.of_layer() ? 0 : head_; }
  __device__ __forceinline__ int32_t first_channel() const { return values_.of_layer() ? head_ * kCommvqDim : 0; }

  /// One row per warp.
  __device__ __forceinline__ void find_maxima() {
    if (warp_ >= c_.rows) return;
    const float most = row_maximum(c_, row_at(warp_), lane_);
    if (lane_ == 0) shared_.maxima[warp_] = most;
  }

  __device__ void decode_sums() {
    const uint16_t* codes =
        values_.codes + (vector() * values_.bits + block_ * kOutputBits) * values_.width + first_channel();
    constexpr int32_t kChunks = kCommvqDim / 8;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < kOutputBits * kChunks; i += kOutputThreads) {
      const int32_t bit = i / kChunks;
      const int32_t chunk = 8 * (i % kChunks);
      copy_chunk(shared_address(&shared_.codes[bit][chunk]), codes + static_cast<int64_t>(bit) * values_.width + chunk);
    }
    // Here thread channel_ is a bit, and each group takes every eighth part.
    const int64_t first_row = values_.of_layer() ? head_ * c_.rows : 0;
    const int64_t stride = static_cast<int64_t>(c_.vector_rows()) * values_.bits;
    const int64_t of_vector = (static_cast<int64_t>(sequence_) * c_.vectors() + vector()) * c_.sum_parts * stride;
    const float* from = c_.sums + of_vector + first_row * values_.bits + block_ * kOutputBits + channel_;
    for (int32_t first = 0; first < c_.rows; first += kOwnRows * 2) {
      float sums[kOwnRows * 2] = {};
#pragma unroll 4
      for (int32_t part = group_; part < c_.sum_parts; part += kOutputGroups) {
#pragma unroll
        for (int32_t i = 0; i < kOwnRows * 2; ++i) {
          if (first + i < c_.rows) sums[i] += from[part * stride + static_cast<int64_t>(first + i) * values_.bits];
        }
      }
#pragma unroll
      for (int32_t i = 0; i < kOwnRows * 2; ++i) {
        if (first + i < c_.rows) shared_.sums[group_][first + i][channel_] = sums[i];
      }
    }
    wait_chunks();
    __syncthreads();
    for_own_rows([&](int32_t /*i*/, int32_t row) {
      float sum = 0.0F;
#pragma unroll
      for (int32_t group = 0; group < kOutputGroups; ++group) sum += shared_.sums[group][row][channel_];
      shared_.sums[0][row][channel_] = sum * kSubnormalScale;
    });
    __syncthreads();
    for_own_rows([&](int32_t i, int32_t row) {
#pragma unroll 16
      for (int32_t bit = 0; bit < kOutputBits; ++bit) {
        sums_[i] = fmaf(shared_.sums[0][row][bit], __half2float(shared_.codes[bit][channel_]), sums_[i]);
      }
    });
  }

  /// Adds the FP16 pages among every kPlainParts-th page.
  __device__ void add_pages(int32_t part) {
    find_maxima();
    const int32_t pages = view_.heads[head_].pages;
    const DevicePage* records = view_.pages + static_cast<int64_t>(head_) * view_.capacity;
    for (int32_t first = part; first < pages; first += kPlainParts * kOutputThreads) {
      const int32_t mine = first + kPlainParts * static_cast<int32_t>(threadIdx.x);
      const bool plain = mine < pages && records[mine].format() != c_.format;
      if (__syncthreads_or(plain ? 1 : 0) == 0) continue;
      // All threads repeat the search, 32 pages at a time.
      for (int32_t i = 0; i < kOutputThreads; i += kWarpLanes) {
        const int32_t index = first + kPlainParts * (i + lane_);
        const bool is_plain = index < pages && records[index].format() != c_.format;
        for (uint32_t found = __ballot_sync(kAll, is_plain); found != 0; found &= found - 1) {
          const int32_t at = first + kPlainParts * (i + __ffs(static_cast<int32_t>(found)) - 1);
          add_page(records[at], at);
        }
      }
    }
  }

  __device__ void add_page(const DevicePage& page, int32_t index) {
    __syncthreads();
    if (warp_ < c_.rows) {
      const float maximum = shared_.maxima[warp_];
      const float score = c_.scores[row_at(warp_) * c_.tokens + index * kSlots + lane_];
      shared_.sums[0][warp_][lane_] = maximum > minus_infinity() ? exp2_fast(score - maximum) : 0.0F;
    }
    __syncthreads();
    const auto* side = reinterpret_cast<const std::byte*>(page.data) + kSlots * kCommvqDim * 2;
    for_own_rows([&](int32_t i, int32_t row) {
#pragma unroll
      for (int32_t slot = 0; slot < kSlots; slot += 2) {
        const uint32_t two =
            __ldg(reinterpret_cast<const uint32_t*>(side + float16_place(Side::kValues, kCommvqDim, slot, channel_)));
        const float2 value = __half22float2(*reinterpret_cast<const __half2*>(&two));
        sums_[i] = fmaf(shared_.sums[0][row][slot], value.x, sums_[i]);
        sums_[i] = fmaf(shared_.sums[0][row][slot + 1], value.y, sums_[i]);
      }
    });
  }

  /// Runs in the last block of a head.
  __device__ void finish() {
    find_maxima();
    if (warp_ < c_.rows) {
      const float* weights = c_.weights + row_at(warp_) * c_.sum_parts * 2;
      float all = 0.0F;
      float scaled = 0.0F;
      for (int32_t part = lane_; part < c_.sum_parts; part += kWarpLanes) {
        all += weights[2 * part];
        scaled += weights[2 * part + 1];
      }
      all = sum_of_lanes(all);
      scaled = sum_of_lanes(scaled);
      if (lane_ == 0) {
        shared_.weights[warp_][0] = all;
        shared_.weights[warp_][1] = scaled;
      }
    }
    __syncthreads();
    const Unit unit{sequence_, head_, 0};
    const int32_t rows = a_.sequences[sequence_].query_count * static_cast<int32_t>(a_.group.number);
    const int64_t channel = vector() * values_.width + first_channel() + channel_;
    const int32_t bit_blocks = values_.bits / kOutputBits;
    for_own_rows([&](int32_t /*i*/, int32_t row) {
      if (row >= rows) return;
      float sum = shared_.weights[row][1] * __ldg(values_.offset + channel);
#pragma unroll 8
      for (int32_t block = 0; block < bit_blocks; ++block) sum += outputs(block)[row * kCommvqDim + channel_];
      sum *= __ldg(values_.channel_scale + channel);
#pragma unroll
      for (int32_t block = 0; block < kPlainParts; ++block) {
        sum += outputs(bit_blocks + block)[row * kCommvqDim + channel_];
      }
      const RowPlace place = row_place(a_, unit, row);
      const float all = shared_.weights[row][0];
      const RowSum seen{all > 0.0F ? shared_.maxima[row] : minus_infinity(), all};
      const float factor = finish_row(a_, place, seen, channel_ == 0);
      float output = sum * factor;
      if (view_.scales) output = unscale_output(view_.scales, head_, kCommvqDim, channel_, output, factor * all);
      write_float(a_.out, a_.out_dtype, row_offset(a_.out_strides, place) + channel_, output);
    });
  }

  const AttendArguments& a_;
  const CommvqAttention& c_;
  OutputShared<kTiles>& shared_;
  const ValueTables& values_;
  int32_t block_;
  int32_t head_;
  int32_t sequence_;
  int32_t warp_;
  int32_t lane_;
  int32_t channel_;
  int32_t group_;
  const SequenceView& view_;
  float sums_[kOwnRows] = {};
};

}  // namespace kvq::cuda
