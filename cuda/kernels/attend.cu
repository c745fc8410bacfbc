#include "kernels/attend.h"
#include "kernels/copies.cuh"
#include "kernels/fragments.cuh"
#include "kernels/rope.cuh"
#include "kernels/tensor.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

/// Two a scheduler, with all the registers that they can use, do more than three with fewer.
constexpr int32_t kMaxWarps = 8;
constexpr int32_t kMaxStages = 8;
/// Copies of a warp that start before queries are ready. More would delay everything else that comes from memory then,
/// instructions included.
constexpr int32_t kEarlyCopies = 1;
/// Lanes of groups that a head does not have read minima of values past the end of a page.
constexpr int32_t kOverrun = 512;
constexpr uint32_t kAll = 0xFFFFFFFFU;

__device__ inline float minus_infinity() { return __int_as_float(static_cast<int>(0xFF800000U)); }

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

template <typename T>
__device__ inline T load_shared(uint32_t address);
template <>
__device__ inline uint2 load_shared<uint2>(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];\n" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}
template <>
__device__ inline uint4 load_shared<uint4>(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}

/// Keeps the compiler from computing what follows from `x` ahead of loops, once for every page format.
__device__ inline int32_t opaque(int32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// Orthonormal Hadamard rotation of rows `[rows][width]` in shared memory, in blocks of `block` of the `head_dim` first
/// channels, by `threads` threads. `wait` lets them wait for each other.
template <typename Wait>
__device__ void rotate_rows(float* x, int32_t rows, int32_t width, int32_t head_dim, int32_t thread, int32_t threads,
                            const Wait& wait) {
  const int32_t block = head_dim & -head_dim;
  const int32_t pairs = head_dim / 2;
  // Several rows at once if there are threads enough, otherwise several steps a row.
  const int32_t side_by_side = max(threads / pairs, 1);
  const int32_t first_row = thread / pairs;
  const int32_t first_pair = thread % pairs;
#pragma unroll 1
  for (int32_t half = 1; half < block; half *= 2) {
    const float norm = 2 * half == block ? rsqrtf(static_cast<float>(block)) : 1.0F;
#pragma unroll 1
    for (int32_t row = first_row < side_by_side ? first_row : rows; row < rows; row += side_by_side) {
#pragma unroll 2
      for (int32_t pair = first_pair; pair < pairs; pair += threads) {
        float* at = x + row * width + 2 * (pair & -half) + (pair & (half - 1));
        const float a = at[0];
        const float b = at[half];
        at[0] = (a + b) * norm;
        at[half] = (a - b) * norm;
      }
    }
    wait();
  }
}

/// Rows of one KV head of one sequence that walk its pages together.
struct Unit {
  const AttendSequenceArguments* sequence;
  int32_t head;
  int32_t first_row;  // row r is query r / group of the sequence, query head head · group + r % group
};

/// Shared memory of a block. Rows: query rows of the unit at hand.
template <int DP, int NT>
struct Shared {
  static constexpr int32_t kRows = 8 * NT;
  static constexpr int32_t kStride = DP + 8;  // halves; keeps rows in different banks

  alignas(16) __half plain[kRows][kStride];    // queries, each row scaled to below 1
  alignas(16) __half rotated[kRows][kStride];  // the same after the Hadamard rotation
  float row_scale[kRows];                      // what the scaling took off, times the scale of logits
  int32_t row_position[kRows];
  float maxima[kMaxWarps][kRows];
  float sums[kMaxWarps][kRows];
  float block_maximum[kRows];
  float block_sum[kRows];
  int32_t rotated_outputs[kMaxWarps];
  uint64_t arrived[kMaxWarps][kMaxStages];  // barriers of the rings
  int32_t page_ends[kMaxSplitUnits];        // running number of pages up to and with each unit
  int32_t is_last;
};

/// Sums of products with minima: one a field, and at least one each for even and odd products.
template <int kBits>
inline constexpr int32_t kBiases = kBits == 8 || kBits == 4 ? 2 : 4;

template <int kBits>
inline constexpr Kind kKindOf = kBits == 16  ? Kind::kFloat16
                                : kBits == 8 ? Kind::kInt8
                                : kBits == 4 ? Kind::kInt4
                                : kBits == 3 ? Kind::kInt3
                                             : Kind::kInt2;

/// How rows of keys are permuted: see key_chunk.
__device__ inline int32_t key_swizzle(int32_t row) { return (row & 1) | ((row & 2) << 1); }

template <int DP, bool kFull, int NT>
class Block {
 public:
  static constexpr int32_t kRows = 8 * NT;
  static constexpr int32_t kSteps = DP / 16;  // products over channels
  static constexpr int32_t kQuads = kSteps * NT / 2;
  static constexpr int32_t kChannels = DP / 32;  // blocks of 32 channels
  using SharedMemory = Shared<DP, NT>;

  __device__ __forceinline__ Block(const AttendArguments& arguments, SharedMemory& shared, uint8_t* rings)
      : a_(arguments),
        s_(shared),
        rings_(rings),
        warps_(static_cast<int32_t>(blockDim.x / 32)),
        warp_(static_cast<int32_t>(threadIdx.x / 32)),
        lane_(static_cast<int32_t>(threadIdx.x % 32)),
        g_(lane_ / 4),
        t_(lane_ % 4),
        group_(arguments.q_heads / arguments.kv_heads) {
    ring_ = shared_address(rings_ + warp_ * a_.ring_bytes);
    arrived_ = shared_address(s_.arrived[warp_]);
    if (lane_ < kMaxStages) make_copy_barrier(&s_.arrived[warp_][lane_]);
    order_before_copies();
    __syncthreads();
  }

  __device__ __forceinline__ void run() {
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

 private:
  // ------------------------------------------------------------------------------------------------ units of work

  __device__ __forceinline__ int32_t row_blocks(const AttendSequenceArguments& sequence) const {
    return (sequence.query_count * group_ + kRows - 1) / kRows;
  }

  __device__ __forceinline__ Unit find_unit(int32_t unit) const {
    int32_t i = 0;
    for (;; ++i) {
      const int32_t units = row_blocks(a_.sequences[i]) * a_.kv_heads;
      if (unit < units) break;
      unit -= units;
    }
    return {&a_.sequences[i], unit % a_.kv_heads, unit / a_.kv_heads * kRows};
  }

  __device__ __forceinline__ int32_t page_count(const Unit& unit) const {
    return a_.uniform_pages >= 0 ? a_.uniform_pages : unit.sequence->view.counts[unit.head];
  }
  __device__ __forceinline__ int32_t unit_begin(int32_t unit) const {
    if (a_.uniform_pages >= 0) return unit * uniform_length_;
    return unit == 0 ? 0 : s_.page_ends[unit - 1];
  }

  /// All units' pages in a row are cut into equal shares, one a block. A block that crosses from one unit to the next
  /// pays for queries and outputs twice, so units are padded to whole shares where that costs fewer pages than it
  /// saves. Fills page_ends; returns the end of the last unit.
  __device__ __forceinline__ int32_t share_pages(int32_t& share) {
    if (a_.uniform_pages >= 0) {
      const int32_t total = a_.uniform_pages * a_.units;
      const bool padded = choose_share(total, a_.uniform_pages, a_.uniform_pages, share);
      uniform_length_ = padded ? (a_.uniform_pages + share - 1) / share * share : a_.uniform_pages;
      empty_units_ = a_.uniform_pages == 0;
      return uniform_length_ * a_.units;
    }
    int32_t total = 0;
    int32_t most = 0;
    int32_t least = INT32_MAX;
    int32_t first_count = 0;
    // Every warp counts, so that none has to wait.
#pragma unroll 1
    for (int32_t base = 0; base < a_.units; base += 32) {
      const bool exists = base + lane_ < a_.units;
      const int32_t count = exists ? page_count(find_unit(base + lane_)) : 0;
      if (base == 0) first_count = count;
      total += __reduce_add_sync(kAll, count);
      most = max(most, __reduce_max_sync(kAll, count));
      least = min(least, __reduce_min_sync(kAll, exists ? count : INT32_MAX));
    }
    const bool padded = choose_share(total, most, least, share);
    int32_t before = 0;
#pragma unroll 1
    for (int32_t base = 0; base < a_.units; base += 32) {
      const int32_t u = base + lane_;
      int32_t sum = base == 0 ? first_count : (u < a_.units ? page_count(find_unit(u)) : 0);
      if (padded) sum = (sum + share - 1) / share * share;
#pragma unroll
      for (int32_t d = 1; d < 32; d *= 2) {
        const int32_t other = __shfl_up_sync(kAll, sum, d);
        if (lane_ >= d) sum += other;
      }
      if (warp_ == 0 && u < a_.units) s_.page_ends[u] = before + sum;
      before += __shfl_sync(kAll, sum, 31);
    }
    empty_units_ = least == 0;
    __syncthreads();
    return before;
  }

  /// Pages of a block's share. True if units are padded to whole shares.
  __device__ __forceinline__ bool choose_share(int32_t total, int32_t most, int32_t least, int32_t& share) const {
    constexpr int32_t kCrossing = 48;  // pages that a block could have walked instead
    const auto blocks = static_cast<int32_t>(gridDim.x);
    share = max((total + blocks - 1) / blocks, warps_);
    int32_t padded_share = INT32_MAX;
    if (most == least && a_.units <= blocks) {
      const int32_t parts = blocks / a_.units;
      padded_share = (most + parts - 1) / parts;
    } else if (a_.units < blocks) {
      padded_share = (total + blocks - a_.units - 1) / (blocks - a_.units);
    }
    padded_share = max(padded_share, warps_);
    if (padded_share > share + kCrossing) return false;
    share = padded_share;
    return true;
  }

  /// The unit that holds page `page` of all units in a row.
  __device__ __forceinline__ int32_t first_unit(int32_t page) const {
    if (a_.uniform_pages >= 0) return page / uniform_length_;
    int32_t low = 0;
    int32_t high = a_.units - 1;
    while (low < high) {
      const int32_t middle = (low + high) / 2;
      if (s_.page_ends[middle] > page) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

  // ------------------------------------------------------------------------------------------------------ queries

  __device__ __forceinline__ int32_t rows_of(const Unit& unit) const {
    return min(kRows, unit.sequence->query_count * group_ - unit.first_row);
  }

  __device__ __forceinline__ int32_t position_in_page(const Unit& unit, const DevicePage& page, int32_t index,
                                                      int32_t slot) const {
    if (page.has_positions == 0) return page.first_position + slot;
    const SequenceView& view = unit.sequence->view;
    return view.positions[(static_cast<int64_t>(unit.head) * view.capacity + index) * kSlots + slot];
  }

  /// Position of query `query` of the unit's sequence.
  __device__ __forceinline__ int32_t query_position(const Unit& unit, int32_t query) const {
    if (a_.query_positions != nullptr) return a_.query_positions[unit.sequence->query_begin + query];
    if (unit.sequence->last_position >= 0) {
      return unit.sequence->last_position - (unit.sequence->query_count - 1 - query);
    }
    const SequenceView& view = unit.sequence->view;
    const DevicePage* pages = view.pages + static_cast<int64_t>(unit.head) * view.capacity;
    int32_t back = unit.sequence->query_count - query;
    for (int32_t i = page_count(unit) - 1; i >= 0; --i) {
      const DevicePage page = pages[i];
      if (back <= page.count) return position_in_page(unit, page, i, page.count - back);
      back -= page.count;
    }
    return 0;
  }

  static constexpr int32_t kPairs = DP / 64;       // of a row, a lane
  static constexpr int32_t kNeighbours = DP / 32;  // channels of a row, a lane

  /// A query row on its way: pairs of channels lane + 32 · i and their frequencies.
  struct FirstRow {
    float2 x[kPairs];
    float inv_freq[kPairs];
  };

  __device__ __forceinline__ void load_row(const Unit& unit, int32_t row, FirstRow& to) const {
    const bool exists = row < rows_;
    const int64_t offset = row_offset(unit, exists ? row : 0);
#pragma unroll
    for (int32_t i = 0; i < kPairs; ++i) {
      const int32_t pair = lane_ + 32 * i;
      to.x[i] = exists ? query_pair(offset, pair) : float2{0.0F, 0.0F};
      to.inv_freq[i] = 2 * pair < a_.rotary_dim ? __ldg(a_.inv_freq + pair) : 0.0F;
    }
  }

  /// Rotate, scale and round the unit's queries, a row a warp; the first has been loaded.
  __device__ __forceinline__ void load_queries(const Unit& unit, FirstRow& loaded) {
#pragma unroll 1
    for (int32_t row = warp_; row < kRows; row += warps_) {
      const bool exists = row < rows_;
      if (row != warp_) load_row(unit, row, loaded);
      const int32_t position = exists ? query_position(unit, (unit.first_row + row) / group_) : 0;
      float2(&x)[kPairs] = loaded.x;
      float largest = 0.0F;
#pragma unroll
      for (int32_t i = 0; i < kPairs; ++i) {
        const float2 turn = cos_sin_fast(static_cast<double>(position) * static_cast<double>(loaded.inv_freq[i]));
        x[i] = {x[i].x * turn.x - x[i].y * turn.y, x[i].x * turn.y + x[i].y * turn.x};
        largest = fmaxf(largest, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
      }
      largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(largest)));
      // A power of two above the largest magnitude, so that queries times a page's scales stay within FP16.
      const int32_t exponent = min(max(static_cast<int32_t>(__float_as_uint(largest) >> 23U), 64), 250) - 126;
      const float up = __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23U);
      const float down = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23U);
      if (lane_ == 0) {
        s_.row_scale[row] = exists ? up * a_.scale : 0.0F;
        s_.row_position[row] = position;
      }
      // The end of the ring holds no page yet.
      auto* scratch = reinterpret_cast<float*>(rings_ + (warp_ + 1) * a_.ring_bytes) - DP;
#pragma unroll
      for (int32_t i = 0; i < kPairs; ++i) {
        const int32_t first = pair_channel(lane_ + 32 * i, 0);
        const int32_t second = pair_channel(lane_ + 32 * i, 1);
        s_.plain[row][first] = __float2half_rn(x[i].x * down);
        s_.plain[row][second] = __float2half_rn(x[i].y * down);
        if (a_.hadamard_keys != 0) {
          scratch[first] = x[i].x * down;
          scratch[second] = x[i].y * down;
        }
      }
      if (a_.hadamard_keys != 0) store_rotated(scratch, s_.rotated[row]);
    }
    order_before_copies();
  }

  /// The Hadamard rotation of a row of floats, as halves.
  __device__ __forceinline__ void store_rotated(const float* row, __half* to) const {
    __syncwarp();
    const int32_t block = a_.head_dim & -a_.head_dim;
    float x[kNeighbours];
#pragma unroll
    for (int32_t i = 0; i < kNeighbours; ++i) x[i] = row[kNeighbours * lane_ + i];
#pragma unroll
    for (int32_t d = 1; d < kNeighbours; d *= 2) {
#pragma unroll
      for (int32_t i = 0; i < kNeighbours; ++i) {
        if ((i & d) != 0 || d >= block) continue;
        const float sum = x[i] + x[i + d];
        x[i + d] = x[i] - x[i + d];
        x[i] = sum;
      }
    }
#pragma unroll 1
    for (int32_t d = 1; d < 32 && d * kNeighbours < block; d *= 2) {
#pragma unroll
      for (float& each : x) {
        const float other = __shfl_xor_sync(kAll, each, d);
        each = (lane_ & d) != 0 ? other - each : each + other;
      }
    }
    const float norm = rsqrtf(static_cast<float>(block));
#pragma unroll
    for (int32_t i = 0; i < kNeighbours; ++i) to[kNeighbours * lane_ + i] = __float2half_rn(x[i] * norm);
    __syncwarp();
  }

  /// Channel `which` of pair `pair`: rotated pairs first, then neighbours.
  __device__ __forceinline__ int32_t pair_channel(int32_t pair, int32_t which) const {
    const bool half = a_.rope_pairing == 1 && 2 * pair < a_.rotary_dim;
    return half ? pair + which * (a_.rotary_dim / 2) : 2 * pair + which;
  }

  __device__ __forceinline__ float2 query_pair(int64_t offset, int32_t pair) const {
    if (2 * pair >= a_.head_dim) return {0.0F, 0.0F};
    return {read_float(a_.q, a_.q_dtype, offset + pair_channel(pair, 0)),
            read_float(a_.q, a_.q_dtype, offset + pair_channel(pair, 1))};
  }

  // ----------------------------------------------------------------------------------------------------- segments

  /// Pages [begin, end) of a unit. `parts` blocks share the unit, block `first_block` the first.
  __device__ __forceinline__ void run_segment(const Unit& unit, int32_t index, int32_t begin, int32_t end,
                                              int32_t parts, int32_t first_block) {
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
    FirstRow row;
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

  __device__ __forceinline__ void reset() {
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
  __device__ __forceinline__ void read_rows() {
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
  __device__ __forceinline__ void run_batch(const Unit& unit, int32_t base, int32_t stride, const uint4& record) {
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
  __device__ __forceinline__ bool needs_mask(const uint4& record) const {
    const auto first = static_cast<int32_t>(record.z);
    return is_partial(record) || first + kSlots - 1 > min_position_ ||
           (a_.window > 0 && first <= static_cast<int64_t>(max_position_) - a_.window);
  }

  /// Fewer than 32 slots, or positions with gaps. A single newest query needs masks for nothing else.
  __device__ __forceinline__ static bool is_partial(const uint4& record) {
    return record.w >> 24U != 0 || ((record.w >> 16U) & 0xFFU) < kSlots;
  }

  /// The first of the wanted pages and those after it, up to one of another format or one that is `masked` if it is
  /// not, or the other way round.
  __device__ __forceinline__ uint32_t first_run(const uint4& record, uint32_t wanted, uint32_t masked) const {
    const uint32_t kind = (record.w & 0xFFFFU) | (masked >> lane_ & 1U) << 16U;
    const uint32_t of_first = __shfl_sync(kAll, kind, __ffs(static_cast<int>(wanted)) - 1);
    const uint32_t differs = __ballot_sync(kAll, kind != of_first) & wanted;
    return differs == 0 ? wanted : wanted & ((1U << (__ffs(static_cast<int>(differs)) - 1)) - 1U);
  }

  /// Take on the format of a run of pages, and start the first copies.
  __device__ __forceinline__ void prepare_run(uint32_t run, const uint4& record, int32_t copies) {
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
  __device__ __forceinline__ void start_copies(const uint4& record, int32_t n) {
#pragma unroll 1
    for (; started_ < n; ++started_) copy_next(record);
  }

  /// Pages go through the ring one by one, or large ones side by side; copies run ahead of their use.
  __device__ __forceinline__ void copy_next(const uint4& record) {
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
  __device__ __forceinline__ uint32_t wait_for_slot() {
    wait_copy(arrived_ + static_cast<uint32_t>(8 * slot_), (parity_ >> slot_) & 1U);
    parity_ ^= 1U << slot_;
    return ring_ + static_cast<uint32_t>(slot_ * slot_bytes_);
  }

  __device__ __forceinline__ void leave_slot() {
    __syncwarp();
    slot_ = slot_ + 1 == stages_ ? 0 : slot_ + 1;
  }

  /// Pages `wanted` of a batch; `masked` ones need a closer look.
  struct Pages {
    const Unit& unit;
    int32_t base;
    int32_t stride;
    const uint4& record;
    uint32_t wanted;
    uint32_t masked;
  };

  /// Codes of kBits bits on both sides; 0: any kinds, chosen page by page.
  template <int kBits>
  __device__ __forceinline__ void run_pages(const Pages& pages) {
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
  template <int kBits>
  __device__ __forceinline__ SideBytes key_layout() const {
    if constexpr (kFull && kBits != 0) {
      constexpr SideBytes kBytes = key_bytes(kKindOf<kBits>, DP);
      return kBytes;
    }
    return keys_;
  }
  template <int kBits>
  __device__ __forceinline__ int32_t value_codes() const {
    if constexpr (kFull && kBits != 0) {
      constexpr int32_t kBytes = value_bytes(kKindOf<kBits>, 0, DP).codes;
      return kBytes;
    }
    return values_.codes;
  }

  // ------------------------------------------------------------------------------------------------------- scores

  /// First of the four channels that this lane supplies to product `step`.
  __device__ __forceinline__ int32_t channel_of(Kind kind, int32_t step) const {
    if (kind == Kind::kInt4) return 32 * (step / 2) + 8 * t_ + 4 * (step % 2);
    if (kind == Kind::kInt2 || kind == Kind::kInt3) return 64 * (step / 4) + 16 * t_ + 4 * (step % 4);
    return 16 * step + 4 * t_;
  }

  /// Registers of query tile n for product `step`: half 0 and 1 of this lane's four channels. They lie in quads, which
  /// for integer pages are a first operand too (see score_codes): of two tiles, or of one and the next product.
  __device__ __forceinline__ uint32_t query(int32_t n, int32_t step, int32_t half) const {
    return NT == 2 ? quads_[step][2 * half + n] : quads_[step / 2][2 * half + step % 2];
  }
  /// The same for FP16 pages, whose second operand is a pair of neighbours.
  __device__ __forceinline__ uint32_t float16_query(int32_t n, int32_t step, int32_t half) const {
    return NT == 2 ? quads_[step][2 * n + half] : quads_[step / 2][2 * (step % 2) + half];
  }

  __device__ __forceinline__ void load_query_fragments() {
    const Kind kind = format_.keys();
    const bool plain = kind == Kind::kFloat16;
#pragma unroll
    for (int32_t i = 0; i < kQuads; ++i) {
      uint2 four[2];
#pragma unroll
      for (int32_t j = 0; j < 2; ++j) four[j] = query_of(kind, NT == 2 ? j : 0, NT == 2 ? i : 2 * i + j);
      quads_[i][0] = four[0].x;
      quads_[i][1] = plain ? four[0].y : four[1].x;
      quads_[i][2] = plain ? four[1].x : four[0].y;
      quads_[i][3] = four[1].y;
    }
  }

  /// Query tile n's four channels for product `step`, paired as codes are.
  __device__ __forceinline__ uint2 query_of(Kind kind, int32_t n, int32_t step) const {
    const auto& rows = format_.hadamard_keys() ? s_.rotated : s_.plain;
    const uint2 four = *reinterpret_cast<const uint2*>(&rows[8 * n + g_][channel_of(kind, step)]);
    if (kind == Kind::kFloat16) return four;
    // The position of this product's field within a byte.
    const int32_t shift = kind == Kind::kInt4 ? 4 * (step % 2) : (kind == Kind::kInt2 ? 2 * (step % 4) : 0);
    const uint32_t half = static_cast<uint32_t>(15 - shift) << 10U;  // 2^−shift
    const uint32_t down = half | half << 16U;
    return {multiply(low_halves(four.x, four.y), down), multiply(high_halves(four.x, four.y), down)};
  }

  __device__ __forceinline__ void score(uint32_t side, float (&scores)[NT][2][4]) {
    switch (format_.keys()) {
      case Kind::kFloat16:
        return score_float16(side, scores);
      case Kind::kInt8:
        return score_codes<8>(side, scores);
      case Kind::kInt4:
        return score_codes<4>(side, scores);
      case Kind::kInt3:
        return score_codes<3>(side, scores);
      case Kind::kInt2:
        return score_codes<2>(side, scores);
    }
  }

  __device__ __forceinline__ static void clear(float (&accumulators)[NT][2][4]) {
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) accumulators[n][0][i] = accumulators[n][1][i] = 0.0F;
    }
  }

  /// Words of this lane's tokens at `row`: tiles 0 and 1, 2 and 3.
  __device__ __forceinline__ void load_key_words(uint32_t side, int32_t row, int32_t swizzle,
                                                 uint32_t (&words)[4]) const {
    const int32_t column = 2 * (g_ >> 1);
    const auto line = side + static_cast<uint32_t>(row * 128 + 8 * (g_ & 1));
    const auto low = load_shared<uint2>(line + static_cast<uint32_t>((column ^ swizzle) * 16));
    const auto high = load_shared<uint2>(line + static_cast<uint32_t>(((column + 1) ^ swizzle) * 16));
    words[0] = low.x;
    words[1] = low.y;
    words[2] = high.x;
    words[3] = high.y;
  }

  __device__ __forceinline__ void score_float16(uint32_t side, float (&scores)[NT][2][4]) {
    clear(scores);
    const int32_t t = opaque(t_);
    const int32_t swizzle = key_swizzle(t);
#pragma unroll
    for (int32_t step = 0; step < kSteps; ++step) {
      const int32_t row = 8 * step + 2 * t;
      const bool inside = kFull || 2 * row < a_.head_dim;
      uint32_t first[4];
      uint32_t second[4];
      load_key_words(side, inside ? row : 0, inside ? swizzle : 0, first);
      load_key_words(side, inside ? row + 1 : 0, inside ? swizzle : 0, second);
#pragma unroll
      for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
        for (int32_t m = 0; m < 2; ++m) {
          mma(scores[n][m], first[2 * m], first[2 * m + 1], second[2 * m], second[2 * m + 1], float16_query(n, step, 0),
              float16_query(n, step, 1));
        }
      }
    }
    scale_scores(scores);
  }

  /// Scales or minima of the 4 · kQuads channels of a word, two registers for every four of them: the pairs (0, 2) and
  /// (1, 3), as they lie. Zero beyond the head.
  template <int kQuads>
  __device__ __forceinline__ void load_channels(uint32_t address, int32_t channel,
                                                uint32_t (&pairs)[2 * kQuads]) const {
    if constexpr (kQuads == 1) {
      const auto two = load_shared<uint2>(address);
      pairs[0] = two.x;
      pairs[1] = two.y;
    } else {
#pragma unroll
      for (int32_t i = 0; i < kQuads / 2; ++i) {
        const auto four = load_shared<uint4>(address + static_cast<uint32_t>(16 * i));
        pairs[4 * i] = four.x;
        pairs[4 * i + 1] = four.y;
        pairs[4 * i + 2] = four.z;
        pairs[4 * i + 3] = four.w;
      }
    }
    if constexpr (!kFull) {
#pragma unroll
      for (int32_t i = 0; i < kQuads; ++i) {
        if (channel + 4 * i >= a_.head_dim) pairs[2 * i] = pairs[2 * i + 1] = 0;
      }
    }
  }

  template <int kBits>
  __device__ __forceinline__ void score_codes(uint32_t side, float (&scores)[NT][2][4]) {
    constexpr int32_t kFields = kBits == 3 ? 4 : 8 / kBits;  // products a word
    constexpr int32_t kWords = kSteps / kFields;
    static_assert(kSteps % kFields == 0);
    clear(scores);
    // Σ q · min of the page, transposed: rows are queries, columns all the same. Rows 8 to 15 belong to the second
    // query tile; with one tile, to the next product, so that every second product counts there. Fields apart, since
    // queries lack a power of two that depends on the field.
    float bias[kBiases<kBits>][4];
#pragma unroll
    for (int32_t i = 0; i < 4 * kBiases<kBits>; ++i) bias[i / 4][i % 4] = 0.0F;
    const SideBytes layout = key_layout<kBits>();
    const int32_t rows = kFull ? 0 : layout.codes / 128;
    const int32_t t = opaque(t_);
    const uint32_t scales = side + static_cast<uint32_t>(layout.codes);
    const uint32_t minima = side + static_cast<uint32_t>(layout.minima_offset());
#pragma unroll
    for (int32_t i = 0; i < kWords; ++i) {
      int32_t row = 4 * i + t;
      if (!kFull) row = min(row, rows - 1);
      uint32_t words[4];
      uint32_t high[4];
      load_key_words(side, row, key_swizzle(kFull ? t : row), words);
      if constexpr (kBits == 3) {
        int32_t high_row = (a_.head_dim + 15) / 16 + 2 * i + (t >> 1);
        if (!kFull) high_row = min(high_row, rows - 1);
        load_key_words(side, high_row, key_swizzle(high_row), high);
#pragma unroll
        for (uint32_t& each : high) each >>= 4 * (t & 1);
      }
      uint32_t scale[2 * kFields];
      uint32_t minimum[2 * kFields];
      const int32_t channel = 16 * kFields * i + 4 * kFields * t;
      load_channels<kFields>(scales + static_cast<uint32_t>(2 * channel), channel, scale);
      load_channels<kFields>(minima + static_cast<uint32_t>(2 * channel), channel, minimum);
      score_fields<kBits, 0>(i, words, high, scale, minimum, scores, bias);
    }
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
      float of_row = 0.0F;  // query g of tile n
#pragma unroll
      for (int32_t f = 0; f < kBiases<kBits>; ++f) {
        const float weight = kFields == 1 || kBits == 3 ? 1.0F : static_cast<float>(1 << (kBits * f));
        of_row = fmaf(bias[f][NT == 2 ? 2 * n : 2 * (f % 2)], weight, of_row);
      }
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        const float sum = __shfl_sync(kAll, of_row, 4 * (2 * t_ + c));
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          float& each = scores[n][i / 2][2 * (i % 2) + c];
          each = fmaf(each, kSubnormalScale, sum);
        }
      }
    }
    scale_scores(scores);
  }

  template <int kBits, int kField, size_t kScales>
  __device__ __forceinline__ void score_fields(int32_t i, const uint32_t (&words)[4], const uint32_t (&high)[4],
                                               const uint32_t (&scale)[kScales], const uint32_t (&minimum)[kScales],
                                               float (&scores)[NT][2][4], float (&bias)[kBiases<kBits>][4]) {
    constexpr int32_t kFields = kBits == 3 ? 4 : 8 / kBits;
    if constexpr (kField < kFields) {
      uint32_t low[4];
      uint32_t odd[4];
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        if constexpr (kBits == 3) {
          low[j] = code_pair3<kField>(words[j], high[j]);
          odd[j] = code_pair3<kField>(words[j] >> 8U, high[j] >> 8U);
        } else {
          low[j] = code_pair<kBits, kField>(words[j]);
          odd[j] = code_pair<kBits, kField>(words[j] >> 8U);
        }
      }
#pragma unroll
      for (int32_t n = 0; n < NT; ++n) {
        const uint32_t q0 = multiply(query(n, kFields * i + kField, 0), scale[2 * kField]);
        const uint32_t q1 = multiply(query(n, kFields * i + kField, 1), scale[2 * kField + 1]);
        mma(scores[n][0], low[0], low[1], odd[0], odd[1], q0, q1);
        mma(scores[n][1], low[2], low[3], odd[2], odd[3], q0, q1);
      }
      const uint32_t(&quad)[4] = quads_[(kFields * i + kField) * NT / 2];
      mma(bias[kFields == 1 ? i % 2 : kField], quad[0], quad[1], quad[2], quad[3], minimum[2 * kField],
          minimum[2 * kField + 1]);
      score_fields<kBits, kField + 1>(i, words, high, scale, minimum, scores, bias);
    }
  }

  __device__ __forceinline__ void scale_scores(float (&scores)[NT][2][4]) const {
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) scores[n][i / 4][i % 4] *= row_scale_[n][i % 2];
    }
  }

  // ------------------------------------------------------------------------------------------------------ softmax

  __device__ __forceinline__ void cap(float (&s)[NT][2][4]) const {
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) {
        float& x = s[n][i / 4][i % 4];
        x = a_.softcap * tanhf(x / a_.softcap);
      }
    }
  }

  __device__ __forceinline__ void softmax(float (&s)[NT][2][4], uint32_t (&p)[NT][4]) {
    bool rises = false;
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        const float highest = fmaxf(fmaxf(s[n][0][c], s[n][0][c + 2]), fmaxf(s[n][1][c], s[n][1][c + 2]));
        rises = rises || highest > maximum_[n][c];
      }
    }
    if (__any_sync(kAll, rises)) raise_maxima(s);
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
      float reference[2];
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) reference[c] = maximum_[n][c] == minus_infinity() ? 0.0F : maximum_[n][c];
#pragma unroll
      for (int32_t m = 0; m < 2; ++m) {
        float e[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          e[i] = exp2_fast(s[n][m][i] - reference[i & 1]);
          sum_[n][i & 1] += e[i];
        }
        p[n][2 * m] = transpose8x8(pack(e[0], e[1]));
        p[n][2 * m + 1] = transpose8x8(pack(e[2], e[3]));
      }
    }
  }

  __device__ __forceinline__ void mask(const Pages& pages, int32_t at, float (&s)[NT][2][4]) const {
    const uint32_t meta = __shfl_sync(kAll, pages.record.w, at);
    const DevicePage page{0, static_cast<int32_t>(__shfl_sync(kAll, pages.record.z, at)), 0,
                          static_cast<uint8_t>(meta >> 16U), static_cast<uint8_t>(meta >> 24U)};
    const int32_t index = pages.base + at * pages.stride;
#pragma unroll
    for (int32_t tile = 0; tile < 4; ++tile) {
      const int32_t slot = token_of(g_, tile);
      const bool held = slot < page.count;
      const int32_t position = held ? position_in_page(pages.unit, page, index, slot) : 0;
#pragma unroll
      for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
        for (int32_t c = 0; c < 2; ++c) {
          const int32_t of_row = s_.row_position[8 * n + 2 * t_ + c];
          const bool seen =
              held && position <= of_row && (a_.window == 0 || position > static_cast<int64_t>(of_row) - a_.window);
          if (!seen) s[n][tile / 2][2 * (tile % 2) + c] = minus_infinity();
        }
      }
    }
  }

  /// Rarely needed: most pages of a long list hold no new maximum.
  __device__ __forceinline__ void raise_maxima(const float (&s)[NT][2][4]) {
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        float highest = fmaxf(fmaxf(s[n][0][c], s[n][0][c + 2]), fmaxf(s[n][1][c], s[n][1][c + 2]));
        highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 4));
        highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 8));
        highest = fmaxf(highest, __shfl_xor_sync(kAll, highest, 16));
        const float raised = fmaxf(maximum_[n][c], highest);
        const float factor = raised == minus_infinity() ? 1.0F : exp2_fast(maximum_[n][c] - raised);
        maximum_[n][c] = raised;
        sum_[n][c] *= factor;
        bias_[n][c] *= factor;
        bias_[n][c + 2] *= factor;
#pragma unroll
        for (int32_t m = 0; m < kChannels; ++m) {
#pragma unroll
          for (int32_t h = 0; h < 2; ++h) {
            out_[n][m][h][c] *= factor;
            out_[n][m][h][c + 2] *= factor;
          }
        }
      }
    }
  }

  // ------------------------------------------------------------------------------------------------------- values

  __device__ __forceinline__ void add_values(uint32_t side, const uint32_t (&p)[NT][4]) {
    switch (format_.values()) {
      case Kind::kFloat16:
        return add_float16(side, p);
      case Kind::kInt8:
        return add_codes<8>(side, p);
      case Kind::kInt4:
        return add_codes<4>(side, p);
      case Kind::kInt3:
        return add_codes<3>(side, p);
      case Kind::kInt2:
        return add_codes<2>(side, p);
    }
  }

  /// Whether rows of values are permuted: see value_chunk.
  __device__ __forceinline__ bool swizzles_values() const {
    if constexpr (kFull) return true;
    const int32_t lanes = value_lanes(a_.head_dim);
    return lanes >= 32 && (lanes & (lanes - 1)) == 0;
  }

  /// Four consecutive channels of block m at word row `row`.
  __device__ __forceinline__ uint4 load_value_words(uint32_t side, int32_t row, int32_t row_swizzle, int32_t m) const {
    const int32_t row_chunks = kFull ? DP / 4 : value_lanes(a_.head_dim) / 4;
    const int32_t chunk = row * row_chunks + ((8 * m + g_) ^ (swizzles_values() ? row_swizzle : 0));
    return load_shared<uint4>(side + static_cast<uint32_t>(chunk * 16));
  }

  __device__ __forceinline__ bool has_block(int32_t m) const { return kFull || 32 * m < a_.head_dim; }

  __device__ __forceinline__ void add_float16(uint32_t side, const uint32_t (&p)[NT][4]) {
    const int32_t t = opaque(t_);
#pragma unroll
    for (int32_t m = 0; m < kChannels; ++m) {
      if (!has_block(m)) break;
#pragma unroll
      for (int32_t step = 0; step < 2; ++step) {
        const uint4 a = load_value_words(side, 4 * t + 2 * step, 2 * t, m);
        const uint4 b = load_value_words(side, 4 * t + 2 * step + 1, 2 * t, m);
#pragma unroll
        for (int32_t n = 0; n < NT; ++n) {
          mma(out_[n][m][0], low_halves(a.x, b.x), low_halves(a.y, b.y), high_halves(a.x, b.x), high_halves(a.y, b.y),
              p[n][2 * step], p[n][2 * step + 1]);
          mma(out_[n][m][1], low_halves(a.z, b.z), low_halves(a.w, b.w), high_halves(a.z, b.z), high_halves(a.w, b.w),
              p[n][2 * step], p[n][2 * step + 1]);
        }
      }
    }
  }

  /// Eight tokens' scales or minima: the pairs (0, 2), (1, 3), (4, 6), (5, 7), as they lie.
  __device__ __forceinline__ void load_eight(uint32_t address, uint32_t (&pairs)[4]) const {
    const auto eight = load_shared<uint4>(address);
    pairs[0] = eight.x;
    pairs[1] = eight.y;
    pairs[2] = eight.z;
    pairs[3] = eight.w;
  }

  template <int kBits>
  __device__ __forceinline__ void add_codes(uint32_t side, const uint32_t (&p)[NT][4]) {
    const int32_t t = opaque(t_);
    {
      // Σ p · min of every group of channels: row g is group g.
      uint32_t minima[4];
      load_eight(side + static_cast<uint32_t>(values_.minima_offset() + 64 * g_ + 16 * t), minima);
#pragma unroll
      for (int32_t n = 0; n < NT; ++n) {
        mma(bias_[n], minima[0], 0, minima[1], 0, p[n][0], p[n][1]);
        mma(bias_[n], minima[2], 0, minima[3], 0, p[n][2], p[n][3]);
      }
    }
    // The second product of a word with several fields takes codes from the next one.
    constexpr uint32_t kDown = (15U - (kBits == 4 || kBits == 2 ? kBits : 0)) << 10U;
    uint32_t lowered[NT][4];
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) lowered[n][i] = i < 2 ? p[n][i] : multiply(p[n][i], kDown | kDown << 16U);
    }
#pragma unroll
    for (int32_t m = 0; m < kChannels; ++m) {
      if (!has_block(m)) break;
      uint32_t scales[4];
      load_eight(side + static_cast<uint32_t>(value_codes<kBits>() + 64 * (m >> group_shift_) + 16 * t), scales);
      uint32_t scaled[NT][4];
#pragma unroll
      for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) scaled[n][i] = multiply(lowered[n][i], scales[i]);
      }
      uint4 words[2];
      uint4 high{};
      if constexpr (kBits == 8) {
        words[0] = load_value_words(side, 2 * t, 2 * t, m);
        words[1] = load_value_words(side, 2 * t + 1, 2 * t, m);
      } else if constexpr (kBits == 4) {
        words[0] = load_value_words(side, t, 2 * t, m);
      } else {
        words[0] = load_value_words(side, t >> 1, 2 * (t >> 1), m);
        const int32_t shift = 4 * (t & 1);
        words[0] = {words[0].x >> shift, words[0].y >> shift, words[0].z >> shift, words[0].w >> shift};
        if constexpr (kBits == 3) {
          high = load_value_words(side, 2, 4, m);
          high = {high.x >> 2 * t, high.y >> 2 * t, high.z >> 2 * t, high.w >> 2 * t};
        }
      }
      add_products<kBits, 0>(words[0], high, scaled, m);
      add_products<kBits, 1>(kBits == 8 ? words[1] : words[0], high, scaled, m);
    }
  }

  template <int kBits, int kStep>
  __device__ __forceinline__ void add_products(const uint4& words, const uint4& high, const uint32_t (&p)[NT][4],
                                               int32_t m) {
    constexpr int32_t kField = kBits == 8 ? 0 : kStep;
    const uint32_t w[4] = {words.x, words.y, words.z, words.w};
    const uint32_t h[4] = {high.x, high.y, high.z, high.w};
    uint32_t low[4];
    uint32_t odd[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      if constexpr (kBits == 3) {
        low[i] = code_pair3<kField>(w[i], h[i]);
        odd[i] = code_pair3<kField>(w[i] >> 8U, h[i] >> 8U);
      } else {
        low[i] = code_pair<kBits, kField>(w[i]);
        odd[i] = code_pair<kBits, kField>(w[i] >> 8U);
      }
    }
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
      mma(out_[n][m][0], low[0], low[1], odd[0], odd[1], p[n][2 * kStep], p[n][2 * kStep + 1]);
      mma(out_[n][m][1], low[2], low[3], odd[2], odd[3], p[n][2 * kStep], p[n][2 * kStep + 1]);
    }
  }

  // ------------------------------------------------------------------------------------------------------ outputs

  /// Give outputs the power of two that an integer page's products lack, and add what its minima contributed.
  __device__ __forceinline__ void finish_run() {
    if (format_.values() == Kind::kFloat16) return;
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t m = 0; m < kChannels; ++m) {
        const int32_t source = 4 * (m >> group_shift_) + t_;
#pragma unroll
        for (int32_t c = 0; c < 2; ++c) {
          const float each = __shfl_sync(kAll, bias_[n][c], source & 31);
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            float& out = out_[n][m][i / 2][2 * (i % 2) + c];
            out = fmaf(out, kSubnormalScale, each);
          }
        }
      }
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) bias_[n][i] = 0.0F;
    }
  }

  __device__ __forceinline__ void scale_outputs(float factor) {
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 8 * kChannels; ++i) out_[n][i / 8][i / 4 % 2][i % 4] *= factor;
    }
  }

  /// Values of rotated pages are summed in rotated space. A list that mixes both kinds changes space between them; the
  /// rotation is its own inverse.
  __device__ __forceinline__ void change_space(bool rotated) {
    if (rotated == rotated_space_) return;
    float* x = warp_outputs(warp_);  // the ring is empty
    move_outputs<true>(x);
    __syncwarp();
    rotate_rows(x, rows_, DP, a_.head_dim, lane_, 32, [] { __syncwarp(); });
    move_outputs<false>(x);
    order_before_copies();
    __syncwarp();
  }

  __device__ __forceinline__ bool nothing_added() const {
    bool nothing = true;
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
      nothing = nothing && maximum_[n][0] == minus_infinity() && maximum_[n][1] == minus_infinity();
    }
    return __all_sync(kAll, nothing) != 0;
  }

  /// Registers to rows [kRows][DP] in shared memory, or back. Channel 32m + 4g + 2h + i is out_[n][m][h][2i + c].
  template <bool kStore>
  __device__ __forceinline__ void move_outputs(float* x) {
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
#pragma unroll
        for (int32_t m = 0; m < kChannels; ++m) {
          // One by one: vectors would want registers in another order than tensor cores do, all the time.
          const uint32_t at = shared_address(x + (8 * n + 2 * t_ + c) * DP + 32 * m + 4 * g_);
#pragma unroll
          for (int32_t i = 0; i < 4; ++i)
            move_float<kStore>(at + static_cast<uint32_t>(4 * i), out_[n][m][i / 2][2 * (i % 2) + c]);
        }
      }
    }
  }

  template <bool kStore>
  __device__ __forceinline__ static void move_float(uint32_t address, float& value) {
    if constexpr (kStore) {
      asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(address), "f"(value) : "memory");
    } else {
      asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(value) : "r"(address) : "memory");
    }
  }

  __device__ __forceinline__ float* warp_outputs(int32_t warp) const {
    return reinterpret_cast<float*>(rings_ + warp * a_.ring_bytes);
  }

  /// This warp's maxima, sums and outputs, the latter where its ring was.
  __device__ __forceinline__ void store_warp() {
    __syncwarp();
    move_outputs<true>(warp_outputs(warp_));
    if (lane_ == 0) s_.rotated_outputs[warp_] = rotated_space_ ? 1 : 0;
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        float sum = sum_[n][c];
        sum += __shfl_xor_sync(kAll, sum, 4);
        sum += __shfl_xor_sync(kAll, sum, 8);
        sum += __shfl_xor_sync(kAll, sum, 16);
        const int32_t row = 8 * n + 2 * t_ + c;
        if (g_ == 0) {
          s_.maxima[warp_][row] = maximum_[n][c];
          s_.sums[warp_][row] = sum;
        }
      }
    }
  }

  /// Into warp 0's place, in plain space.
  __device__ __forceinline__ void merge_warps() {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const auto threads = static_cast<int32_t>(blockDim.x);
    bool any_rotated = false;
    for (int32_t w = 0; w < warps_; ++w) any_rotated = any_rotated || s_.rotated_outputs[w] != 0;
    if (any_rotated) {
      // The sum of rotated outputs is rotated back once, in the place of the first of them.
      merge_outputs(1);
      rotate_rows(warp_outputs(first_warp(1)), rows_, DP, a_.head_dim, thread, threads, [] { __syncthreads(); });
      if (thread == 0) s_.rotated_outputs[first_warp(1)] = 2;
      __syncthreads();
    }
    merge_outputs(0);
  }

  /// Weighted sum of the outputs of one kind, 0 for plain and 1 for rotated ones, in the place of the first of them, or
  /// of warp 0 for plain ones. Kind 2 is the sum of rotated ones, now plain.
  __device__ __forceinline__ void merge_outputs(int32_t kind) {
    auto* to = reinterpret_cast<float4*>(warp_outputs(kind == 0 ? 0 : first_warp(kind)));
#pragma unroll 1
    for (auto i = static_cast<int32_t>(threadIdx.x); i < rows_ * DP / 4; i += static_cast<int32_t>(blockDim.x)) {
      const int32_t row = 4 * i / DP;
      float highest = minus_infinity();
#pragma unroll 4
      for (int32_t w = 0; w < warps_; ++w) highest = fmaxf(highest, s_.maxima[w][row]);
      const float reference = highest == minus_infinity() ? 0.0F : highest;
      float total = 0.0F;
      float4 sum{0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll 4
      for (int32_t w = 0; w < warps_; ++w) {
        const int32_t of_warp = s_.rotated_outputs[w];
        const float own_weight = exp2_fast(s_.maxima[w][row] - reference);
        total += own_weight * s_.sums[w][row];
        const float weight = of_warp == kind ? own_weight : (of_warp == 2 ? 1.0F : 0.0F);
        const float4 each = reinterpret_cast<const float4*>(warp_outputs(w))[i];
        sum.x += weight * each.x;
        sum.y += weight * each.y;
        sum.z += weight * each.z;
        sum.w += weight * each.w;
      }
      if (4 * i % DP == 0) {
        s_.block_maximum[row] = highest;
        s_.block_sum[row] = total;
      }
      to[i] = sum;
    }
    __syncthreads();
  }

  __device__ __forceinline__ int32_t first_warp(int32_t kind) const {
    int32_t w = 0;
    while (w + 1 < warps_ && s_.rotated_outputs[w] != kind) ++w;
    return w;
  }

  // A partial: maxima [kRows], sums [kRows], outputs [kRows, DP].
  static constexpr int32_t kPartialFloats = kRows * (DP + 2);
  /// Blocks and units only ever rise along the line of pages, so no two segments share a number.
  __device__ __forceinline__ float* partial(int32_t block, int32_t unit) const {
    return a_.partials + static_cast<int64_t>(block + unit) * kPartialFloats;
  }

  __device__ __forceinline__ void store_partial(int32_t unit) const {
    float* to = partial(static_cast<int32_t>(blockIdx.x), unit);
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (thread < rows_) {
      to[thread] = s_.block_maximum[thread];
      to[kRows + thread] = s_.block_sum[thread];
    }
    const auto* from = reinterpret_cast<const float4*>(warp_outputs(0));
#pragma unroll 1
    for (int32_t i = thread; i < rows_ * DP / 4; i += static_cast<int32_t>(blockDim.x)) {
      reinterpret_cast<float4*>(to + 2 * kRows)[i] = from[i];
    }
  }

  __device__ __forceinline__ void write_output(const Unit& unit, int32_t index, int32_t parts, int32_t first_block) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const auto threads = static_cast<int32_t>(blockDim.x);
    float* maxima_and_sums = warp_outputs(0);  // [parts][2][kRows]
    if (parts > 1) {
#pragma unroll 1
      for (int32_t i = thread; i < parts * 2 * kRows; i += threads) {
        maxima_and_sums[i] = __ldcg(partial(first_block + i / (2 * kRows), index) + i % (2 * kRows));
      }
      __syncthreads();
    }
#pragma unroll 1
    for (int32_t i = thread; i < rows_ * DP / 4; i += threads) {
      const int32_t row = 4 * i / DP;
      float sum = 0.0F;
      float4 value{0.0F, 0.0F, 0.0F, 0.0F};
      if (parts > 1) {
        float highest = minus_infinity();
#pragma unroll 4
        for (int32_t k = 0; k < parts; ++k) highest = fmaxf(highest, maxima_and_sums[2 * kRows * k + row]);
        const float reference = highest == minus_infinity() ? 0.0F : highest;
#pragma unroll 8
        for (int32_t k = 0; k < parts; ++k) {
          const float4 each = __ldcg(reinterpret_cast<const float4*>(partial(first_block + k, index) + 2 * kRows) + i);
          const float weight = exp2_fast(maxima_and_sums[2 * kRows * k + row] - reference);
          sum += weight * maxima_and_sums[2 * kRows * k + kRows + row];
          value.x += weight * each.x;
          value.y += weight * each.y;
          value.z += weight * each.z;
          value.w += weight * each.w;
        }
      } else {
        sum = s_.block_sum[row];
        value = reinterpret_cast<const float4*>(warp_outputs(0))[i];
      }
      if (4 * i % DP >= a_.head_dim) continue;
      // A query that sees no token gives zeros.
      const float factor = sum > 0.0F ? 1.0F / sum : 0.0F;
      const int64_t at = row_offset(unit, row) + 4 * i % DP;
      write_float(a_.out, a_.out_dtype, at, value.x * factor);
      write_float(a_.out, a_.out_dtype, at + 1, value.y * factor);
      write_float(a_.out, a_.out_dtype, at + 2, value.z * factor);
      write_float(a_.out, a_.out_dtype, at + 3, value.w * factor);
    }
  }

  /// Of a row in q and in out.
  __device__ __forceinline__ int64_t row_offset(const Unit& unit, int32_t row) const {
    const int32_t of_unit = unit.first_row + row;
    return (static_cast<int64_t>(unit.sequence->query_begin + of_unit / group_) * a_.q_heads + unit.head * group_ +
            of_unit % group_) *
           a_.head_dim;
  }

  __device__ __forceinline__ void write_zeros(const Unit& unit) const {
    const int32_t rows = rows_of(unit);
    for (auto i = static_cast<int32_t>(threadIdx.x); i < rows * a_.head_dim; i += static_cast<int32_t>(blockDim.x)) {
      write_float(a_.out, a_.out_dtype, row_offset(unit, i / a_.head_dim) + i % a_.head_dim, 0.0F);
    }
  }

  const AttendArguments& a_;
  SharedMemory& s_;
  uint8_t* rings_;
  const int32_t warps_;
  const int32_t warp_;
  const int32_t lane_;
  const int32_t g_;
  const int32_t t_;
  const int32_t group_;
  int32_t uniform_length_ = 0;  // of a unit, padded
  bool empty_units_ = false;    // some unit has no pages
  uint32_t ring_;
  uint32_t arrived_;     // the first of the ring's barriers
  uint32_t parity_ = 0;  // of the phase that comes next, one bit a stage

  // Of the stretch of pages at hand.
  FormatCode format_;
  SideBytes keys_;
  SideBytes values_;
  int32_t slot_bytes_;
  int32_t stages_;
  bool by_side_;      // a slot of the ring holds one side, not a page
  uint32_t to_copy_;  // pages of the run
  bool copy_values_next_;
  int32_t copy_slot_;
  int32_t started_;  // copies before the first page's turn
  int32_t slot_;
  bool prepared_;  // the first run's copies have started
  bool rotated_space_;
  int32_t group_shift_;
  int32_t rows_;  // of the unit
  int32_t min_position_;
  int32_t max_position_;

  uint32_t quads_[kQuads][4];
  float row_scale_[NT][2];
  float maximum_[NT][2];
  float sum_[NT][2];   // of this lane's tokens
  float bias_[NT][4];  // Σ p · min, row g: group g
  float out_[NT][kChannels][2][4];
};

template <int DP, int NT>
inline constexpr int32_t kSharedHeader = (static_cast<int32_t>(sizeof(Shared<DP, NT>)) + 127) / 128 * 128;

template <int DP, bool kFull, int NT>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) attend_kernel(const __grid_constant__ AttendArguments arguments) {
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<DP, NT>*>(memory);
  Block<DP, kFull, NT>(arguments, shared, memory + kSharedHeader<DP, NT>).run();
}

/// One instantiation.
struct Kernel {
  const void* function;
  int32_t width;  // largest head size
  int32_t rows;
  int32_t header;
  int32_t warps;
};

template <int DP, bool kFull, int NT>
Kernel kernel() {
  return {reinterpret_cast<const void*>(attend_kernel<DP, kFull, NT>), DP, 8 * NT, kSharedHeader<DP, NT>, kMaxWarps};
}

Kernel choose(int32_t head_dim, int32_t rows) {
  const bool two = rows > 8;
  if (head_dim == 64) return two ? kernel<64, true, 2>() : kernel<64, true, 1>();
  if (head_dim == 128) return two ? kernel<128, true, 2>() : kernel<128, true, 1>();
  if (head_dim < 128) return two ? kernel<128, false, 2>() : kernel<128, false, 1>();
  return kernel<256, false, 1>();
}

}  // namespace

cudaError_t prepare_attend(int32_t shared_limit) {
  for (const int32_t head_dim : {64, 80, 128, 256}) {
    for (const int32_t rows : {8, 16}) {
      const Kernel each = choose(head_dim, rows);
      const cudaError_t status =
          cudaFuncSetAttribute(each.function, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit);
      if (status != cudaSuccess) return status;
    }
  }
  return cudaSuccess;
}

AttendPlan plan_attend(const AttendArguments& arguments, int32_t multiprocessors, int32_t shared_limit) {
  const int32_t group = arguments.q_heads / arguments.kv_heads;
  int32_t rows = 0;
  for (int32_t i = 0; i < arguments.n_sequences; ++i) {
    rows = std::max(rows, arguments.sequences[i].query_count > 8 ? 16 : arguments.sequences[i].query_count * group);
  }
  const Kernel chosen = choose(arguments.head_dim, rows);
  int64_t units = 0;
  for (int32_t i = 0; i < arguments.n_sequences; ++i) {
    const int64_t of_sequence = static_cast<int64_t>(arguments.sequences[i].query_count) * group;
    units += (of_sequence + chosen.rows - 1) / chosen.rows * arguments.kv_heads;
  }
  // A ring holds at least one side of an FP16 page, and later a warp's outputs.
  const int32_t side = std::max(key_bytes(Kind::kFloat16, arguments.head_dim).bytes(),
                                value_bytes(Kind::kFloat16, 0, arguments.head_dim).bytes());
  const int32_t least = std::max((side + 127) / 128 * 128, chosen.rows * chosen.width * 4);
  const int32_t available = shared_limit - chosen.header - kOverrun;
  const int32_t warps = std::max(1, std::min(chosen.warps, available / least));
  AttendPlan plan{};
  plan.kernel = chosen.function;
  plan.threads = 32 * warps;
  plan.ring_bytes = available / warps / 128 * 128;
  plan.shared_bytes = chosen.header + warps * plan.ring_bytes + kOverrun;
  plan.units = static_cast<int32_t>(units);
  plan.split = units <= kMaxSplitUnits && units < 2 * static_cast<int64_t>(multiprocessors);
  plan.blocks = plan.split ? multiprocessors : plan.units;
  plan.tickets = plan.split ? static_cast<size_t>(plan.units) : 0;
  plan.partial_floats =
      plan.split ? static_cast<size_t>(plan.blocks + plan.units) * static_cast<size_t>(chosen.rows * (chosen.width + 2))
                 : 0;
  return plan;
}

cudaError_t launch_attend(const AttendPlan& plan, AttendArguments& arguments, float* partials, int32_t* tickets,
                          cudaStream_t stream) {
  arguments.partials = partials;
  arguments.tickets = tickets;
  arguments.units = plan.units;
  arguments.split = plan.split ? 1 : 0;
  arguments.ring_bytes = plan.ring_bytes;
  void* parameters[] = {&arguments};
  return cudaLaunchKernel(plan.kernel, dim3(static_cast<uint32_t>(plan.blocks)),
                          dim3(static_cast<uint32_t>(plan.threads)), parameters, static_cast<size_t>(plan.shared_bytes),
                          stream);
}

}  // namespace kvq::cuda
