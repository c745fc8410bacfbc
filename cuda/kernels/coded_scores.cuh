// Scores of tokens whose keys have codes. A warp takes a page: four lanes a token, of which each sums 16 pairs of
// channels over the stages, in bytes from a table in shared memory, two stages at a time. Sums are turned by their slot
// and multiplied with queries that were turned back by the page.
#pragma once

#include "kernels/attend_layout.cuh"
#include "kernels/attend_units.cuh"
#include "kernels/codebook.cuh"
#include "kernels/coded_attend.h"
#include "kernels/copies.cuh"
#include "kernels/fragments.cuh"
#include "kernels/rope.cuh"
#include "kernels/warp.cuh"

namespace kvq::cuda {

inline constexpr int32_t kMostScoreWarps = 16;
inline constexpr int32_t kPairs = kCodedDim / 2;
inline constexpr int32_t kLanePairs = kPairs / 4;
/// Bytes of the indices of a page that a warp holds.
inline constexpr int32_t kMostIndexBytes = 1024;

/// Shared memory of a block. Rows of the table are aligned to their size.
struct alignas(kCodedDim) ScoreShared {
  float2 queries[2][kCodedRows][kPairs];  // for keys in the table's units, and for FP16
  float scales[2][kCodedRows];
  int32_t positions[kCodedRows];
  float maxima[kMostScoreWarps][kCodedRows];
  uint4 turns[kSlots][kPairs / 4];  // of slots, halves {cos, sin}: see turn_place
  // Then the table, then what each warp has.
};
struct WarpShared {
  uint32_t indices[kMostIndexBytes / 4];
  float2 turn[kPairs];  // of the page, back
  // Then [stages][32] places of the two rows of a slot in the table.
};

/// Where a lane's chunks of 16 bytes are in a row of the table: chunk t, then chunk t + 4, so that two tokens that are
/// read together meet in no bank whatever their rows, the other way round if the token is odd.
__device__ __forceinline__ int32_t chunk_of(int32_t g, int32_t t, int32_t which) { return t + 4 * (which ^ (g & 1)); }
/// Where the turns of pairs 8 · chunk + 4 · half on are.
__device__ __forceinline__ int32_t turn_place(int32_t chunk, int32_t half) { return 8 * half + chunk; }

/// Sums of bytes, in 16 bits: those of even and odd bytes of words, of four words.
struct ByteSums {
  uint32_t all[4] = {};  // even + 256 · odd
  uint32_t odd[4] = {};

  __device__ __forceinline__ void add(const uint4& x) {
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      all[i] += words[i];
      odd[i] += odd_bytes(words[i]);
    }
  }
  __device__ __forceinline__ void add(const uint4& x, const uint4& y) {
    const uint32_t first[4] = {x.x, x.y, x.z, x.w};
    const uint32_t second[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      all[i] += first[i] + second[i];
      odd[i] += odd_bytes(first[i]) + odd_bytes(second[i]);
    }
  }
  __device__ __forceinline__ uint32_t even(int32_t i) const { return all[i] - (odd[i] << 8U); }

 private:
  static __device__ __forceinline__ uint32_t odd_bytes(uint32_t word) { return __byte_perm(word, 0, 0x4341); }
};

/// What a warp reads two pages ahead, and what it then reads one page ahead.
struct NextRecord {
  DevicePage page;
  uint64_t holder;  // of the norm of the lane's slot
};
struct NextPage {
  DevicePage page;
  uint2 indices[kMostIndexBytes / 8 / kWarpLanes];
  float norm;  // of the lane's slot
};

class Scorer {
 public:
  __device__ Scorer(const AttendArguments& arguments, const CodedAttention& coded, std::byte* memory)
      : a_(arguments),
        c_(coded),
        keys_(coded.tables.keys),
        shared_(*reinterpret_cast<ScoreShared*>(memory)),
        table_(memory + sizeof(ScoreShared)),
        warp_(static_cast<int32_t>(threadIdx.x) / kWarpLanes),
        lane_(static_cast<int32_t>(threadIdx.x) % kWarpLanes),
        g_(lane_ / 4),
        t_(lane_ % 4),
        row_tiles_((coded.rows + kCodedRows - 1) / kCodedRows),
        head_(static_cast<int32_t>(blockIdx.y)),
        sequence_(static_cast<int32_t>(blockIdx.z) / row_tiles_),
        unit_{sequence_, head_, static_cast<int32_t>(blockIdx.z) % row_tiles_ * kCodedRows},
        view_(arguments.sequences[sequence_].view),
        pages_(view_.heads[head_].pages) {
    std::byte* own = table_ + table_bytes(keys_) + warp_ * warp_bytes(keys_);
    warp_shared_ = reinterpret_cast<WarpShared*>(own);
    places_ = reinterpret_cast<uint32_t*>(own + sizeof(WarpShared));
  }

  static KVQ_HOST_DEVICE int32_t table_bytes(const KeyTables& keys) { return keys.stages * keys.codes * kCodedDim; }
  static KVQ_HOST_DEVICE int32_t warp_bytes(const KeyTables& keys) {
    return static_cast<int32_t>(sizeof(WarpShared)) + keys.stages * kSlots * 4;
  }

  __device__ void run() {
    load_tables();
    load_queries();
    __syncthreads();
    const auto part = static_cast<int32_t>(blockIdx.x);
    const int32_t share = (pages_ + c_.parts - 1) / c_.parts;
    const int32_t end = min(pages_, (part + 1) * share);
    float highest[2] = {minus_infinity(), minus_infinity()};
    int32_t index = part * share + warp_;
    NextPage next = ask(ask_record(index, end));
    NextRecord record = ask_record(index + c_.warps, end);
    for (; index < end; index += c_.warps) {
      const NextPage now = next;
      next = ask(record);
      record = ask_record(index + 2 * c_.warps, end);
      score(now, index, highest);
    }
    store_maxima(highest);
  }

 private:
  __device__ __forceinline__ DevicePage record_of(int32_t head, int32_t index) const {
    const uint4 words =
        __ldg(reinterpret_cast<const uint4*>(view_.pages + static_cast<int64_t>(head) * view_.capacity + index));
    return *reinterpret_cast<const DevicePage*>(&words);
  }
  __device__ __forceinline__ bool has_codes(const DevicePage& page) const { return page.format == c_.coded; }

  __device__ void load_tables() {
    const uint4* rows = c_.bytes.rows + static_cast<int64_t>(head_) * table_bytes(keys_) / 16;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < table_bytes(keys_) / 16;
         i += static_cast<int32_t>(blockDim.x)) {
      copy_chunk(shared_address(table_ + 16 * i), rows + i);
    }
    for (auto i = static_cast<int32_t>(threadIdx.x); i < kSlots * kPairs; i += static_cast<int32_t>(blockDim.x)) {
      const int32_t pair = i % kPairs;
      const float2 turn = turn_of(c_.tables, i / kPairs, pair);
      auto* four = reinterpret_cast<uint32_t*>(&shared_.turns[i / kPairs][turn_place(pair / 8, pair / 4 % 2)]);
      four[pair % 4] = pack(turn.x, turn.y);
    }
    wait_chunks();
  }

  /// A warp a row: turned to its position, scaled by a power of two so that halves hold it.
  __device__ void load_queries() {
    const int32_t rows = row_count<kCodedRows>(a_, unit_);
    for (int32_t row = warp_; row < kCodedRows; row += c_.warps) {
      const RowPlace place = row_place(a_, unit_, row < rows ? row : 0);
      const int64_t at = row_offset(a_.q_strides, place);
      const int32_t query = place.query - sequence_of(a_, unit_).query_begin;
      const int32_t position = row < rows ? query_position(a_, unit_, query) : -1;
      float2 plain[2];
      float2 units[2];
      float largest[2] = {0.0F, 0.0F};
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t pair = lane_ + kWarpLanes * i;
        const float x = row < rows ? read_float(a_.q, a_.q_dtype, at + c_.tables.first_channel(pair)) : 0.0F;
        const float y = row < rows ? read_float(a_.q, a_.q_dtype, at + c_.tables.second_channel(pair)) : 0.0F;
        const float2 turn =
            cos_sin_fast(static_cast<double>(position) * static_cast<double>(__ldg(a_.inv_freq + pair)));
        plain[i] = {fmaf(x, turn.x, -(y * turn.y)), fmaf(x, turn.y, y * turn.x)};
        const float unit = __ldg(c_.bytes.units + head_ * kPairs + pair);
        units[i] = {plain[i].x * unit, plain[i].y * unit};
        largest[0] = fmaxf(largest[0], fmaxf(fabsf(units[i].x), fabsf(units[i].y)));
        largest[1] = fmaxf(largest[1], fmaxf(fabsf(plain[i].x), fabsf(plain[i].y)));
      }
#pragma unroll
      for (int32_t which = 0; which < 2; ++which) {
        const uint32_t bits = __reduce_max_sync(kAll, __float_as_uint(largest[which]));
        const int32_t exponent = min(max(static_cast<int32_t>(bits >> 23U), 64), 250) - 126;
        const float down = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23U);
        if (lane_ == 0) {
          shared_.scales[which][row] = __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23U) * a_.scale;
          shared_.positions[row] = position;
        }
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
          const float2 x = which == 0 ? units[i] : plain[i];
          shared_.queries[which][row][lane_ + kWarpLanes * i] = {x.x * down, x.y * down};
        }
      }
    }
  }

  __device__ __forceinline__ NextRecord ask_record(int32_t index, int32_t end) const {
    if (index >= end) return {};
    const DevicePage page = record_of(head_, index);
    if (keys_.numbers.of_layer == 0) return {page, page.data};
    return {page, record_of(lane_ / keys_.numbers.share, index).data};
  }

  /// Indices and norms of a page with codes.
  __device__ __forceinline__ NextPage ask(const NextRecord& record) const {
    NextPage next{};
    next.page = record.page;
    if (!has_codes(record.page)) return next;
    const auto* side = reinterpret_cast<const uint2*>(record.page.data);
    const int32_t chunks = keys_.stages * keys_.index_bits;  // of 8 bytes
#pragma unroll
    for (int32_t i = 0; i < kMostIndexBytes / 8 / kWarpLanes; ++i) {
      if (lane_ + kWarpLanes * i < chunks) next.indices[i] = __ldg(side + lane_ + kWarpLanes * i);
    }
    const uint64_t place = record.holder + static_cast<uint64_t>(place_of(keys_.numbers, lane_));
    next.norm = __half2float(__ushort_as_half(__ldg(reinterpret_cast<const uint16_t*>(place))));
    return next;
  }

  __device__ __forceinline__ void score(const NextPage& now, int32_t index, float (&highest)[2]) {
    const DevicePage& page = now.page;
    const bool codes = has_codes(page);
    uint32_t queries[kLanePairs];  // of row g
    if (codes) {
      unpack(now);
      turn_back_by(page.first_position);
    }
    fetch_queries(codes, queries);
#pragma unroll 1
    for (int32_t tile = 0; tile < 2; ++tile) {
      uint32_t keys[2][kLanePairs];
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t slot = 16 * tile + 8 * i + g_;
        if (codes) {
          rebuild(page, index, slot, keys[i]);
        } else {
          read_halves(page, slot, keys[i]);
        }
      }
      float sums[4] = {};
#pragma unroll
      for (int32_t i = 0; i < kLanePairs; i += 2) {
        mma(sums, keys[0][i], keys[1][i], keys[0][i + 1], keys[1][i + 1], queries[i], queries[i + 1]);
      }
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t slot = 16 * tile + 8 * i + g_;
        const float norm = codes ? __shfl_sync(kAll, now.norm, slot) : 1.0F;
        const bool held = slot < page.count;
        const int32_t position = held ? position_in_page(a_, unit_, page, index, slot) : 0;
#pragma unroll
        for (int32_t c = 0; c < 2; ++c) {
          const int32_t row = 2 * t_ + c;
          float logit = sums[2 * i + c] * norm * shared_.scales[codes ? 0 : 1][row];
          if (a_.softcap > 0.0F) logit = a_.softcap * tanhf(logit / a_.softcap);
          const int32_t of_row = shared_.positions[row];
          const bool seen =
              held && position <= of_row && (a_.window == 0 || position > static_cast<int64_t>(of_row) - a_.window);
          if (!seen) logit = minus_infinity();
          highest[c] = fmaxf(highest[c], logit);
          if (unit_.first_row + row < c_.rows) row_of(c_.scores, row, c_.tokens)[index * kSlots + slot] = logit;
        }
      }
    }
  }

  /// Of a row, the first of its `n` numbers.
  __device__ __forceinline__ float* row_of(float* numbers, int32_t row, int32_t n) const {
    const int32_t all = (sequence_ * c_.tables.kv_heads + head_) * c_.rows + unit_.first_row + row;
    return numbers + static_cast<int64_t>(all) * n;
  }

  /// A lane a slot: where its rows are in the table, two places in a word.
  __device__ __forceinline__ void unpack(const NextPage& now) {
    __syncwarp();
    const int32_t chunks = keys_.stages * keys_.index_bits;
#pragma unroll
    for (int32_t i = 0; i < kMostIndexBytes / 8 / kWarpLanes; ++i) {
      if (lane_ + kWarpLanes * i >= chunks) continue;
      warp_shared_->indices[2 * (lane_ + kWarpLanes * i)] = now.indices[i].x;
      warp_shared_->indices[2 * (lane_ + kWarpLanes * i) + 1] = now.indices[i].y;
    }
    __syncwarp();
    const int32_t bits = keys_.index_bits;
    const uint32_t mask = (1U << bits) - 1U;
    const auto field = [&](int32_t bit) {
      // The last field may end with the last word.
      const uint32_t low = warp_shared_->indices[bit / 32];
      const uint32_t high = warp_shared_->indices[min(bit / 32 + 1, kMostIndexBytes / 4 - 1)];
      return __funnelshift_r(low, high, static_cast<uint32_t>(bit % 32)) & mask;
    };
    for (int32_t stage = 0; stage < keys_.stages; ++stage) {
      const int32_t first = stage * 2 * kSlots * bits;
      const uint32_t a = field(first + lane_ * bits);
      const uint32_t b = field(first + (kSlots + lane_) * bits);
      places_[stage * kSlots + lane_] = (a | b << 16U) * kCodedDim;
    }
    __syncwarp();
  }

  __device__ __forceinline__ void turn_back_by(int32_t position) {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t pair = lane_ + kWarpLanes * i;
      warp_shared_->turn[pair] = turn_of(c_.tables, position, pair);
    }
    __syncwarp();
  }

  /// Row g of the queries at the lane's pairs: a pair is two neighbours of the reduction.
  __device__ __forceinline__ void fetch_queries(bool codes, uint32_t (&queries)[kLanePairs]) const {
#pragma unroll
    for (int32_t i = 0; i < kLanePairs; ++i) {
      const int32_t pair = 8 * (t_ + 4 * (i / 8)) + i % 8;
      float2 q = shared_.queries[codes ? 0 : 1][g_][pair];
      if (codes) {
        const float2 turn = warp_shared_->turn[pair];
        q = {fmaf(q.x, turn.x, q.y * turn.y), fmaf(q.y, turn.x, -(q.x * turn.y))};
      }
      queries[i] = pack(q.x, q.y);
    }
  }

  /// Halves {re, im} of the lane's pairs of a slot's key, turned by its place in the page.
  __device__ __forceinline__ void rebuild(const DevicePage& page, int32_t index, int32_t slot,
                                          uint32_t (&key)[kLanePairs]) const {
    ByteSums of_a[2];
    ByteSums of_b[2];
    const uint32_t table = shared_address(table_);
    const uint32_t* places = places_ + slot;
    const auto stage_bytes = static_cast<uint32_t>(keys_.codes * kCodedDim);
    const auto chunk = static_cast<uint32_t>(16 * chunk_of(g_, t_, 0));
    uint32_t row = table + chunk;
    int32_t stage = 0;
#pragma unroll 1
    for (; stage + 2 <= keys_.stages; stage += 2, row += 2 * stage_bytes) {
      const uint32_t first = places[stage * kSlots];
      const uint32_t second = places[(stage + 1) * kSlots];
      const uint32_t a[2] = {row + (first & 0xFFFFU), row + stage_bytes + (second & 0xFFFFU)};
      const uint32_t b[2] = {row + (first >> 16U), row + stage_bytes + (second >> 16U)};
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        of_a[i].add(load(a[0] ^ 64 * i), load(a[1] ^ 64 * i));
        of_b[i].add(load(b[0] ^ 64 * i), load(b[1] ^ 64 * i));
      }
    }
    if (stage < keys_.stages) {
      const uint32_t last = places[stage * kSlots];
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        of_a[i].add(load(row + (last & 0xFFFFU) ^ 64 * i));
        of_b[i].add(load(row + (last >> 16U) ^ 64 * i));
      }
    }
    uint32_t turned[kLanePairs];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      uint32_t turns[8];
      find_turns(page, index, slot, chunk_of(g_, t_, i), turns);
#pragma unroll
      for (int32_t w = 0; w < 4; ++w) {
        // a + i·b: real parts first, of two pairs.
        const uint32_t real = of_a[i].even(w) + kBias * 0x10001U - of_b[i].odd[w];
        const uint32_t imaginary = of_a[i].odd[w] + of_b[i].even(w);
#pragma unroll
        for (int32_t p = 0; p < 2; ++p) {
          const float x = number(real, p) - kReal;
          const float y = number(imaginary, p) - imaginary_bias();
          turned[8 * i + 2 * w + p] = turn(pack(x, y), turns[2 * w + p]);
        }
      }
    }
    // In the order of channels for even and odd tokens alike.
    const bool odd = (g_ & 1) != 0;
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      key[i] = odd ? turned[8 + i] : turned[i];
      key[8 + i] = odd ? turned[i] : turned[8 + i];
    }
  }

  /// More than any difference of two sums of bytes.
  static constexpr uint32_t kBias = 0x4000;
  static constexpr float kReal = 8388608.0F + static_cast<float>(kBias);
  /// What 128 added to each byte makes of the sum of two rows' stages.
  __device__ __forceinline__ float imaginary_bias() const {
    return 8388608.0F + 256.0F * static_cast<float>(keys_.stages);
  }
  /// 2^23 + half `which` of a word.
  static __device__ __forceinline__ float number(uint32_t word, int32_t which) {
    return __uint_as_float(__byte_perm(word, 0x4B000000U, which == 0 ? 0x7410 : 0x7432));
  }
  static __device__ __forceinline__ uint4 load(uint32_t address) { return load_shared<uint4>(address); }

  /// {re, im} times {cos, sin}.
  static __device__ __forceinline__ uint32_t turn(uint32_t x, uint32_t by) {
    const uint32_t across = __byte_perm(by, 0, 0x1032) ^ 0x8000U;  // {−sin, cos}
    return multiply_add(low_halves(x, x), by, multiply(high_halves(x, x), across));
  }

  /// Of a slot relative to its page, of the eight pairs of a chunk.
  __device__ __forceinline__ void find_turns(const DevicePage& page, int32_t index, int32_t slot, int32_t chunk,
                                             uint32_t (&turns)[8]) const {
    if (__builtin_expect(page.has_positions != 0, 0)) {
      const int32_t offset =
          slot < page.count ? position_in_page(a_, unit_, page, index, slot) - page.first_position : 0;
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) turns[i] = any_turn(offset, 8 * chunk + i);
      return;
    }
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      const uint4 four = shared_.turns[slot][turn_place(chunk, half)];
      turns[4 * half] = four.x;
      turns[4 * half + 1] = four.y;
      turns[4 * half + 2] = four.z;
      turns[4 * half + 3] = four.w;
    }
  }

  __device__ __noinline__ uint32_t any_turn(int32_t offset, int32_t pair) const {
    const float2 turn = turn_of(c_.tables, offset, pair);
    return pack(turn.x, turn.y);
  }

  /// The same of a page in FP16, which holds keys turned.
  __device__ __forceinline__ void read_halves(const DevicePage& page, int32_t slot, uint32_t (&key)[kLanePairs]) const {
#pragma unroll
    for (int32_t i = 0; i < kLanePairs; ++i) {
      const int32_t pair = 8 * (t_ + 4 * (i / 8)) + i % 8;
      const auto half = [&](int32_t channel) {
        const int32_t at = float16_place(Side::kKeys, kCodedDim, slot, channel);
        return static_cast<uint32_t>(__ldg(reinterpret_cast<const uint16_t*>(page.data + static_cast<uint64_t>(at))));
      };
      key[i] = half(c_.tables.first_channel(pair)) | half(c_.tables.second_channel(pair)) << 16U;
    }
  }

  __device__ void store_maxima(const float (&highest)[2]) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      float most = highest[c];
#pragma unroll
      for (int32_t distance = 4; distance < kWarpLanes; distance *= 2) {
        most = fmaxf(most, __shfl_xor_sync(kAll, most, distance));
      }
      if (g_ == 0) shared_.maxima[warp_][2 * t_ + c] = most;
    }
    __syncthreads();
    const auto row = static_cast<int32_t>(threadIdx.x);
    if (row >= kCodedRows || unit_.first_row + row >= c_.rows) return;
    float most = minus_infinity();
    for (int32_t warp = 0; warp < c_.warps; ++warp) most = fmaxf(most, shared_.maxima[warp][row]);
    row_of(c_.maxima, row, c_.parts)[blockIdx.x] = most;
  }

  const AttendArguments& a_;
  const CodedAttention& c_;
  const KeyTables& keys_;
  ScoreShared& shared_;
  std::byte* table_;
  int32_t warp_;
  int32_t lane_;
  int32_t g_;
  int32_t t_;
  int32_t row_tiles_;
  int32_t head_;
  int32_t sequence_;
  Unit unit_;
  const SequenceView& view_;
  int32_t pages_;
  WarpShared* warp_shared_;
  uint32_t* places_;
};

}  // namespace kvq::cuda
