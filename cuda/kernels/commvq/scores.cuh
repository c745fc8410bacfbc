// Scores of tokens with CommVQ keys. A warp takes a page: four lanes per token, each of which sums 16 pairs of channels
// over the stages, as bytes from a table in shared memory, two stages at a time. The sums are rotated by their slot and
// multiplied with queries rotated back by the page's position.
//
// Queries, rotations and keys hold two pairs in two FP16 words: the real parts, then the imaginary parts. Four words of
// one part correspond to a 16-byte chunk of a table row, which holds eight pairs.
#pragma once

#include "core/window.h"
#include "kernels/attend/units.cuh"
#include "kernels/commvq/attend.h"
#include "kernels/commvq/codebook.cuh"
#include "kernels/device/copies.cuh"
#include "kernels/device/fragments.cuh"
#include "kernels/device/rope.cuh"
#include "kernels/device/warp.cuh"
#include "kernels/pages/layout.cuh"

namespace kvq::cuda {

inline constexpr int32_t kMostScoreWarps = 16;
inline constexpr int32_t kPairs = kCommvqDim / 2;
inline constexpr int32_t kLanePairs = kPairs / 4;
/// Maximum bytes of a page's key indices.
inline constexpr int32_t kMostIndexBytes = 1024;

inline constexpr int32_t kChunks = kCommvqDim / 16;
inline constexpr int32_t kParts = 2;  // real and imaginary

/// The real or the imaginary parts of a chunk's pairs.
struct alignas(16) PairWords {
  uint32_t of[4];
};

/// Shared memory of a block. Table rows are aligned to their size.
template <int kTiles>
struct alignas(kCommvqDim) ScoreShared {
  PairWords queries[2][8 * kTiles][kParts][kChunks];  // in table units, then unscaled; see query_chunk
  PairWords rotations[kSlots][kParts][kChunks];       // rotations relative to the page
  float scales[2][8 * kTiles];
  int32_t positions[8 * kTiles];
  float maxima[kMostScoreWarps][8 * kTiles];
  // The table follows, then each warp's WarpShared.
};
struct WarpShared {
  PairWords rotation[kParts][kChunks];        // rotation of the page's first position
  uint32_t indices[kMostIndexBytes / 4 + 4];  // padded, because a field is read from two words
  // Byte offsets [stages][32] of a slot's two rows in the table follow.
};

/// Order of a lane's chunks in a table row: t, then t + 4, and the reverse for odd tokens, so that two tokens read
/// together never conflict in banks.
__device__ __forceinline__ int32_t chunk_of(int32_t g, int32_t t, int32_t which) { return t + 4 * (which ^ (g & 1)); }
/// Swizzle of a query row's chunks.
__device__ __forceinline__ int32_t query_chunk(int32_t row, int32_t chunk) { return chunk ^ 4 * (row & 1); }

/// Rotation for an offset other than the slot; rare, so not inlined.
__device__ __noinline__ uint2 any_rotations(const CodebookTables& tables, int32_t offset, int32_t two) {
  const float2 first = rotation_of(tables, offset, 2 * two);
  const float2 second = rotation_of(tables, offset, 2 * two + 1);
  return {pack(first.x, second.x), pack(first.y, second.y)};
}

/// 16-bit sums of the even and the odd bytes of four words.
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

/// A warp reads NextRecord two pages ahead and NextPage one page ahead.
struct NextRecord {
  DevicePage page;
  uint64_t holder;  // page with the norm of the lane's slot
};
struct NextPage {
  DevicePage page;
  uint2 indices[kMostIndexBytes / 8 / kWarpLanes];
  float norm;  // norm of the lane's slot
};

template <int kTiles>
class Scorer {
 public:
  static constexpr int32_t kRows = 8 * kTiles;

  __device__ Scorer(const AttendArguments& arguments, const CommvqAttention& commvq, std::byte* memory)
      : a_(arguments),
        c_(commvq),
        keys_(commvq.tables.keys),
        shared_(*reinterpret_cast<ScoreShared<kTiles>*>(memory)),
        table_(memory + sizeof(ScoreShared<kTiles>)),
        warp_(static_cast<int32_t>(threadIdx.x) / kWarpLanes),
        lane_(static_cast<int32_t>(threadIdx.x) % kWarpLanes),
        g_(lane_ / 4),
        t_(lane_ % 4),
        head_(static_cast<int32_t>(blockIdx.y)),
        sequence_(static_cast<int32_t>(blockIdx.z)),
        unit_{sequence_, head_, 0},
        view_(arguments.sequences[sequence_].view),
        pages_(view_.heads[head_].pages) {
    std::byte* own = table_ + table_bytes(keys_) + warp_ * warp_bytes(keys_);
    warp_shared_ = reinterpret_cast<WarpShared*>(own);
    places_ = reinterpret_cast<uint32_t*>(own + sizeof(WarpShared));
  }

  /// Bytes for a block of `warps` warps.
  static int32_t shared_bytes(const KeyTables& keys, int32_t warps) {
    return static_cast<int32_t>(sizeof(ScoreShared<kTiles>)) + table_bytes(keys) + warps * warp_bytes(keys);
  }

  __device__ void run() {
    load_tables();
    load_queries();
    __syncthreads();
    const auto part = static_cast<int32_t>(blockIdx.x);
    const int32_t share = (pages_ + c_.parts - 1) / c_.parts;
    const int32_t end = min(pages_, (part + 1) * share);
    float highest[kTiles][2];
#pragma unroll
    for (int32_t r = 0; r < kTiles; ++r) highest[r][0] = highest[r][1] = minus_infinity();
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
  static KVQ_HOST_DEVICE int32_t table_bytes(const KeyTables& keys) { return keys.stages * keys.codes * kCommvqDim; }
  static KVQ_HOST_DEVICE int32_t warp_bytes(const KeyTables& keys) {
    return static_cast<int32_t>(sizeof(WarpShared)) + keys.stages * kSlots * 4;
  }
  __device__ __forceinline__ DevicePage record_of(int32_t head, int32_t index) const {
    const uint4 words =
        __ldg(reinterpret_cast<const uint4*>(view_.pages + static_cast<int64_t>(head) * view_.capacity + index));
    return *reinterpret_cast<const DevicePage*>(&words);
  }
  __device__ __forceinline__ bool has_codes(const DevicePage& page) const { return page.format() == c_.format; }

  __device__ void load_tables() {
    const uint4* rows = c_.bytes.rows + static_cast<int64_t>(head_) * table_bytes(keys_) / 16;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < table_bytes(keys_) / 16;
         i += static_cast<int32_t>(blockDim.x)) {
      copy_chunk(shared_address(table_ + 16 * i), rows + i);
    }
    for (int32_t slot = warp_; slot < kSlots; slot += c_.warps) {
      store_rotations(shared_.rotations[slot], lane_, rotation_of(c_.tables, slot, 2 * lane_),
                      rotation_of(c_.tables, slot, 2 * lane_ + 1));
    }
    wait_chunks();
  }

  /// Stores the rotations of pairs 2 · two and 2 · two + 1.
  static __device__ __forceinline__ void store_rotations(PairWords (&to)[kParts][kChunks], int32_t two, float2 first,
                                                         float2 second) {
    to[0][two / 4].of[two % 4] = pack(first.x, second.x);
    to[1][two / 4].of[two % 4] = pack(first.y, second.y);
  }

  /// One row per warp, two pairs per lane: rotates a row to its position and scales it by a power of two to fit FP16.
  __device__ void load_queries() {
    const int32_t rows = row_count<kRows>(a_, unit_);
    for (int32_t row = warp_; row < kRows; row += c_.warps) {
      const RowPlace place = row_place(a_, unit_, row < rows ? row : 0);
      const int64_t at = row_offset(a_.q_strides, place);
      const int32_t query = place.query - sequence_of(a_, unit_).query_begin;
      const int32_t position = row < rows ? query_position(a_, unit_, query) : -1;
      float2 x[2][2];  // both pairs in the table's units and unscaled
      float largest[2] = {0.0F, 0.0F};
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const int32_t pair = 2 * lane_ + i;
        const float re = row < rows ? read_float(a_.q, a_.q_dtype, at + c_.tables.first_channel(pair)) : 0.0F;
        const float im = row < rows ? read_float(a_.q, a_.q_dtype, at + c_.tables.second_channel(pair)) : 0.0F;
        const float2 rotation =
            cos_sin_fast(static_cast<double>(position) * static_cast<double>(__ldg(a_.inv_freq + pair)));
        x[1][i] = {fmaf(re, rotation.x, -(im * rotation.y)), fmaf(re, rotation.y, im * rotation.x)};
        if (view_.scales) {
          x[1][i] = unscale_query(view_.scales, head_, kCommvqDim, x[1][i], c_.tables.first_channel(pair),
                                  c_.tables.second_channel(pair));
        }
        const float unit = __ldg(c_.bytes.units + head_ * kPairs + pair);
        x[0][i] = {x[1][i].x * unit, x[1][i].y * unit};
#pragma unroll
        for (int32_t which = 0; which < 2; ++which) {
          largest[which] = fmaxf(largest[which], fmaxf(fabsf(x[which][i].x), fabsf(x[which][i].y)));
        }
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
        const int32_t chunk = query_chunk(row, lane_ / 4);
        auto& to = shared_.queries[which][row];
        to[0][chunk].of[lane_ % 4] = pack(x[which][0].x * down, x[which][1].x * down);
        to[1][chunk].of[lane_ % 4] = pack(x[which][0].y * down, x[which][1].y * down);
      }
    }
  }

  __device__ __forceinline__ NextRecord ask_record(int32_t index, int32_t end) const {
    if (index >= end) return {};
    const DevicePage page = record_of(head_, index);
    if (keys_.numbers.of_layer == 0) return {page, page.data};
    return {page, record_of(lane_ / keys_.numbers.share, index).data};
  }

  /// Loads indices and norms of a page.
  __device__ __forceinline__ NextPage ask(const NextRecord& record) const {
    NextPage next{};
    next.page = record.page;
    if (!has_codes(record.page)) return next;
    const auto* side = reinterpret_cast<const uint2*>(record.page.data);
    const int32_t chunks = keys_.stages * keys_.index_bits;  // chunks of 8 bytes
#pragma unroll
    for (int32_t i = 0; i < kMostIndexBytes / 8 / kWarpLanes; ++i) {
      if (lane_ + kWarpLanes * i < chunks) next.indices[i] = __ldg(side + lane_ + kWarpLanes * i);
    }
    const uint64_t place = record.holder + static_cast<uint64_t>(place_of(keys_.numbers, lane_));
    next.norm = __half2float(__ushort_as_half(__ldg(reinterpret_cast<const uint16_t*>(place))));
    return next;
  }

  __device__ __forceinline__ void score(const NextPage& now, int32_t index, float (&highest)[kTiles][2]) {
    const DevicePage& page = now.page;
    const bool codes = has_codes(page);
    if (codes) {
      unpack(now);
      find_page_rotation(page.first_position);
    }
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
#pragma unroll
      for (int32_t r = 0; r < kTiles; ++r) {
        uint32_t queries[kLanePairs];  // row 8r + g
        fetch_queries(codes, 8 * r + g_, queries);
        // Odd tokens hold their chunks in reverse order and need the queries' chunks reversed.
        float even[4] = {};
        float odd[4] = {};
#pragma unroll
        for (int32_t i = 0; i < kLanePairs; i += 2) {
          const int32_t other = (i + kLanePairs / 2) % kLanePairs;
          mma(even, keys[0][i], keys[1][i], keys[0][i + 1], keys[1][i + 1], queries[i], queries[i + 1]);
          mma(odd, keys[0][i], keys[1][i], keys[0][i + 1], keys[1][i + 1], queries[other], queries[other + 1]);
        }
        float sums[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) sums[i] = (g_ & 1) != 0 ? odd[i] : even[i];
        finish(now, index, tile, r, sums, highest[r]);
      }
    }
  }

  /// Finishes the scores of two slots and two rows.
  __device__ __forceinline__ void finish(const NextPage& now, int32_t index, int32_t tile, int32_t row_tile,
                                         const float (&sums)[4], float (&highest)[2]) {
    const DevicePage& page = now.page;
    const bool codes = has_codes(page);
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t slot = 16 * tile + 8 * i + g_;
      const float norm = codes ? __shfl_sync(kAll, now.norm, slot) : 1.0F;
      const bool held = slot < page.count();
      const int32_t position = held ? position_in_page(a_, unit_, page, index, slot) : 0;
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        const int32_t row = 8 * row_tile + 2 * t_ + c;
        float logit = sums[2 * i + c] * norm * shared_.scales[codes ? 0 : 1][row];
        if (a_.softcap > 0.0F) logit = a_.softcap * tanhf(logit / a_.softcap);
        const int32_t of_row = shared_.positions[row];
        const bool seen = held && position <= of_row && position > newest_hidden(of_row, a_.window);
        if (!seen) logit = minus_infinity();
        highest[c] = fmaxf(highest[c], logit);
        if (row < c_.rows) row_of(c_.scores, row, c_.tokens)[index * kSlots + slot] = logit;
      }
    }
  }

  /// First of the row's `n` values.
  __device__ __forceinline__ float* row_of(float* numbers, int32_t row, int32_t n) const {
    const int32_t all = (sequence_ * c_.tables.kv_heads + head_) * c_.rows + row;
    return numbers + static_cast<int64_t>(all) * n;
  }

  /// One slot per lane: stores the table offsets of its rows, two per word.
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
    // The fields of 32 slots fill as many words as a field has bits.
    const int32_t bits = keys_.index_bits;
    const uint32_t mask = (1U << bits) - 1U;
    const uint32_t* words = warp_shared_->indices + lane_ * bits / 32;
    const auto shift = static_cast<uint32_t>(lane_ * bits % 32);
#pragma unroll 2
    for (int32_t stage = 0; stage < keys_.stages; ++stage, words += 2 * bits) {
      const uint32_t a = __funnelshift_r(words[0], words[1], shift) & mask;
      const uint32_t b = __funnelshift_r(words[bits], words[bits + 1], shift) & mask;
      places_[stage * kSlots + lane_] = (a | b << 16U) * kCommvqDim;
    }
    __syncwarp();
  }

  /// Two pairs per lane. Consecutive pages share the rotation by the high digits of their position.
  __device__ __forceinline__ void find_page_rotation(int32_t position) {
    constexpr int32_t kDigits = kSlots * kSlots;
    const int32_t base = position & ~(kDigits - 1);
    const int32_t rest = position & (kDigits - 1);
    if (base != base_position_) {
      base_position_ = base;
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) base_rotation_[i] = rotation_of(c_.tables, base, 2 * lane_ + i);
    }
    float2 rotations[2];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      rotations[i] = product(base_rotation_[i], rotation_of(c_.tables, rest, 2 * lane_ + i));
    }
    store_rotations(warp_shared_->rotation, lane_, rotations[0], rotations[1]);
    __syncwarp();
  }

  /// Loads a query row at the lane's pairs, rotated back by the page's position.
  __device__ __forceinline__ void fetch_queries(bool codes, int32_t row, uint32_t (&queries)[kLanePairs]) const {
    const auto& from = shared_.queries[codes ? 0 : 1][row];
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t chunk = t_ + 4 * i;
      const PairWords re = from[0][query_chunk(row, chunk)];
      const PairWords im = from[1][query_chunk(row, chunk)];
      PairWords cosine{};
      PairWords sine{};
      if (codes) {
        cosine = warp_shared_->rotation[0][chunk];
        sine = warp_shared_->rotation[1][chunk];
      }
#pragma unroll
      for (int32_t w = 0; w < 4; ++w) {
        uint32_t& x = queries[8 * i + 2 * w];
        uint32_t& y = queries[8 * i + 2 * w + 1];
        x = re.of[w];
        y = im.of[w];
        if (codes) rotate_pair(x, y, cosine.of[w], negated(sine.of[w]));
      }
    }
  }

  /// Sums the lane's pairs of a slot's key and rotates them by the slot.
  __device__ __forceinline__ void rebuild(const DevicePage& page, int32_t index, int32_t slot,
                                          uint32_t (&key)[kLanePairs]) const {
    ByteSums of_a[2];
    ByteSums of_b[2];
    const uint32_t table = shared_address(table_);
    const uint32_t* places = places_ + slot;
    const auto stage_bytes = static_cast<uint32_t>(keys_.codes * kCommvqDim);
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
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      PairWords cosine;
      PairWords sine;
      find_rotations(page, index, slot, chunk_of(g_, t_, i), cosine, sine);
#pragma unroll
      for (int32_t w = 0; w < 4; ++w) {
        // a + i·b for two pairs
        const uint32_t real = of_a[i].even(w) + kBias * 0x10001U - of_b[i].odd[w];
        const uint32_t imaginary = of_a[i].odd[w] + of_b[i].even(w);
        uint32_t& x = key[8 * i + 2 * w];
        uint32_t& y = key[8 * i + 2 * w + 1];
        x = pack(number(real, 0) - kReal, number(real, 1) - kReal);
        y = pack(number(imaginary, 0) - imaginary_bias(), number(imaginary, 1) - imaginary_bias());
        rotate_pair(x, y, cosine.of[w], sine.of[w]);
      }
    }
  }

  /// Exceeds any difference of two byte sums.
  static constexpr uint32_t kBias = 0x4000;
  static constexpr float kReal = 8388608.0F + static_cast<float>(kBias);
  /// Contribution of the bytes' offsets of 128 to the imaginary sum of two rows per stage.
  __device__ __forceinline__ float imaginary_bias() const {
    return 8388608.0F + 256.0F * static_cast<float>(keys_.stages);
  }
  /// 2^23 + the lower or upper 16 bits of a word.
  static __device__ __forceinline__ float number(uint32_t word, int32_t which) {
    return __uint_as_float(__byte_perm(word, 0x4B000000U, which == 0 ? 0x7410 : 0x7432));
  }
  static __device__ __forceinline__ uint4 load(uint32_t address) { return load_shared<uint4>(address); }

  /// Rotates two pairs at once.
  static __device__ __forceinline__ void rotate_pair(uint32_t& re, uint32_t& im, uint32_t cosine, uint32_t sine) {
    const uint32_t x = multiply_add(re, cosine, negated(multiply(im, sine)));
    im = multiply_add(re, sine, multiply(im, cosine));
    re = x;
  }

  /// Rotations of a slot relative to its page, for the pairs of a chunk.
  __device__ __forceinline__ void find_rotations(const DevicePage& page, int32_t index, int32_t slot, int32_t chunk,
                                                 PairWords& cosine, PairWords& sine) const {
    if (__builtin_expect(page.has_positions(), 0)) {
      const int32_t offset =
          slot < page.count() ? position_in_page(a_, unit_, page, index, slot) - page.first_position : 0;
#pragma unroll
      for (int32_t w = 0; w < 4; ++w) {
        const uint2 both = any_rotations(c_.tables, offset, 4 * chunk + w);
        cosine.of[w] = both.x;
        sine.of[w] = both.y;
      }
      return;
    }
    cosine = shared_.rotations[slot][0][chunk];
    sine = shared_.rotations[slot][1][chunk];
  }

  /// Loads the lane's pairs of an FP16 key, which is stored rotated.
  __device__ __forceinline__ void read_halves(const DevicePage& page, int32_t slot, uint32_t (&key)[kLanePairs]) const {
    const auto half = [&](int32_t channel) {
      const int32_t at = float16_place(Side::kKeys, kCommvqDim, slot, channel);
      return static_cast<uint32_t>(__ldg(reinterpret_cast<const uint16_t*>(page.data + static_cast<uint64_t>(at))));
    };
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
#pragma unroll
      for (int32_t w = 0; w < 4; ++w) {
        const int32_t pair = 8 * chunk_of(g_, t_, i) + 2 * w;
        const CodebookTables& tables = c_.tables;
        key[8 * i + 2 * w] = half(tables.first_channel(pair)) | half(tables.first_channel(pair + 1)) << 16U;
        key[8 * i + 2 * w + 1] = half(tables.second_channel(pair)) | half(tables.second_channel(pair + 1)) << 16U;
      }
    }
  }

  __device__ void store_maxima(const float (&highest)[kTiles][2]) {
#pragma unroll
    for (int32_t r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        float most = highest[r][c];
#pragma unroll
        for (int32_t distance = 4; distance < kWarpLanes; distance *= 2) {
          most = fmaxf(most, __shfl_xor_sync(kAll, most, distance));
        }
        if (g_ == 0) shared_.maxima[warp_][8 * r + 2 * t_ + c] = most;
      }
    }
    __syncthreads();
    const auto row = static_cast<int32_t>(threadIdx.x);
    if (row >= kRows || row >= c_.rows) return;
    float most = minus_infinity();
    for (int32_t warp = 0; warp < c_.warps; ++warp) most = fmaxf(most, shared_.maxima[warp][row]);
    row_of(c_.maxima, row, c_.parts)[blockIdx.x] = most;
  }

  const AttendArguments& a_;
  const CommvqAttention& c_;
  const KeyTables& keys_;
  ScoreShared<kTiles>& shared_;
  std::byte* table_;
  int32_t warp_;
  int32_t lane_;
  int32_t g_;
  int32_t t_;
  int32_t head_;
  int32_t sequence_;
  Unit unit_;
  const SequenceView& view_;
  int32_t pages_;
  WarpShared* warp_shared_;
  uint32_t* places_;
  int32_t base_position_ = -1;
  float2 base_rotation_[2] = {};
};

}  // namespace kvq::cuda
