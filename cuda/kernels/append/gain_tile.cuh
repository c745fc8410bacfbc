// Scalar gain–shape codes of whole pages: each warp has 32 channels of all 32 slots, each lane one slot. Sums over all
// channels of a slot go through shared memory in the host's order.
#pragma once

#include "kernels/append/tile.cuh"

namespace kvq::cuda {

/// Side of floats in shared memory, written by eights of channels and read by one lane per slot or per channel.
class SlotPlane {
 public:
  __host__ __device__ static constexpr int32_t bytes(int32_t head_dim) { return kSlots * head_dim * 4; }

  __device__ SlotPlane(void* memory, int32_t head_dim) : chunks_(static_cast<float4*>(memory)), head_dim_(head_dim) {}

  __device__ void put(int32_t slot, int32_t eighth, const float (&x)[8]) const {
    chunks_[place(slot, 2 * eighth)] = make_float4(x[0], x[1], x[2], x[3]);
    chunks_[place(slot, 2 * eighth + 1)] = make_float4(x[4], x[5], x[6], x[7]);
  }
  /// Channels [4·four, 4·four + 4).
  __device__ float4 get(int32_t slot, int32_t four) const { return chunks_[place(slot, four)]; }
  __device__ float at(int32_t slot, int32_t channel) const {
    return reinterpret_cast<const float*>(chunks_ + place(slot, channel / 4))[channel % 4];
  }

 private:
  /// The swizzle keeps eight slots, and eight groups of channels, free of bank conflicts.
  __device__ int32_t place(int32_t slot, int32_t four) const {
    return slot * (head_dim_ / 4) + (four ^ (four >> 3 & 1) ^ (slot & 7));
  }

  float4* chunks_;
  int32_t head_dim_;
};

/// Encodes a warp's tile of a side.
class GainTileWriter {
 public:
  /// Shared memory: the largest magnitude of the mean per tile.
  static constexpr int32_t kBytes = kMaxHeadDim / kTileChannels * static_cast<int32_t>(sizeof(float));

  /// `memory`: the planes of both sides, reused after start(); `page`: start of the keys.
  __device__ GainTileWriter(FormatCode format, bool keys, int32_t tile, int32_t head_dim, float* maxima,
                            uint8_t* memory, uint8_t* page)
      : place_(page_places(format, head_dim)),
        keys_(keys),
        kind_(keys ? format.keys() : format.values()),
        bits_(kind_.bits),
        both_(format.both_have_gains()),
        with_mean_(keys && format.page_mean()),
        tile_(tile),
        head_dim_(head_dim),
        lane_(static_cast<int32_t>(fresh_lane())),
        maxima_(maxima),
        sums_(reinterpret_cast<float*>(memory)),
        target_(keys ? page : page + place_.values_at) {}

  /// Loads the tile from its plane. A block barrier must follow.
  __device__ void start(const SlotPlane& plane, int32_t* status) {
    if (tile_ == 0) clear_rest(place_, keys_, both_, target_, lane_, 32);
    float largest = 0.0F;
#pragma unroll
    for (int32_t i = 0; i < kTileChannels / 4; ++i) {
      const float4 four = plane.get(lane_, kTileChannels / 4 * tile_ + i);
      x_[4 * i] = four.x, x_[4 * i + 1] = four.y, x_[4 * i + 2] = four.z, x_[4 * i + 3] = four.w;
      largest = fmaxf(fmaxf(largest, fmaxf(fabsf(four.x), fabsf(four.y))), fmaxf(fabsf(four.z), fabsf(four.w)));
    }
    if (largest > kMaxHalf) *status = 1;
    if (!with_mean_) return;
    for (int32_t slot = 0; slot < kSlots; ++slot) mean_ += plane.at(slot, kTileChannels * tile_ + lane_);
    mean_ /= static_cast<float>(kSlots);
    const uint32_t highest = __reduce_max_sync(kAll, __float_as_uint(fabsf(mean_)));
    if (lane_ == 0) maxima_[tile_] = __uint_as_float(highest);
  }

  /// Computes the tile's sums of squares. A barrier must follow.
  __device__ void add_squares() {
    if (with_mean_) take_mean();
    float sum = 0.0F;
#pragma unroll
    for (int32_t i = 0; i < kTileChannels; ++i) sum += x_[i] * x_[i];
    part(0) = sum;
  }

  /// Computes the tile's sums of level products for every step. A barrier must follow.
  __device__ void add_levels() {
    norm_ = total(0);
    rms_ = sqrtf(norm_ / static_cast<float>(head_dim_));
    for (int32_t f = 0; f < factor_count(bits_); ++f) {
      const float inverse = inverse_step(f);
      float product = 0.0F;
      float norm = 0.0F;
#pragma unroll
      for (int32_t i = 0; i < kTileChannels; ++i) {
        const float level = __uint_as_float(code_bits_of(x_[i], inverse)) - 8388608.0F - gain_shape::middle(bits_);
        product += x_[i] * level;
        norm += level * level;
      }
      part(1 + 2 * f) = product;
      part(2 + 2 * f) = norm;
    }
  }

  /// Writes codes and gains. A barrier must follow before planes are reused.
  __device__ void write() {
    float inverse = 0.0F;
    float best_product = 0.0F;
    float best_norm = 0.0F;
    for (int32_t f = 0; f < factor_count(bits_); ++f) {
      const float product = total(1 + 2 * f);
      const float norm = total(2 + 2 * f);
      if (inverse != 0.0F && product * product * best_norm <= best_product * best_product * norm) continue;
      inverse = inverse_step(f);
      best_product = product;
      best_norm = norm;
    }
    if (tile_ == 0) write_gain(best_product);
    uint32_t codes[kTileChannels / 4];
#pragma unroll
    for (int32_t i = 0; i < kTileChannels / 4; ++i) {
      uint32_t code[4];
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) code[j] = code_bits_of(x_[4 * i + j], inverse);
      codes[i] = __byte_perm(__byte_perm(code[0], code[1], 0x0040), __byte_perm(code[2], code[3], 0x0040), 0x5410);
      if (norm_ == 0.0F) codes[i] = 0;
    }
    if (!keys_) transpose(codes);
    write_words(codes);
  }

 private:
  static constexpr int32_t kSums = 9;
  static constexpr int32_t kRowBytes = 48;  // row of a channel's codes during the transpose, free of bank conflicts

  __device__ int32_t tiles() const { return head_dim_ / kTileChannels; }
  __device__ float& part(int32_t which) const {
    return sums_[((2 * which + (keys_ ? 0 : 1)) * tiles() + tile_) * kSlots + lane_];
  }
  __device__ float total(int32_t which) const {
    const float* parts = &part(which) - tile_ * kSlots;
    float total = 0.0F;
    for (int32_t i = 0; i < tiles(); ++i) total += parts[i * kSlots];
    return total;
  }

  __device__ float inverse_step(int32_t f) const {
    return 1.0F / (gain_shape::step_of(bits_) * step_factor(bits_, f) * rms_);
  }
  /// Leaves the code in the low bits of a float above 2^23, where the spacing of floats is 1.
  __device__ uint32_t code_bits_of(float x, float inverse) const {
    const auto top = static_cast<float>((1 << bits_) - 1);
    const float steps = fminf(fmaxf(x * inverse + gain_shape::middle(bits_), 0.0F), top);
    return __float_as_uint(__fadd_rz(steps + 0.5F, 8388608.0F));
  }

  __device__ void take_mean() {
    float largest = 0.0F;
    for (int32_t i = 0; i < tiles(); ++i) largest = fmaxf(largest, maxima_[i]);
    const __half half = __float2half_rn(largest / 127.0F);
    const float scale = __half2float(half);
    const float inverse = scale > 0.0F ? 1.0F / scale : 0.0F;
    const float code = rintf(fminf(fmaxf(mean_ * inverse, -127.0F), 127.0F));
    target_[place_.keys.mean + kTileChannels * tile_ + lane_] =
        static_cast<uint8_t>(static_cast<int32_t>(code)) ^ kMeanFlip;
    if (tile_ == 0 && lane_ == 0) reinterpret_cast<__half*>(target_ + place_.keys.numbers)[kMeanScale] = half;
    const float mean = code * scale;
#pragma unroll
    for (int32_t i = 0; i < kTileChannels; ++i) x_[i] -= __shfl_sync(kAll, mean, i);
  }

  __device__ void write_gain(float product) const {
    const float gain = norm_ != 0.0F && product > 0.0F ? norm_ / product : 0.0F;
    const float highest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(gain)));
    const __half largest = __float2half_rn(fminf(highest, kMaxHalf));
    const float divisor = __half2float(largest);
    const uint32_t code = divisor > 0.0F ? gain_code(gain, divisor) : 0;
    target_[(keys_ ? place_.keys.gains : place_.values.gains) + slot_place(lane_)] = static_cast<uint8_t>(code);
    if (lane_ != 0) return;
    auto* halves = reinterpret_cast<__half*>(target_ + (keys_ ? place_.keys.numbers : place_.values.numbers));
    halves[keys_ ? kKeyLargest : kValueLargest] = largest;
  }

  /// Transposes codes from channels of a slot to slots of a channel.
  __device__ void transpose(uint32_t (&codes)[kTileChannels / 4]) const {
    uint8_t* rows =
        reinterpret_cast<uint8_t*>(sums_ + 2 * kSums * tiles() * kSlots) + tile_ * kTileChannels * kRowBytes;
#pragma unroll
    for (int32_t i = 0; i < kTileChannels; ++i) {
      rows[i * kRowBytes + lane_] = static_cast<uint8_t>(codes[i / 4] >> (8 * (i % 4)));
    }
    __syncwarp();
    const auto* mine = reinterpret_cast<const uint4*>(rows + lane_ * kRowBytes);
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const uint4 four = mine[i];
      codes[4 * i] = four.x, codes[4 * i + 1] = four.y, codes[4 * i + 2] = four.z, codes[4 * i + 3] = four.w;
    }
  }

  /// `codes`: 32 codes of a word's lane, four per word.
  __device__ void write_words(const uint32_t (&codes)[kTileChannels / 4]) const {
    if (bits_ == 4) {
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) put(0, 4, i, codes[2 * i] | codes[2 * i + 1] << 4U);
      return;
    }
    if (bits_ >= 2) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        uint32_t word = 0;
#pragma unroll
        for (int32_t j = 0; j < 4; ++j) word |= (codes[4 * i + j] & 0x03030303U) << (2 * j);
        put(0, 2, i, word);
      }
      if (bits_ == 2) return;
    }
    const uint32_t first_bit = static_cast<uint32_t>(bits_) - 1;
    uint32_t word = 0;
#pragma unroll
    for (int32_t j = 0; j < 8; ++j) word |= (codes[j] >> first_bit & 0x01010101U) << j;
    put(bits_ == 3 ? (keys_ ? head_dim_ : kSlots) / 16 : 0, 1, 0, word);
  }
  /// Stores word i of the tile in a plane that begins at `first_row` and has `words` per tile and lane.
  __device__ void put(int32_t first_row, int32_t words, int32_t i, uint32_t word) const {
    const int32_t row = first_row + (keys_ ? words * tile_ + i : i);
    const int32_t at = keys_ ? row * kSlots + lane_ : row * head_dim_ + kTileChannels * tile_ + lane_;
    const int32_t chunk = keys_ ? key_chunk(kind_, at / 4) : value_chunk(kind_, head_dim_, at / 4);
    reinterpret_cast<uint32_t*>(target_)[4 * chunk + at % 4] = word;
  }

  PagePlaces place_;
  bool keys_;
  CodeType kind_;
  int32_t bits_;
  bool both_;
  bool with_mean_;
  int32_t tile_;
  int32_t head_dim_;
  int32_t lane_;
  float* maxima_;
  float* sums_;
  uint8_t* target_;
  float x_[kTileChannels];
  float mean_ = 0.0F;
  float norm_ = 0.0F;
  float rms_ = 0.0F;
};

}  // namespace kvq::cuda
