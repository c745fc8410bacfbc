// Encoding of 32 × 32 tiles (slots by channels), one per warp. Lane 4·s + c owns slots [4·s, 4·s + 4) of channels
// [8·c, 8·c + 8): whole 16-byte chunks of INT4 codes, and reductions over key or value groups in a few shuffles.
#pragma once

#include "kernels/append/page.cuh"

namespace kvq::cuda {

inline constexpr int32_t kTileChannels = 32;

/// Exchanges half of x[0, 2·kKeep) with the lane across `bit` and joins; the lane whose `bit` is set keeps the upper
/// half.
template <int32_t kKeep, typename T, int32_t kN, typename Join>
__device__ inline void fold(T (&x)[kN], uint32_t bit, const Join& join) {
  static_assert(2 * kKeep <= kN);
  const bool upper = (threadIdx.x & bit) != 0;
#pragma unroll
  for (int32_t i = 0; i < kKeep; ++i) {
    const T low = x[i];
    const T high = x[i + kKeep];
    x[i] = join(upper ? high : low, __shfl_xor_sync(kAll, upper ? low : high, static_cast<int32_t>(bit)));
  }
}

struct Lower {
  __device__ float operator()(float a, float b) const { return fminf(a, b); }
  __device__ __half2 operator()(__half2 a, __half2 b) const { return __hmin2(a, b); }
};
struct Higher {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ __half2 operator()(__half2 a, __half2 b) const { return __hmax2(a, b); }
};
struct Or {
  __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return a | b; }
};

__device__ inline __half2 as_halves(uint32_t word) { return *reinterpret_cast<const __half2*>(&word); }
__device__ inline uint32_t as_word(__half2 halves) { return *reinterpret_cast<const uint32_t*>(&halves); }

/// Recomputes the lane at each use: kept addresses would fill the registers.
__device__ inline uint32_t fresh_lane() {
  uint32_t lane = 0;
  asm volatile("mov.u32 %0, %%laneid;\n" : "=r"(lane));
  return lane;
}

/// Side of a page in shared memory, FP16 [slots][head_dim]. The swizzle places slot + 4 four 16-byte chunks further, so
/// that the eight lanes of an access conflict neither by token nor by tile.
class HalfPlane {
 public:
  __host__ __device__ static constexpr int32_t bytes(int32_t head_dim) { return kSlots * head_dim * 2 + kSlots * 16; }

  __device__ HalfPlane(void* memory, int32_t head_dim) : chunks_(static_cast<uint4*>(memory)), head_dim_(head_dim) {}

  __device__ void put(int32_t slot, int32_t eighth, const __half2 (&x)[4]) const {
    chunks_[place(slot, eighth)] = make_uint4(as_word(x[0]), as_word(x[1]), as_word(x[2]), as_word(x[3]));
  }
  __device__ void get(int32_t slot, int32_t eighth, __half2 (&x)[4]) const {
    const uint4 words = chunks_[place(slot, eighth)];
    x[0] = as_halves(words.x), x[1] = as_halves(words.y), x[2] = as_halves(words.z), x[3] = as_halves(words.w);
  }

 private:
  __device__ int32_t place(int32_t slot, int32_t eighth) const {
    return slot * (head_dim_ / 8) + slot / 4 * 4 + eighth;
  }

  uint4* chunks_;
  int32_t head_dim_;
};

/// Float counterpart of HalfPlane, for Hadamard-rotated keys and values.
class FloatPlane {
 public:
  __host__ __device__ static constexpr int32_t bytes(int32_t head_dim) { return kSlots * head_dim * 4; }

  __device__ FloatPlane(void* memory, int32_t head_dim) : chunks_(static_cast<float4*>(memory)), head_dim_(head_dim) {}

  __device__ void put(int32_t slot, int32_t eighth, const float (&x)[8]) const {
    chunks_[place(slot, eighth, 0)] = make_float4(x[0], x[1], x[2], x[3]);
    chunks_[place(slot, eighth, 1)] = make_float4(x[4], x[5], x[6], x[7]);
  }
  __device__ void get(int32_t slot, int32_t eighth, float (&x)[8]) const {
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      const float4 four = chunks_[place(slot, eighth, h)];
      x[4 * h] = four.x, x[4 * h + 1] = four.y, x[4 * h + 2] = four.z, x[4 * h + 3] = four.w;
    }
  }

 private:
  __device__ int32_t place(int32_t slot, int32_t eighth, int32_t half) const {
    return slot * (head_dim_ / 4) + ((2 * eighth + half) ^ (((slot ^ eighth) >> 2) & 1));
  }

  float4* chunks_;
  int32_t head_dim_;
};

/// A lane's part of a tile, in registers.
struct LanePart {
  uint32_t lane = fresh_lane();
  int32_t four = static_cast<int32_t>(lane / 4);  // group of four slots
  int32_t eighth;                                 // group of eight channels of the side

  __device__ explicit LanePart(int32_t tile) : eighth(4 * tile + static_cast<int32_t>(lane % 4)) {}
};

/// Tile in FP16, exact because codes are never below 0.
struct HalfTile {
  static constexpr bool kRotated = false;
  __half2 x[4][4];

  __device__ void read(const HalfPlane& plane, const LanePart& part) {
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) plane.get(4 * part.four + j, part.eighth, x[j]);
  }
  __device__ float at(int32_t slot, int32_t channel) const {
    return channel % 2 == 0 ? __low2float(x[slot][channel / 2]) : __high2float(x[slot][channel / 2]);
  }
  /// Joins over the tile's slots; returns the lane's channel `lane / 4`.
  template <typename Join>
  __device__ float over_slots(const Join& join) const {
    __half2 y[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) y[i] = join(join(x[0][i], x[1][i]), join(x[2][i], x[3][i]));
    fold<2>(y, 16, join);
    fold<1>(y, 8, join);
    float z[2] = {__low2float(y[0]), __high2float(y[0])};
    fold<1>(z, 4, join);
    return z[0];
  }
  /// Joins over the tile's channels; returns the lane's slot `lane % 4`.
  template <typename Join>
  __device__ float over_channels(const Join& join) const {
    __half2 y[4];
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) y[j] = join(join(x[j][0], x[j][1]), join(x[j][2], x[j][3]));
    __half2 pairs[2];
#pragma unroll
    for (int32_t j = 0; j < 2; ++j) {
      pairs[j] = join(__lows2half2(y[2 * j], y[2 * j + 1]), __highs2half2(y[2 * j], y[2 * j + 1]));
    }
    fold<1>(pairs, 2, join);
    float z[2] = {__low2float(pairs[0]), __high2float(pairs[0])};
    fold<1>(z, 1, join);
    return z[0];
  }
};

/// Float counterpart of HalfTile.
struct FloatTile {
  static constexpr bool kRotated = true;
  float x[4][8];

  __device__ void read(const FloatPlane& plane, const LanePart& part) {
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) plane.get(4 * part.four + j, part.eighth, x[j]);
  }
  __device__ float at(int32_t slot, int32_t channel) const { return x[slot][channel]; }
  template <typename Join>
  __device__ float over_slots(const Join& join) const {
    float y[8];
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) y[i] = join(join(x[0][i], x[1][i]), join(x[2][i], x[3][i]));
    fold<4>(y, 16, join);
    fold<2>(y, 8, join);
    fold<1>(y, 4, join);
    return y[0];
  }
  template <typename Join>
  __device__ float over_channels(const Join& join) const {
    float y[4];
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      y[j] = x[j][0];
#pragma unroll
      for (int32_t i = 1; i < 8; ++i) y[j] = join(y[j], x[j][i]);
    }
    fold<2>(y, 2, join);
    fold<1>(y, 1, join);
    return y[0];
  }
};

/// Writes one tile of a side from the registers of a warp.
template <bool kKeys, int32_t kHeadDim>
class TileWriter {
 public:
  __device__ TileWriter(const AppendArguments& arguments, const LanePart& part, int32_t tile, uint8_t* target)
      : status_(arguments.status),
        head_dim_(kHeadDim > 0 ? kHeadDim : arguments.head.keys),
        lane_(part.lane),
        eighth_(part.eighth),
        four_(part.four),
        tile_(tile),
        target_(target) {}

  template <typename Tile>
  __device__ void write(const Tile& tile, CodeType kind) const {
    uint32_t codes[8];
    quantize(tile, kind.bits, full_places(kKeys ? Side::kKeys : Side::kValues, kind, head_dim_), codes);
    if constexpr (kKeys) {
      write_keys(kind, codes);
    } else {
      write_values(kind, codes);
    }
  }

  __device__ void write_halves(const HalfTile& tile) const {
    uint32_t x[4][4];
#pragma unroll
    for (int32_t i = 0; i < 16; ++i) x[i / 4][i % 4] = as_word(tile.x[i / 4][i % 4]);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      if constexpr (kKeys) {
        store_keys(CodeType::float16(), 4 * eighth_ + i, 0, make_uint4(x[0][i], x[1][i], x[2][i], x[3][i]));
      } else {
        const uint32_t(&even)[4] = x[i / 2 * 2];
        const uint32_t(&odd)[4] = x[i / 2 * 2 + 1];
        const int32_t first = i % 2 * 2;
        store_values(
            CodeType::float16(), 2 * four_ + i / 2, 4 * (i % 2),
            make_uint4(__byte_perm(even[first], odd[first], 0x5410), __byte_perm(even[first], odd[first], 0x7632),
                       __byte_perm(even[first + 1], odd[first + 1], 0x5410),
                       __byte_perm(even[first + 1], odd[first + 1], 0x7632)));
      }
    }
  }

 private:
  template <typename Tile>
  __device__ void quantize(const Tile& tile, int32_t bits, const SidePlaces& bytes, uint32_t (&codes)[8]) const {
    const auto top = static_cast<float>((1 << bits) - 1);
    const float low = kKeys ? tile.over_slots(Lower()) : tile.over_channels(Lower());
    const float high = kKeys ? tile.over_slots(Higher()) : tile.over_channels(Higher());
    if (Tile::kRotated && fmaxf(high, -low) > kMaxHalf) *status_ = 1;
    const Quantizer mine(low, high, bits);
    const int32_t at = scale_place(kKeys ? 8 * eighth_ + four_ : kSlots * tile_ + static_cast<int32_t>(lane_));
    reinterpret_cast<__half*>(target_ + bytes.codes)[at] = mine.scale;
    reinterpret_cast<__half*>(target_ + bytes.minima())[at] = mine.minimum;
    // Rounding is monotonic: if a group's extremes are in range, all its values are.
    const float minimum = __half2float(mine.minimum);
    const bool in_range =
        (low - minimum) * mine.inverse_scale >= -0.5F && (high - minimum) * mine.inverse_scale + 0.5F < top + 1.0F;
    if (__builtin_expect(static_cast<int64_t>(__all_sync(kAll, in_range)), 1) != 0) {
      encode<false>(tile, minimum, mine.inverse_scale, top, codes);
    } else {
      encode<true>(tile, minimum, mine.inverse_scale, top, codes);
    }
  }

  /// Produces codes as bytes: codes[2·j + h] holds channels [4·h, 4·h + 4) of slot j of keys; codes[i] the four slots
  /// of channel i of values.
  template <bool kClamp, typename Tile>
  __device__ void encode(const Tile& tile, float my_minimum, float my_inverse_scale, float top,
                         uint32_t (&codes)[8]) const {
    // Four groups at a time: half of the channels of keys, all four slots of values.
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      float minima[4];
      float inverse_scales[4];
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const auto from = static_cast<int32_t>(kKeys ? 4 * (4 * h + i) + lane_ % 4 : lane_ / 4 * 4 + i);
        minima[i] = __shfl_sync(kAll, my_minimum, from);
        inverse_scales[i] = __shfl_sync(kAll, my_inverse_scale, from);
      }
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        uint32_t code[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const float value = kKeys ? tile.at(j, 4 * h + i) : tile.at(i, 4 * h + j);
          float steps = (value - minima[i]) * inverse_scales[i];
          if (kClamp) steps = fminf(fmaxf(steps, 0.0F), top);
          // Truncates: a float's last bit is worth 1 here.
          code[i] = __float_as_uint(__fadd_rz(steps + 0.5F, 8388608.0F));
        }
        codes[kKeys ? 2 * j + h : 4 * h + j] =
            __byte_perm(__byte_perm(code[0], code[1], 0x0040), __byte_perm(code[2], code[3], 0x0040), 0x5410);
      }
    }
  }

  // For fields of words see formats/packed_plane.h.

  __device__ void write_keys(CodeType kind, const uint32_t (&codes)[8]) const {
    if (kind == CodeType::integer(8)) {
#pragma unroll
      for (int32_t h = 0; h < 2; ++h) {
        store_keys(kind, 2 * eighth_ + h, 0, make_uint4(codes[h], codes[2 + h], codes[4 + h], codes[6 + h]));
      }
      return;
    }
    uint32_t words[4];
    if (kind == CodeType::integer(4)) {
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) words[j] = codes[2 * j] | codes[2 * j + 1] << 4U;
      store_keys(kind, eighth_, 0, make_uint4(words[0], words[1], words[2], words[3]));
      return;
    }
    const uint32_t shift = 4 * (lane_ % 2);
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      words[j] = ((codes[2 * j] & 0x03030303U) | (codes[2 * j + 1] & 0x03030303U) << 2U) << shift;
    }
    fold<2>(words, 1, Or());
    store_keys(kind, eighth_ / 2, 2 * (lane_ % 2), make_uint2(words[0], words[1]));
    if (kind == CodeType::integer(3)) write_high_keys(codes);
  }

  __device__ void write_high_keys(const uint32_t (&codes)[8]) const {
    uint32_t words[4];
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      words[j] = ((codes[2 * j] >> 2U & 0x01010101U) | (codes[2 * j + 1] >> 1U & 0x02020202U)) << (2 * (lane_ % 4));
    }
    fold<2>(words, 1, Or());
    fold<1>(words, 2, Or());
    store_keys(CodeType::integer(3), head_dim_ / 16 + tile_, 2 * (lane_ % 2) + lane_ / 2 % 2, words[0]);
  }

  __device__ void write_values(CodeType kind, uint32_t (&codes)[8]) const {
    if (kind == CodeType::integer(8)) {
      store_values(kind, four_, 0, make_uint4(codes[0], codes[1], codes[2], codes[3]));
      store_values(kind, four_, 4, make_uint4(codes[4], codes[5], codes[6], codes[7]));
      return;
    }
    const uint32_t four = lane_ / 4;
    if (kind == CodeType::integer(4)) {
#pragma unroll
      for (uint32_t& each : codes) each <<= 4 * (four % 2);
      fold<4>(codes, 4, Or());
      store_values(kind, four_ / 2, 4 * (four % 2), make_uint4(codes[0], codes[1], codes[2], codes[3]));
      return;
    }
    uint32_t words[8];
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) words[i] = (codes[i] & 0x03030303U) << (2 * (four % 4));
    fold<4>(words, 4, Or());
    fold<2>(words, 8, Or());
    store_values(kind, four_ / 4, 4 * (four % 2) + four / 2 % 2 * 2, make_uint2(words[0], words[1]));
    if (kind == CodeType::integer(3)) write_high_values(codes);
  }

  __device__ void write_high_values(uint32_t (&codes)[8]) const {
    const uint32_t four = lane_ / 4;
#pragma unroll
    for (uint32_t& each : codes) each = (each >> 2U & 0x01010101U) << four;
    fold<4>(codes, 4, Or());
    fold<2>(codes, 8, Or());
    fold<1>(codes, 16, Or());
    store_values(CodeType::integer(3), 2, 4 * (four % 2) + four / 2 % 2 * 2 + four / 4, codes[0]);
  }

  /// Stores to a row of key words, `offset` words after the first of the lane's four slots.
  template <typename Words>
  __device__ void store_keys(CodeType kind, int32_t row, uint32_t offset, const Words& words) const {
    store(key_chunk(kind, row * (kSlots / 4) + four_), offset, words);
  }
  /// Stores to a row of value words, `offset` words after the lane's first channel.
  template <typename Words>
  __device__ void store_values(CodeType kind, int32_t row, uint32_t offset, const Words& words) const {
    const int32_t chunk = row * (head_dim_ / 4) + 2 * eighth_ + static_cast<int32_t>(offset / 4);
    store(chunk ^ value_swizzle(kind, head_dim_, row), offset % 4, words);
  }
  template <typename Words>
  __device__ void store(int32_t chunk, uint32_t offset, const Words& words) const {
    *reinterpret_cast<Words*>(target_ + 16 * chunk + 4 * offset) = words;
  }

  int32_t* status_;
  const int32_t head_dim_;
  const uint32_t lane_;
  const int32_t eighth_;
  const int32_t four_;
  const int32_t tile_;
  uint8_t* target_;
};

}  // namespace kvq::cuda
