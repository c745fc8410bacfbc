// A block weighs some pages of one head, one page per warp, 16 query rows at a time. Weights follow from the rows'
// log-sum-exps, which attention has computed. Each slot is summed by one warp in row order, so results are
// deterministic.
#include "core/scaled_row.h"
#include "kernels/attend/centres.cuh"
#include "kernels/attend/queries.cuh"
#include "kernels/attend/ring.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/evict/row_weights.cuh"
#include "kernels/pages/kinds.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

constexpr int32_t kWeighWarps = 8;

template <typename G>
struct WeighShared {
  float log_sums[G::kRows];                          // base 2
  float weights[kWeighWarps][G::kRows][kSlots + 1];  // current page
  float masses[kWeighPages * kSlots];
  float largest[kWeighPages * kSlots];  // current query
  uint64_t arrived[kWeighWarps];
};

template <typename G>
KVQ_HOST_DEVICE int32_t weigh_shared_at(const CentreRows& rows) {
  return kCentreRowsAt<G> + centre_row_bytes<G>(rows);
}
template <typename G>
KVQ_HOST_DEVICE int32_t rings_at(const CentreRows& rows) {
  return weigh_shared_at<G>(rows) + whole_lines(sizeof(WeighShared<G>));
}

template <typename G>
class Weigher {
 public:
  __device__ Weigher(const Block<G>& block, const WeighArguments& weighing, WeighShared<G>& shared)
      : block_(block), weighing_(weighing), shared_(shared) {}

  __device__ void run() {
    const AttendArguments& arguments = block_.arguments;
    const Lane& lane = block_.lane;
    Unit unit{0, static_cast<int32_t>(blockIdx.y), 0};
    const int32_t pages = page_count(arguments, unit);
    const int32_t begin = static_cast<int32_t>(blockIdx.x) * kWeighPages;
    const int32_t end = min(begin + kWeighPages, pages);
    if (begin >= end) return;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < kWeighPages * kSlots; i += static_cast<int32_t>(blockDim.x)) {
      shared_.masses[i] = shared_.largest[i] = 0.0F;
    }
    if (lane.index == 0) make_copy_barrier(shared_address(&shared_.arrived[lane.warp]));
    if constexpr (G::kCentre) {
      load_centres(block_, unit.head);
      wait_chunks();
    }
#pragma unroll 1
    for (int32_t first = 0; first < weighing_.rows; first += rows_) {
      rows_ = rows_together(weighing_, group(), first, G::kRows);
      first_row_ = first;
      unit.first_row = first;
      __syncthreads();  // all threads have finished with the previous rows
      QueryRow<G> row;
      load_row(block_, unit, rows_, lane.warp, row);
      load_queries(block_, unit, rows_, row);
      load_log_sums(unit);
      __syncthreads();
      load_row_scales(block_.shared.queries.row_scale, lane, queries_);
      range_ = range_of(block_, unit, rows_);
#pragma unroll 1
      for (int32_t index = begin + lane.warp; index < end; index += lane.warps) weigh_page(unit, index, index - begin);
    }
    __syncwarp();
    float* masses = weighing_.masses[unit.head];
    for (int32_t index = begin + lane.warp; index < end; index += lane.warps) {
      if (lane.index < pages_of(arguments, unit)[index].count()) {
        masses[index * kSlots + lane.index] += shared_.masses[(index - begin) * kSlots + lane.index];
      }
    }
  }

 private:
  __device__ void load_log_sums(const Unit& unit) {
    constexpr float kLog2E = 1.4426950408889634F;
    const auto row = static_cast<int32_t>(threadIdx.x);
    if (row >= rows_) return;
    const RowPlace place = row_place(block_.arguments, unit, row);
    const float lse = weighing_.lse[static_cast<int64_t>(place.query) * block_.arguments.q_heads + place.head];
    // Rows that see no token have no weights.
    shared_.log_sums[row] = lse > minus_infinity() ? lse * kLog2E : __int_as_float(0x7F800000);
  }

  __device__ void weigh_page(const Unit& unit, int32_t index, int32_t of_block) {
    const AttendArguments& arguments = block_.arguments;
    const Lane& lane = block_.lane;
    const uint4 record = __ldg(reinterpret_cast<const uint4*>(pages_of(arguments, unit)) + index);
    if (record.w == 0 || !is_visible(arguments, unit, record, index, range_)) return;
    const DevicePage page = page_of(record.z, record.w);
    const PageLayout layout = layout_of(block_.geometry, FormatCode{record.w & FormatCode::kMask});
    const bool mixed = layout.format.both_have_gains();
    const uint32_t memory = shared_address(block_.rings.of(lane.warp));
    const uint32_t arrived = shared_address(&shared_.arrived[lane.warp]);
    order_before_copies();
    __syncwarp();
    start_copy(memory, static_cast<uint64_t>(record.y) << 32U | record.x, mixed ? layout.bytes : layout.keys.bytes,
               arrived, lane.index, 0);
    wait_copy(arrived, parity_);
    parity_ ^= 1U;
    const PageSide<G> keys = page_side(block_.geometry, layout, lane, memory);
    Scores<G::kTiles> scores;
    PageKinds<G>::visit(layout.format.keys(), [&](auto kind) {
      using K = decltype(kind);
      const auto& rows = block_.shared.queries;
      const KeyOrder order = key_order<K, G>(K::kCode);
      load_fragments(layout.format.hadamard_keys() ? rows.rotated : rows.plain, order, lane, queries_);
      if constexpr (K::kCode.has_gains()) sum_queries(order, lane, queries_);
      K::score(keys, queries_, scores);
    });
    if constexpr (G::kCentre) {
      if (layout.format.centred_keys()) add_own_centres(block_, unit, keys, page, index, queries_, scores);
    }
    if (arguments.softcap > 0.0F) cap_scores(arguments.softcap, scores);
    if (needs_mask(record, index, range_, arguments.window)) {
      const MaskedUnit unit_rows{arguments, unit, rows_, range_.first_masked};
      mask(unit_rows, page, index, block_.shared.queries.row_position, lane, scores);
    }
    store_weights(scores);
    add_weights_of(of_block);
  }

  __device__ void store_weights(const Scores<G::kTiles>& scores) {
    const Lane& lane = block_.lane;
    auto& weights = shared_.weights[lane.warp];
#pragma unroll
    for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        const int32_t row = 8 * n + 2 * lane.t + c;
        const float log_sum = row < rows_ ? shared_.log_sums[row] : __int_as_float(0x7F800000);
#pragma unroll
        for (int32_t tile = 0; tile < 4; ++tile) {
          weights[row][token_of(lane.g, tile)] = exp2_fast(scores[n][tile / 2][2 * (tile % 2) + c] - log_sum);
        }
      }
    }
    __syncwarp();
  }

  /// One slot per lane.
  __device__ void add_weights_of(int32_t of_block) {
    const Lane& lane = block_.lane;
    const auto& weights = shared_.weights[lane.warp];
    const int32_t slot = of_block * kSlots + lane.index;
    float mass = shared_.masses[slot];
    float largest = shared_.largest[slot];
    add_weights(
        weighing_, group(), first_row_, rows_, [&](int32_t row) { return weights[row][lane.index]; }, mass, largest);
    shared_.largest[slot] = largest;
    shared_.masses[slot] = mass;
    __syncwarp();  // the next page's weights reuse the memory
  }

  __device__ int32_t group() const { return static_cast<int32_t>(block_.arguments.group.number); }

  const Block<G>& block_;
  const WeighArguments& weighing_;
  WeighShared<G>& shared_;
  QueryFragments<G> queries_;
  VisibleRange range_{};
  int32_t rows_ = 0;
  int32_t first_row_ = 0;
  uint32_t parity_ = 0;
};

template <typename G>
__global__ void __launch_bounds__(32 * kWeighWarps, 1)
    weigh_kernel(const __grid_constant__ AttendArguments arguments, const __grid_constant__ WeighArguments weighing) {
  extern __shared__ __align__(128) uint8_t memory[];
  const Block<G> block{arguments,
                       *reinterpret_cast<SharedOf<G>*>(memory),
                       {memory + rings_at<G>(arguments.centres), weighing.ring_bytes},
                       {arguments.head.keys},
                       this_lane()};
  auto& shared = *reinterpret_cast<WeighShared<G>*>(memory + weigh_shared_at<G>(arguments.centres));
  Weigher<G>(block, weighing, shared).run();
}

/// One instance.
struct WeighKernel {
  const void* function;
  int32_t width;
  int32_t (*rings_at)(const CentreRows& rows);
};

template <int DP, bool kFull, int NT, Lists kLists>
WeighKernel kernel() {
  using G = Geometry<DP, kFull, NT, kLists>;
  return {reinterpret_cast<const void*>(weigh_kernel<G>), DP, rings_at<G>};
}

template <Lists kLists>
WeighKernel choose_of(int32_t head_dim) {
  if (head_dim == 64) return kernel<64, true, 2, kLists>();
  if (head_dim == 128) return kernel<128, true, 2, kLists>();
  if (head_dim < 128) return kernel<128, false, 2, kLists>();
  return kernel<256, false, 1, kLists>();
}

WeighKernel choose(int32_t head_dim, bool centres) {
  return centres ? choose_of<Lists::kFarCentres>(head_dim) : choose_of<Lists::kGains>(head_dim);
}

/// A warp per row.
__global__ void keep_kernel(const __grid_constant__ KeepArguments arguments) {
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarpLanes;
  if (i >= int64_t{arguments.q_heads} * arguments.count) return;
  const auto lane = static_cast<int32_t>(threadIdx.x % kWarpLanes);
  const int64_t query = i / arguments.q_heads;
  const int64_t head = i % arguments.q_heads;
  const int64_t at = (arguments.first + query) * arguments.strides.token + head * arguments.strides.head;
  const auto number = [&](int32_t channel) { return read_float(arguments.q, arguments.dtype, at + channel); };
  float largest = 0.0F;
  for (int32_t c = lane; c < arguments.head_dim; c += kWarpLanes) largest = fmaxf(largest, fabsf(number(c)));
  const uint32_t exponent = row_exponent(__float_as_uint(largest_of_lanes(largest)));
  const float inverse = __uint_as_float(inverse_bits(exponent));
  uint16_t* row = arguments.rows + i * static_cast<int64_t>(scaled_row_words(arguments.head_dim));
  if (lane == 0) row[0] = static_cast<uint16_t>(exponent);
  for (int32_t c = lane; c < arguments.head_dim; c += kWarpLanes) {
    row[1 + c] = __half_as_ushort(__float2half_rn(fminf(fmaxf(number(c) * inverse, -65504.0F), 65504.0F)));
  }
}

__global__ void read_kept_kernel(const uint16_t* rows, int64_t n, int32_t head_dim, float* numbers) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n * head_dim) return;
  const uint16_t* row = rows + i / head_dim * static_cast<int64_t>(scaled_row_words(head_dim));
  numbers[i] = __half2float(__ushort_as_half(row[1 + i % head_dim])) * __uint_as_float(power_bits(row[0]));
}

__global__ void add_kernel(float* to, const float* from, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) to[i] += from[i];
}

__global__ void take_kernel(float* to, const float* from, const int32_t* slots, int32_t n) {
  const auto i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) to[i] = from[slots[i]];
}

constexpr uint32_t kThreads = 256;
uint32_t blocks_for(int64_t n) { return static_cast<uint32_t>((n + kThreads - 1) / kThreads); }

}  // namespace

cudaError_t prepare_weigh(int32_t shared_limit) {
  for (const int32_t head_dim : {64, 80, 128, 256}) {
    for (const bool centres : {false, true}) {
      const cudaError_t status = cudaFuncSetAttribute(choose(head_dim, centres).function,
                                                      cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit);
      if (status != cudaSuccess) return status;
    }
  }
  return prepare_weigh_any();
}

cudaError_t launch_weigh(const AttendArguments& arguments, WeighArguments weighing, int32_t pages, int32_t shared_limit,
                         cudaStream_t stream) {
  const HeadShape& head = arguments.head;
  if (!head.is_equal() || head.keys > kMaxHeadDim || arguments.rotary_begin != 0) {
    return launch_weigh_any(arguments, weighing, pages, stream);
  }
  const WeighKernel kernel = choose(head.keys, arguments.any_centres != 0);
  // Keys in FP16, or both sides in gain–shape codes.
  weighing.ring_bytes = whole_lines(static_cast<size_t>(2 * kSlots * kernel.width + kOverrun));
  const int32_t header = kernel.rings_at(arguments.centres);
  const int32_t warps = std::clamp((shared_limit - header) / weighing.ring_bytes, 1, kWeighWarps);
  const dim3 blocks(static_cast<uint32_t>((pages + kWeighPages - 1) / kWeighPages),
                    static_cast<uint32_t>(arguments.kv_heads));
  AttendArguments copy = arguments;
  void* parameters[] = {&copy, &weighing};
  return cudaLaunchKernel(kernel.function, blocks, dim3(static_cast<uint32_t>(32 * warps)), parameters,
                          static_cast<size_t>(header + warps * weighing.ring_bytes), stream);
}

cudaError_t launch_keep(const KeepArguments& arguments, cudaStream_t stream) {
  const int64_t rows = int64_t{arguments.count} * arguments.q_heads;
  keep_kernel<<<blocks_for(rows * kWarpLanes), kThreads, 0, stream>>>(arguments);
  return cudaGetLastError();
}

cudaError_t launch_read_kept(const uint16_t* rows, size_t n, int32_t head_dim, float* numbers, cudaStream_t stream) {
  const auto count = static_cast<int64_t>(n);
  read_kept_kernel<<<blocks_for(count * head_dim), kThreads, 0, stream>>>(rows, count, head_dim, numbers);
  return cudaGetLastError();
}

cudaError_t launch_add(float* to, const float* from, size_t n, cudaStream_t stream) {
  const auto count = static_cast<int64_t>(n);
  add_kernel<<<blocks_for(count), kThreads, 0, stream>>>(to, from, count);
  return cudaGetLastError();
}

cudaError_t launch_take(float* to, const float* from, const int32_t* slots, int32_t n, cudaStream_t stream) {
  take_kernel<<<blocks_for(n), kThreads, 0, stream>>>(to, from, slots, n);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
