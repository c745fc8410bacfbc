// What a block of the attention kernel is made of. Its functions are defined in the files beside this one:
// attend_units, attend_queries, attend_walk, attend_scores, attend_values and attend_outputs.
#pragma once

#include "kernels/attend.h"
#include "kernels/copies.cuh"
#include "kernels/fragments.cuh"
#include "kernels/rope.cuh"
#include "kernels/tensor.cuh"

namespace kvq::cuda {

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

/// One block at work on its share of the pages. DP: width of a row, the head size if kFull, at least that otherwise;
/// NT: tiles of eight query rows.
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

  __device__ __forceinline__ void run();

 private:
  // --------------------------------------------------------------------------------------------------- units of work
  __device__ __forceinline__ int32_t row_blocks(const AttendSequenceArguments& sequence) const;
  __device__ __forceinline__ Unit find_unit(int32_t unit) const;
  __device__ __forceinline__ int32_t page_count(const Unit& unit) const;
  __device__ __forceinline__ int32_t unit_begin(int32_t unit) const;
  __device__ __forceinline__ int32_t share_pages(int32_t& share);
  __device__ __forceinline__ bool choose_share(int32_t total, int32_t most, int32_t least, int32_t& share) const;
  __device__ __forceinline__ int32_t first_unit(int32_t page) const;

  // --------------------------------------------------------------------------------------------------------- queries
  __device__ __forceinline__ int32_t rows_of(const Unit& unit) const;
  __device__ __forceinline__ int32_t position_in_page(const Unit& unit, const DevicePage& page, int32_t index,
                                                      int32_t slot) const;
  __device__ __forceinline__ int32_t query_position(const Unit& unit, int32_t query) const;
  static constexpr int32_t kPairs = DP / 64;       // of a row, a lane
  static constexpr int32_t kNeighbours = DP / 32;  // channels of a row, a lane

  /// A query row on its way to shared memory: pairs of channels lane + 32 · i and their frequencies.
  struct QueryRow {
    float2 x[kPairs];
    float inv_freq[kPairs];
  };
  __device__ __forceinline__ void load_row(const Unit& unit, int32_t row, QueryRow& to) const;
  __device__ __forceinline__ void load_queries(const Unit& unit, QueryRow& loaded);
  __device__ __forceinline__ void store_rotated(const float* row, __half* to) const;
  __device__ __forceinline__ int32_t pair_channel(int32_t pair, int32_t which) const;
  __device__ __forceinline__ float2 query_pair(int64_t offset, int32_t pair) const;

  // -------------------------------------------------------------------------------------------------------- segments
  __device__ __forceinline__ void run_segment(const Unit& unit, int32_t index, int32_t begin, int32_t end,
                                              int32_t parts, int32_t first_block);
  __device__ __forceinline__ void reset();
  __device__ __forceinline__ void read_rows();
  __device__ __forceinline__ void run_batch(const Unit& unit, int32_t base, int32_t stride, const uint4& record);
  __device__ __forceinline__ bool needs_mask(const uint4& record) const;
  __device__ __forceinline__ static bool is_partial(const uint4& record);
  __device__ __forceinline__ uint32_t first_run(const uint4& record, uint32_t wanted, uint32_t masked) const;
  __device__ __forceinline__ void prepare_run(uint32_t run, const uint4& record, int32_t copies);
  __device__ __forceinline__ void start_copies(const uint4& record, int32_t n);
  __device__ __forceinline__ void copy_next(const uint4& record);
  __device__ __forceinline__ uint32_t wait_for_slot();
  __device__ __forceinline__ void leave_slot();
  /// Pages `wanted` of a batch; `masked` ones need a closer look.
  struct Pages {
    const Unit& unit;
    int32_t base;
    int32_t stride;
    const uint4& record;
    uint32_t wanted;
    uint32_t masked;
  };
  template <int kBits>
  __device__ __forceinline__ void run_pages(const Pages& pages);
  template <int kBits>
  __device__ __forceinline__ SideBytes key_layout() const;
  template <int kBits>
  __device__ __forceinline__ int32_t value_codes() const;

  // ---------------------------------------------------------------------------------------------------------- scores
  __device__ __forceinline__ int32_t channel_of(Kind kind, int32_t step) const;
  __device__ __forceinline__ uint32_t query(int32_t n, int32_t step, int32_t half) const;
  __device__ __forceinline__ uint32_t float16_query(int32_t n, int32_t step, int32_t half) const;
  __device__ __forceinline__ void load_query_fragments();
  __device__ __forceinline__ uint2 query_of(Kind kind, int32_t n, int32_t step) const;
  __device__ __forceinline__ void score(uint32_t side, float (&scores)[NT][2][4]);
  __device__ __forceinline__ static void clear(float (&accumulators)[NT][2][4]);
  __device__ __forceinline__ void load_key_words(uint32_t side, int32_t row, int32_t swizzle,
                                                 uint32_t (&words)[4]) const;
  __device__ __forceinline__ void score_float16(uint32_t side, float (&scores)[NT][2][4]);
  template <int kFours>
  __device__ __forceinline__ void load_channels(uint32_t address, int32_t channel, uint32_t (&pairs)[2 * kFours]) const;
  template <int kBits>
  __device__ __forceinline__ void score_codes(uint32_t side, float (&scores)[NT][2][4]);
  template <int kBits, int kField, size_t kScales>
  __device__ __forceinline__ void score_fields(int32_t i, const uint32_t (&words)[4], const uint32_t (&high)[4],
                                               const uint32_t (&scale)[kScales], const uint32_t (&minimum)[kScales],
                                               float (&scores)[NT][2][4], float (&bias)[kBiases<kBits>][4]);
  __device__ __forceinline__ void scale_scores(float (&scores)[NT][2][4]) const;

  // --------------------------------------------------------------------------------------------------------- softmax
  __device__ __forceinline__ void cap(float (&s)[NT][2][4]) const;
  __device__ __forceinline__ void softmax(float (&s)[NT][2][4], uint32_t (&p)[NT][4]);
  __device__ __forceinline__ void mask(const Pages& pages, int32_t at, float (&s)[NT][2][4]) const;
  __device__ __forceinline__ void raise_maxima(const float (&s)[NT][2][4]);

  // ---------------------------------------------------------------------------------------------------------- values
  __device__ __forceinline__ void add_values(uint32_t side, const uint32_t (&p)[NT][4]);
  __device__ __forceinline__ uint4 load_value_words(uint32_t side, int32_t row, int32_t row_swizzle, int32_t m) const;
  __device__ __forceinline__ bool has_block(int32_t m) const { return kFull || 32 * m < a_.head_dim; }
  __device__ __forceinline__ void add_float16(uint32_t side, const uint32_t (&p)[NT][4]);
  __device__ __forceinline__ void load_eight(uint32_t address, uint32_t (&pairs)[4]) const;
  template <int kBits>
  __device__ __forceinline__ void add_codes(uint32_t side, const uint32_t (&p)[NT][4]);
  template <int kBits, int kStep>
  __device__ __forceinline__ void add_products(const uint4& words, const uint4& high, const uint32_t (&p)[NT][4],
                                               int32_t m);

  // --------------------------------------------------------------------------------------------------------- outputs
  __device__ __forceinline__ void finish_run();
  __device__ __forceinline__ void scale_outputs(float factor);
  __device__ __forceinline__ void change_space(bool rotated);
  __device__ __forceinline__ bool nothing_added() const;
  template <bool kStore>
  __device__ __forceinline__ void move_outputs(float* x);
  template <bool kStore>
  __device__ __forceinline__ static void move_float(uint32_t address, float& value);
  __device__ __forceinline__ float* warp_outputs(int32_t warp) const;
  __device__ __forceinline__ void store_warp();
  __device__ __forceinline__ void merge_warps();
  __device__ __forceinline__ void merge_outputs(int32_t kind);
  __device__ __forceinline__ int32_t first_warp(int32_t kind) const;
  // A partial: maxima [kRows], sums [kRows], outputs [kRows, DP].
  static constexpr int32_t kPartialFloats = kRows * (DP + 2);
  __device__ __forceinline__ float* partial(int32_t block, int32_t unit) const;
  __device__ __forceinline__ void store_partial(int32_t unit) const;
  __device__ __forceinline__ void write_output(const Unit& unit, int32_t index, int32_t parts, int32_t first_block);
  __device__ __forceinline__ int64_t row_offset(const Unit& unit, int32_t row) const;
  __device__ __forceinline__ void write_zeros(const Unit& unit) const;

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

}  // namespace kvq::cuda
