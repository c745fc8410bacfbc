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
/// Bytes of pages, of a warp, that are on their way or being used; two slots of the ring at least. More in flight than
/// memory needs to be busy only queue there, and slow it down.
constexpr int32_t kAhead = 9 * 1024;
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

/// One step of a Hadamard rotation.
__device__ inline void butterfly(float& a, float& b) {
  const float sum = a + b;
  b = a - b;
  a = sum;
}

/// The same between lanes that are `distance` apart.
__device__ inline void butterfly(float& x, int32_t lane, int32_t distance) {
  const float other = __shfl_xor_sync(kAll, x, distance);
  x = (lane & distance) != 0 ? other - x : x + other;
}

__device__ inline uint32_t divide(uint32_t x, const Divisor& by) { return __umulhi(2 * x, by.reciprocal); }

/// Rows of one KV head of one sequence that walk its pages together.
struct Unit {
  int32_t sequence;  // an index, not an address: arguments are read much faster from where they are passed
  int32_t head;
  int32_t first_row;  // row r is query r / group of the sequence, query head head · group + r % group
};

/// Pages [begin, end) of a unit: one of the parts that blocks walk.
struct Segment {
  Unit unit;
  int32_t index;  // of the unit
  int32_t begin;
  int32_t end;
  int32_t part;
  int32_t parts;
  int32_t first_partial;  // where part 0's partial is
};

/// A block's share of all units' pages in a row.
struct Share {
  int32_t begin;
  int32_t pages;
  int32_t next_unit;
  int32_t last_unit;
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
  uint64_t arrived[kMaxWarps][kMaxStages];  // barriers of the rings
  int32_t page_ends[kMaxSplitUnits];        // running number of pages up to and with each unit
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
        t_(lane_ % 4) {
    ring_ = shared_address(rings_ + warp_ * a_.ring_bytes);
    arrived_ = shared_address(s_.arrived[warp_]);
  }

  __device__ __forceinline__ void run();

 private:
  // --------------------------------------------------------------------------------------------------- units of work
  __device__ __forceinline__ const AttendSequenceArguments& sequence_of(const Unit& unit) const {
    return a_.sequences[unit.sequence];
  }
  __device__ __forceinline__ int32_t row_blocks(const AttendSequenceArguments& sequence) const;
  __device__ __forceinline__ Unit unit_of(int32_t row_block, int32_t head) const;
  __device__ __forceinline__ Unit find_unit(int32_t unit) const;
  __device__ __forceinline__ int32_t page_count(const Unit& unit) const;
  __device__ __forceinline__ bool take_part(Segment& to) const;
  __device__ __forceinline__ bool take_share(Share& to);
  __device__ __forceinline__ bool choose_share(int32_t total, int32_t most, int32_t least, int32_t& share) const;
  __device__ __forceinline__ int32_t first_unit(int32_t page) const;
  __device__ __forceinline__ bool next_segment(Share& share, Segment& to) const;

  // --------------------------------------------------------------------------------------------------------- queries
  __device__ __forceinline__ int32_t rows_of(const Unit& unit) const;
  __device__ __forceinline__ int32_t position_in_page(const Unit& unit, const DevicePage& page, int32_t index,
                                                      int32_t slot) const;
  __device__ __forceinline__ int32_t query_position(const Unit& unit, int32_t query) const;
  static constexpr int32_t kPairs = DP / 64;       // of a row, a lane
  static constexpr int32_t kNeighbours = DP / 32;  // channels of a row, a lane

  /// A query row on its way to shared memory: pairs of channels lane + 32 · i as they are stored, their frequencies
  /// and the query's position.
  struct QueryRow {
    uint32_t bits[kPairs][2];
    float inv_freq[kPairs];
    int32_t position;
  };
  __device__ __forceinline__ void load_row(const Unit& unit, int32_t row, QueryRow& to) const;
  __device__ __forceinline__ void load_queries(const Unit& unit, QueryRow& loaded);
  __device__ __forceinline__ void store_rotated(const float* row, __half* to) const;
  __device__ __forceinline__ int32_t pair_channel(int32_t pair, int32_t which) const;
  /// Channels that are rotated together.
  __device__ __forceinline__ int32_t hadamard_block() const { return kFull ? DP : a_.head_dim & -a_.head_dim; }

  // -------------------------------------------------------------------------------------------------------- segments
  /// Up to 32 pages of this warp; lane i holds the record of page base + i · warps, or zeros.
  struct Batch {
    int32_t base;
    uint4 record;
    uint32_t wanted;
    uint32_t masked;  // pages that need a closer look
  };
  __device__ __forceinline__ void run_segment(const Segment& segment);
  __device__ __forceinline__ void make_barriers();
  __device__ __forceinline__ void reset();
  __device__ __forceinline__ void read_rows();
  __device__ __forceinline__ void walk(const Segment& segment, Batch& batch, bool early);
  __device__ __forceinline__ void load_batch(const Segment& segment, Batch& batch) const;
  __device__ __forceinline__ void choose_pages(const Unit& unit, Batch& batch) const;
  __device__ __forceinline__ bool needs_mask(const uint4& record) const;
  __device__ __forceinline__ static bool is_partial(const uint4& record);
  __device__ __forceinline__ uint32_t first_run(const Batch& batch) const;
  __device__ __forceinline__ FormatCode format_of(const Batch& batch, uint32_t run) const;
  __device__ __forceinline__ void leave_run(FormatCode next);
  __device__ __forceinline__ void prepare_run(FormatCode format, uint32_t run);
  __device__ __forceinline__ void start_copies(const uint4& record, int32_t n);
  __device__ __forceinline__ void copy_next(const uint4& record);
  __device__ __forceinline__ uint32_t wait_for_slot();
  __device__ __forceinline__ void leave_slot();
  template <int kBits>
  __device__ __forceinline__ void run_pages(const Unit& unit, const Batch& batch, uint32_t run);
  template <int kBits>
  __device__ __forceinline__ SideBytes key_layout() const;
  template <int kBits>
  __device__ __forceinline__ int32_t value_codes() const;

  // ---------------------------------------------------------------------------------------------------------- scores
  __device__ __forceinline__ int32_t channel_of(Kind kind, int32_t step) const;
  __device__ __forceinline__ uint32_t query(int32_t n, int32_t step, int32_t half) const;
  __device__ __forceinline__ uint32_t float16_query(int32_t n, int32_t step, int32_t half) const;
  template <int kBits>
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
  __device__ __forceinline__ void mask(const Unit& unit, const Batch& batch, int32_t at, float (&s)[NT][2][4]) const;
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
  __device__ __forceinline__ void change_space();
  __device__ __forceinline__ float* warp_outputs(int32_t warp) const;
  __device__ __forceinline__ void store_warp();

  static constexpr int32_t kVectors = DP / 128 > 1 ? DP / 128 : 1;  // of four channels of a row, a lane
  static constexpr int32_t kRowLanes = DP / 4 / kVectors;
  /// What a lane merges: channels 4 · (lane % kRowLanes) + 128 · v of a row.
  struct Merged {
    int32_t row;
    int32_t column;  // the first channel
    float maximum;
    float sum;
    float x[kVectors][4];
  };
  template <typename Do>
  __device__ __forceinline__ void for_each_row(const Do& act) const;
  __device__ __forceinline__ void merge_warps(Merged& to) const;
  __device__ __forceinline__ void merge_partials(const Segment& segment, Merged& to) const;
  __device__ __forceinline__ void rotate(Merged& row) const;
  __device__ __forceinline__ void write_output(const Segment& segment);
  // A partial: maximum and sum [kRows][2], outputs [kRows][DP].
  static constexpr int32_t kPartialFloats = kRows * (DP + 2);
  __device__ __forceinline__ float* partial(const Segment& segment, int32_t part) const;
  __device__ __forceinline__ void store_partial(const Segment& segment, const Merged& row) const;
  __device__ __forceinline__ void write_row(const Unit& unit, Merged& row) const;
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
  bool has_barriers_ = false;
  bool any_run_;  // outputs may be other than zero
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
