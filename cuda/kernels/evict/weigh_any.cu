// Weighs pages of heads of any shape: a block reads a page's sides to shared memory, and each of its warps multiplies
// them with a query row, a slot per lane. Slots are summed in row order.
#include "kernels/attend/visibility.cuh"
#include "kernels/device/rope.cuh"
#include "kernels/evict/any_sides.cuh"
#include "kernels/evict/row_weights.cuh"

namespace kvq::cuda {
namespace {

constexpr int32_t kAnyRows = 8;  // a warp each

struct AnyShared {
  AnyMemory side;
  float queries[kAnyRows][kMaxChannels];  // as callers give them, but rotated and in the scale of pages
  float bias[kAnyRows];                   // added to scores of latents: products with the offsets of common channels
  float log_sums[kAnyRows];               // base 2
  int32_t positions[kAnyRows];
  float weights[kAnyRows][kSlots + 1];  // of the current page
  float masses[kWeighPages * kSlots];
  float largest[kWeighPages * kSlots];  // of the current query
};

class AnyWeigher {
 public:
  __device__ AnyWeigher(const AttendArguments& arguments, const WeighArguments& weighing, AnyShared& shared)
      : arguments_(arguments),
        weighing_(weighing),
        head_(arguments.head),
        shared_(shared),
        lane_(this_lane()),
        group_(static_cast<int32_t>(arguments.group.number)),
        unit_{0, static_cast<int32_t>(blockIdx.y), 0},
        sides_(head_, shared.side) {}

  __device__ void run() {
    const int32_t begin = static_cast<int32_t>(blockIdx.x) * kWeighPages;
    const int32_t end = min(begin + kWeighPages, page_count(arguments_, unit_));
    if (begin >= end) return;
    const auto thread = static_cast<int32_t>(threadIdx.x);
    for (int32_t i = thread; i < kWeighPages * kSlots; i += 32 * kAnyRows)
      shared_.masses[i] = shared_.largest[i] = 0.0F;
#pragma unroll 1
    for (int32_t first = 0; first < weighing_.rows; first += rows_) {
      rows_ = rows_together(weighing_, group_, first, kAnyRows);
      unit_.first_row = first;
      __syncthreads();
      if (lane_.warp < rows_) load_row(lane_.warp);
      __syncthreads();
#pragma unroll 1
      for (int32_t index = begin; index < end; ++index) weigh_page(index, index - begin);
    }
    __syncthreads();
    float* masses = weighing_.masses[unit_.head] + begin * kSlots;
    for (int32_t i = thread; i < (end - begin) * kSlots; i += 32 * kAnyRows) {
      if (i % kSlots < pages_of(arguments_, unit_)[begin + i / kSlots].count()) masses[i] += shared_.masses[i];
    }
  }

 private:
  /// Loads a query row as pages meet it.
  __device__ void load_row(int32_t row) {
    constexpr float kLog2E = 1.4426950408889634F;
    const RowPlace place = row_place(arguments_, unit_, row);
    const int64_t at = row_offset(arguments_.q_strides, place);
    const auto query = static_cast<int32_t>(divide(static_cast<uint32_t>(unit_.first_row + row), arguments_.group));
    const int32_t position = query_position(arguments_, unit_, query);
    const LayerScales scales = scales_of(arguments_, unit_);
    const int32_t common = common_channels();
    float bias = 0.0F;
    for (int32_t channel = lane_.index; channel < common + head_.keys; channel += 32) {
      float x = read_float(arguments_.q, arguments_.q_dtype, at + channel);
      if (channel >= common) {
        x = rotated(at + common, channel - common, position, x);
        if (scales) x *= __ldg(scales.of(ScaleArray::kQueries, unit_.head, head_) + channel - common);
      } else if (scales) {
        bias = fmaf(x, __ldg(scales.of(ScaleArray::kOffsets, unit_.head, head_) + channel), bias);
        x *= __ldg(scales.of(ScaleArray::kOutputs, unit_.head, head_) + channel);
      }
      shared_.queries[row][channel] = x;
    }
#pragma unroll
    for (int32_t d = 16; d > 0; d /= 2) bias += __shfl_xor_sync(kAll, bias, d);
    if (lane_.index != 0) return;
    const float lse = weighing_.lse[static_cast<int64_t>(place.query) * arguments_.q_heads + place.head];
    shared_.bias[row] = bias;
    // Rows that see no token have no weights.
    shared_.log_sums[row] = lse > minus_infinity() ? lse * kLog2E : __int_as_float(0x7F800000);
    shared_.positions[row] = position;
  }

  /// Channels of queries that meet a latent's values.
  __device__ int32_t common_channels() const { return head_.is_latent ? head_.values : 0; }

  /// A channel of the key side of a query after RoPE. `row`: of the first one in the caller's tensor.
  __device__ float rotated(int64_t row, int32_t channel, int32_t position, float x) const {
    const int32_t at = channel - arguments_.rotary_begin;
    if (at < 0 || at >= arguments_.rotary_dim) return x;
    const int32_t half = arguments_.rotary_dim / 2;
    const bool halves = arguments_.rope_pairing == 1;
    const bool first = halves ? at < half : at % 2 == 0;
    const int32_t pair = halves ? at % half : at / 2;
    const int32_t distance = halves ? half : 1;
    const float other = read_float(arguments_.q, arguments_.q_dtype, row + channel + (first ? distance : -distance));
    const float2 rotation =
        cos_sin_fast(static_cast<double>(position) * static_cast<double>(__ldg(arguments_.inv_freq + pair)));
    return fmaf(x, rotation.x, (first ? -other : other) * rotation.y);
  }

  __device__ void weigh_page(int32_t index, int32_t of_block) {
    const DevicePage page = pages_of(arguments_, unit_)[index];
    if (page.count() == 0 || !is_seen(page, index)) return;
    const FormatCode format{page.format()};
    float score = lane_.warp < rows_ ? shared_.bias[lane_.warp] : 0.0F;
    if (head_.is_latent) add_products<Side::kValues>(page.data, format, 0, score);
    add_products<Side::kKeys>(page.data, format, common_channels(), score);
    shared_.weights[lane_.warp][lane_.index] = weight_of(page, index, score * arguments_.scale);
    __syncthreads();
    if (lane_.warp != 0) return;
    const int32_t slot = of_block * kSlots + lane_.index;
    add_weights(
        weighing_, group_, unit_.first_row, rows_, [this](int32_t row) { return shared_.weights[row][lane_.index]; },
        shared_.masses[slot], shared_.largest[slot]);
  }

  /// Whether some row sees a token of the page.
  __device__ bool is_seen(const DevicePage& page, int32_t index) const {
    const int32_t last = position_in_page(arguments_, unit_, page, index, page.count() - 1);
    bool seen = false;
    for (int32_t row = 0; row < rows_; ++row) {
      const int32_t position = shared_.positions[row];
      seen = seen || (page.first_position <= position && !is_too_old(last, position));
    }
    return seen;
  }
  __device__ bool is_too_old(int32_t position, int32_t of_query) const {
    return position <= newest_hidden(of_query, arguments_.window);
  }

  /// Adds the products of the warp's row, from `first` on, with a side of the page.
  template <Side kSide>
  __device__ void add_products(uint64_t page, FormatCode format, int32_t first, float& score) {
    __syncthreads();  // all threads have read the previous side and its weights
    if (lane_.warp == 0) sides_.read<kSide>(page, format);
    __syncthreads();
    const float* query = shared_.queries[lane_.warp] + first;
    for (int32_t channel = 0; channel < head_.of(kSide); ++channel) {
      score = fmaf(query[channel], __half2float(*sides_.number<kSide>(lane_.index, channel)), score);
    }
  }

  /// Weight of the lane's slot in the warp's row.
  __device__ float weight_of(const DevicePage& page, int32_t index, float logit) const {
    if (lane_.warp >= rows_ || lane_.index >= page.count()) return 0.0F;
    const int32_t of_query = shared_.positions[lane_.warp];
    const int32_t position = position_in_page(arguments_, unit_, page, index, lane_.index);
    if (position > of_query || is_too_old(position, of_query)) return 0.0F;
    if (arguments_.softcap > 0.0F) logit = arguments_.softcap * tanhf(logit / arguments_.softcap);
    return exp2_fast(logit - shared_.log_sums[lane_.warp]);
  }

  const AttendArguments& arguments_;
  const WeighArguments& weighing_;
  const HeadShape head_;
  AnyShared& shared_;
  const Lane lane_;
  const int32_t group_;
  Unit unit_;
  AnySides sides_;
  int32_t rows_ = 0;
};

__global__ void __launch_bounds__(32 * kAnyRows) weigh_any_kernel(const __grid_constant__ AttendArguments arguments,
                                                                  const __grid_constant__ WeighArguments weighing) {
  extern __shared__ __align__(128) uint8_t memory[];
  AnyWeigher(arguments, weighing, *reinterpret_cast<AnyShared*>(memory)).run();
}

}  // namespace

cudaError_t prepare_weigh_any() {
  return cudaFuncSetAttribute(weigh_any_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(AnyShared));
}

cudaError_t launch_weigh_any(const AttendArguments& arguments, const WeighArguments& weighing, int32_t pages,
                             cudaStream_t stream) {
  static_assert(sizeof(AnyShared) <= 99 * 1024);
  const dim3 blocks(static_cast<uint32_t>((pages + kWeighPages - 1) / kWeighPages),
                    static_cast<uint32_t>(arguments.kv_heads));
  weigh_any_kernel<<<blocks, 32 * kAnyRows, sizeof(AnyShared), stream>>>(arguments, weighing);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
