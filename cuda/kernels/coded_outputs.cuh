// What sums by bits decode to, and the values of pages in FP16. A block has 128 bits of a head, or some of its FP16
// pages; the last one of a head adds up.
#pragma once

#include "kernels/attend_units.cuh"
#include "kernels/coded_sums.cuh"
#include "kernels/copies.cuh"

namespace kvq::cuda {

inline constexpr int32_t kOutputThreads = 256;
inline constexpr int32_t kOutputRows = kMostCodedRows;
/// Threads are channels, twice: each half has every second row.
inline constexpr int32_t kOwnRows = kOutputRows * kCodedDim / kOutputThreads;
static_assert(kOutputThreads == 2 * kCodedDim && kWarpBits == kCodedDim);

struct OutputShared {
  float sums[kOutputRows][kWarpBits];  // by bits, or weights of a page's slots
  float maxima[kOutputRows];
};

class OutputMaker {
 public:
  __device__ OutputMaker(const AttendArguments& arguments, const CodedAttention& coded, OutputShared& shared)
      : a_(arguments),
        c_(coded),
        shared_(shared),
        values_(coded.tables.values),
        block_(static_cast<int32_t>(blockIdx.x)),
        head_(static_cast<int32_t>(blockIdx.y)),
        sequence_(static_cast<int32_t>(blockIdx.z)),
        channel_(static_cast<int32_t>(threadIdx.x) % kCodedDim),
        half_(static_cast<int32_t>(threadIdx.x) / kCodedDim),
        view_(arguments.sequences[sequence_].view) {}

  __device__ void run() {
    const int32_t bit_blocks = values_.bits / kWarpBits;
    if (block_ < bit_blocks) {
      decode_sums();
    } else {
      add_pages(block_ - bit_blocks);
    }
    float* to = outputs(block_);
    for_own_rows([&](int32_t i, int32_t row) { to[row * kCodedDim + channel_] = sums_[i]; });
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
      const int32_t row = 2 * i + half_;
      if (row < c_.rows) use(i, row);
    }
  }
  __device__ __forceinline__ int64_t unit() const { return static_cast<int64_t>(sequence_) * c_.tables.kv_heads + head_; }
  __device__ __forceinline__ int32_t* ticket() const { return c_.tickets + unit(); }
  __device__ __forceinline__ float* outputs(int32_t block) const {
    return c_.outputs + (unit() * c_.output_blocks() + block) * c_.rows * kCodedDim;
  }
  __device__ __forceinline__ int64_t row_at(int32_t row) const { return unit() * c_.rows + row; }
  /// Where the head's channels are in those of its vector.
  __device__ __forceinline__ int32_t first_channel() const { return values_.of_layer() ? head_ * kCodedDim : 0; }
  __device__ __forceinline__ int64_t vector() const { return values_.of_layer() ? 0 : head_; }

  __device__ void decode_sums() {
    const int32_t vector_of_sums = values_.of_layer() ? 0 : head_;
    const int32_t first_row = values_.of_layer() ? head_ * c_.rows : 0;
    const int64_t stride = static_cast<int64_t>(c_.vector_rows()) * values_.bits;
    const float* from = c_.sums +
                        (static_cast<int64_t>(sequence_) * c_.vectors() + vector_of_sums) * c_.sum_parts * stride +
                        static_cast<int64_t>(first_row) * values_.bits + block_ * kWarpBits + channel_;
    for_own_rows([&](int32_t /*i*/, int32_t row) {
      float sum = 0.0F;
#pragma unroll 8
      for (int32_t part = 0; part < c_.sum_parts; ++part) sum += from[part * stride + static_cast<int64_t>(row) * values_.bits];
      shared_.sums[row][channel_] = sum * kSubnormalScale;
    });
    __syncthreads();
    const uint16_t* codes = values_.codes + (vector() * values_.bits + block_ * kWarpBits) * values_.width +
                            first_channel() + channel_;
#pragma unroll 4
    for (int32_t bit = 0; bit < kWarpBits; ++bit) {
      const float code = half_at(codes, static_cast<int64_t>(bit) * values_.width);
      for_own_rows([&](int32_t i, int32_t row) { sums_[i] = fmaf(shared_.sums[row][bit], code, sums_[i]); });
    }
  }

  /// Every kPlainParts-th page, if it is in FP16.
  __device__ void add_pages(int32_t part) {
    if (threadIdx.x < kOutputRows) {
      const auto row = static_cast<int32_t>(threadIdx.x);
      shared_.maxima[row] = row < c_.rows ? row_maximum(c_, row_at(row)) : minus_infinity();
    }
    const int32_t pages = view_.heads[head_].pages;
    const DevicePage* records = view_.pages + static_cast<int64_t>(head_) * view_.capacity;
    for (int32_t first = part; first < pages; first += kPlainParts * kOutputThreads) {
      const int32_t mine = first + kPlainParts * static_cast<int32_t>(threadIdx.x);
      const bool plain = mine < pages && records[mine].format != c_.coded;
      if (__syncthreads_or(plain ? 1 : 0) == 0) continue;
      for (int32_t i = 0; i < kOutputThreads; ++i) {
        const int32_t index = first + kPlainParts * i;
        if (index >= pages) break;
        const DevicePage page = records[index];
        if (page.format == c_.coded) continue;
        add_page(page, index);
      }
    }
  }

  __device__ void add_page(const DevicePage& page, int32_t index) {
    __syncthreads();
    for (auto i = static_cast<int32_t>(threadIdx.x); i < kOutputRows * kSlots; i += kOutputThreads) {
      const int32_t row = i / kSlots;
      const int32_t slot = i % kSlots;
      const float maximum = shared_.maxima[row];
      shared_.sums[row][slot] =
          maximum > minus_infinity() ? exp2_fast(c_.scores[row_at(row) * c_.tokens + index * kSlots + slot] - maximum)
                                     : 0.0F;
    }
    __syncthreads();
    const auto* side = reinterpret_cast<const std::byte*>(page.data) + kSlots * kCodedDim * 2;
#pragma unroll 4
    for (int32_t slot = 0; slot < kSlots; slot += 2) {
      const uint32_t two = __ldg(reinterpret_cast<const uint32_t*>(
          side + float16_place(Side::kValues, kCodedDim, slot, channel_)));
      const float2 value = __half22float2(*reinterpret_cast<const __half2*>(&two));
      for_own_rows([&](int32_t i, int32_t row) {
        sums_[i] = fmaf(shared_.sums[row][slot], value.x, sums_[i]);
        sums_[i] = fmaf(shared_.sums[row][slot + 1], value.y, sums_[i]);
      });
    }
  }

  __device__ void finish() {
    const Unit unit{sequence_, head_, 0};
    const int32_t rows = a_.sequences[sequence_].query_count * static_cast<int32_t>(a_.group.number);
    const float offset = __ldg(values_.offset + vector() * values_.width + first_channel() + channel_);
    const float channel_scale = __ldg(values_.channel_scale + vector() * values_.width + first_channel() + channel_);
    const int32_t bit_blocks = values_.bits / kWarpBits;
    for_own_rows([&](int32_t /*i*/, int32_t row) {
      if (row >= rows) return;
      const float* weights = c_.weights + row_at(row) * c_.sum_parts * 2;
      float all = 0.0F;
      float scaled = 0.0F;
      for (int32_t part = 0; part < c_.sum_parts; ++part) {
        all += weights[2 * part];
        scaled += weights[2 * part + 1];
      }
      float sum = scaled * offset;
      for (int32_t block = 0; block < bit_blocks; ++block) sum += outputs(block)[row * kCodedDim + channel_];
      sum *= channel_scale;
      for (int32_t block = bit_blocks; block < c_.output_blocks(); ++block) {
        sum += outputs(block)[row * kCodedDim + channel_];
      }
      const RowPlace place = row_place(a_, unit, row);
      const RowSum seen{all > 0.0F ? row_maximum(c_, row_at(row)) : minus_infinity(), all};
      const float factor = finish_row(a_, place, seen, channel_ == 0);
      write_float(a_.out, a_.out_dtype, row_offset(a_.out_strides, place) + channel_, sum * factor);
    });
  }

  const AttendArguments& a_;
  const CodedAttention& c_;
  OutputShared& shared_;
  const ValueTables& values_;
  int32_t block_;
  int32_t head_;
  int32_t sequence_;
  int32_t channel_;
  int32_t half_;
  const SequenceView& view_;
  float sums_[kOwnRows] = {};
};

}  // namespace kvq::cuda
