// Gain–shape encoding of a page's side from floats in shared memory. Arithmetic follows the host's encoder operation by
// operation (formats/gain_shape).
#pragma once

#include "formats/gain_shape/encode.h"
#include "formats/gain_shape/gains.h"
#include "kernels/append/trellis_path.cuh"

#include <cuda_fp16.h>

namespace kvq::cuda {

/// Most steps that are tried for a slot.
inline constexpr int32_t kMostFactors = 4;

/// Shared memory for encoding sides with gains, beside their floats.
struct GainLayout {
  int32_t head_dim;
  int32_t search_lanes;  // tokens whose paths are searched at once; 0: no trellis codes

  __host__ __device__ static constexpr int32_t blocks(int32_t head_dim) { return (head_dim + 31) / 32; }
  /// Two sums of a block of channels for each step that a slot may have. Scalar codes beside trellis codes have the
  /// memory of paths for them.
  __host__ __device__ int32_t sum_words() const {
    return (search_lanes > 0 ? 1 : 2 * kMostFactors) * blocks(head_dim) * kSlots;
  }
  /// Words for norms, products, gains or steps of slots, and a few more.
  __host__ __device__ int32_t slot_words() const { return 4 * kSlots; }
  __host__ __device__ int32_t cost_words() const { return search_lanes > 0 ? 4 * kCostEntries : 0; }
  __host__ __device__ int32_t decision_words() const { return 2 * 32 * blocks(head_dim) * search_lanes; }
  /// Words for two bytes per code; they replace the side in FP16.
  __host__ __device__ static constexpr int32_t code_words(int32_t head_dim) {
    return blocks(head_dim) * 32 * kSlots / 2;
  }
  __host__ __device__ int32_t words() const { return cost_words() + decision_words() + sum_words() + slot_words(); }
};

/// Zeros the bytes of gains, their metadata and padding; the keys' threads do it if both sides have gains. A barrier
/// must follow.
__device__ inline void clear_rest(const PagePlaces& page, bool keys, bool both, uint8_t* target, int32_t thread,
                                  int32_t threads) {
  if (!keys && both) return;
  const int32_t begin = keys ? page.keys.gains : page.values.gains;
  const int32_t end = both ? page.bytes : (keys ? page.keys : page.values).bytes;
  for (int32_t i = begin + 4 * thread; i < end; i += 4 * threads) *reinterpret_cast<uint32_t*>(target + i) = 0;
}

template <size_t... kI>
__device__ __forceinline__ int32_t count_thresholds(float mantissa, std::index_sequence<kI...> /*all*/) {
  int32_t count = 0;
  (
      [&] {
        constexpr float kEach = gain_shape::kGainThresholds[kI];
        count += mantissa >= kEach ? 1 : 0;
      }(),
      ...);
  return count;
}

/// Equals gain_shape::gain_code.
__device__ inline uint32_t gain_code(float gain, float largest) {
  const uint32_t bits = __float_as_uint(gain / largest);
  const int32_t exponent = static_cast<int32_t>(bits >> 23U) - 127;
  const float mantissa = __uint_as_float((bits & 0x7FFFFFU) | 0x3F800000U);
  const int32_t step = count_thresholds(mantissa, std::make_index_sequence<gain_shape::kGainSteps>());
  const int32_t code = gain_shape::kTopGain + gain_shape::kGainSteps * exponent + step;
  return static_cast<uint32_t>(min(max(code, 0), gain_shape::kTopGain));
}

/// Equals gain_shape::step_factors.
__device__ constexpr int32_t factor_count(int32_t bits) { return bits == 4 ? kMostFactors : (bits == 3 ? 3 : 1); }
__device__ inline float step_factor(int32_t bits, int32_t i) {
  constexpr float k30 = gain_shape::kFactors3[0], k31 = gain_shape::kFactors3[1], k32 = gain_shape::kFactors3[2];
  constexpr float k40 = gain_shape::kFactors4[0], k41 = gain_shape::kFactors4[1], k42 = gain_shape::kFactors4[2],
                  k43 = gain_shape::kFactors4[3];
  if (bits == 3) return i == 0 ? k30 : (i == 1 ? k31 : k32);
  if (bits == 4) return i == 0 ? k40 : (i == 1 ? k41 : (i == 2 ? k42 : k43));
  return 1.0F;
}

__device__ inline uint32_t scalar_code(int32_t bits, float steps) {
  const auto top = static_cast<float>((1 << bits) - 1);
  return static_cast<uint32_t>(fminf(fmaxf(steps + gain_shape::middle(bits), 0.0F), top) + 0.5F);
}

/// Rows are [slots][head_dim + 1] floats; the first `used` hold tokens.
template <bool kKeys, bool kTrellis = true>
class GainWriter {
 public:
  __device__ GainWriter(CodeType kind, const PagePlaces& page, const GainLayout& layout, int32_t used, float* rows,
                        uint16_t* codes, uint32_t* memory, uint8_t* target)
      : kind_(kind),
        bits_(kind.bits),
        page_(page),
        dim_(layout.head_dim),
        used_(used),
        search_lanes_(layout.search_lanes),
        thread_(static_cast<int32_t>(threadIdx.x)),
        threads_(static_cast<int32_t>(blockDim.x)),
        rows_(rows),
        codes_(codes),
        costs_(reinterpret_cast<uint4*>(memory)),
        decisions_(reinterpret_cast<uint2*>(memory + layout.cost_words())),
        sums_(reinterpret_cast<float*>(memory + layout.cost_words() + layout.decision_words())),
        norms_(sums_ + layout.sum_words()),
        steps_(norms_ + kSlots),
        products_(steps_ + kSlots),
        rest_(products_ + kSlots),
        target_(target) {}

  /// Ends with a barrier, after which the rest of the page may be written.
  __device__ void run(FormatCode format) {
    clear_rest(page_, kKeys, format.both_have_gains(), target_, thread_, threads_);
    if (kKeys && format.page_mean()) take_mean();
    sum(norms_, [this](int32_t slot, int32_t i) { return row(slot)[i] * row(slot)[i]; });
    if (thread_ < kSlots) steps_[thread_] = rms(thread_);
    __syncthreads();
    if (kTrellis && kind_.is_trellis()) {
      find_paths();
      sum(products_, [this](int32_t slot, int32_t i) {
        return row(slot)[i] * static_cast<float>(static_cast<int8_t>(codes_[i * kSlots + slot] >> 8U));
      });
    } else {
      choose_steps();
    }
    write_gains();
    write_planes();
    __syncthreads();
  }

 private:
  __device__ const float* row(int32_t slot) const { return rows_ + slot * (dim_ + 1); }
  __device__ float rms(int32_t slot) const { return sqrtf(norms_[slot] / static_cast<float>(dim_)); }
  __device__ bool is_coded(int32_t slot) const { return slot < used_ && norms_[slot] != 0.0F; }

  /// Sums a term over the channels of every slot, block after block as the host adds them.
  template <typename Term>
  __device__ void sum(float* totals, const Term& term) {
    const int32_t blocks = GainLayout::blocks(dim_);
    for (int32_t i = thread_; i < blocks * kSlots; i += threads_) {
      const int32_t slot = i % kSlots;
      const int32_t begin = i / kSlots * gain_shape::kSumBlock;
      const int32_t end = min(begin + gain_shape::kSumBlock, dim_);
      float block = 0.0F;
#pragma unroll 4
      for (int32_t channel = begin; channel < end; ++channel) block += term(slot, channel);
      sums_[i] = block;
    }
    __syncthreads();
    if (thread_ < kSlots) totals[thread_] = total_of(sums_);
    __syncthreads();
  }
  /// The sum of a slot's blocks, which is this thread's.
  __device__ float total_of(const float* blocks) const {
    float total = 0.0F;
    for (int32_t block = 0; block < GainLayout::blocks(dim_); ++block) total += blocks[block * kSlots + thread_];
    return total;
  }

  /// Writes the mean of the used rows and subtracts it as it decodes.
  __device__ void take_mean() {
    auto* largest_bits = reinterpret_cast<uint32_t*>(rest_);
    if (thread_ == 0) *largest_bits = 0;
    __syncthreads();
    uint32_t largest = 0;
    for (int32_t i = thread_; i < dim_; i += threads_) largest = max(largest, __float_as_uint(fabsf(mean_of(i))));
    largest = __reduce_max_sync(0xFFFFFFFFU, largest);
    if (thread_ % 32 == 0) atomicMax(largest_bits, largest);
    __syncthreads();
    const __half half = __float2half_rn(__uint_as_float(*largest_bits) / 127.0F);
    const float scale = __half2float(half);
    const float inverse = scale > 0.0F ? 1.0F / scale : 0.0F;
    if (thread_ == 0) reinterpret_cast<__half*>(target_ + page_.keys.numbers)[kMeanScale] = half;
    for (int32_t i = thread_; i < dim_; i += threads_) {
      const float code = rintf(fminf(fmaxf(mean_of(i) * inverse, -127.0F), 127.0F));
      target_[page_.keys.mean + i] = static_cast<uint8_t>(static_cast<int32_t>(code)) ^ kMeanFlip;
#pragma unroll 4
      for (int32_t slot = 0; slot < used_; ++slot) rows_[slot * (dim_ + 1) + i] -= code * scale;
    }
    __syncthreads();
  }
  __device__ float mean_of(int32_t channel) const {
    float mean = 0.0F;
#pragma unroll 8
    for (int32_t slot = 0; slot < used_; ++slot) mean += row(slot)[channel];
    return mean / static_cast<float>(used_);
  }

  /// Chooses each slot's inverse step (steps_) and computes the product of its levels with the row. All steps are tried
  /// at once, since a block's threads wait for memory more than they compute.
  __device__ void choose_steps() {
    const int32_t factors = factor_count(bits_);
    const int32_t of_factor = GainLayout::blocks(dim_) * kSlots;
    float* products = search_lanes_ > 0 ? reinterpret_cast<float*>(costs_) : sums_;
    float* norms = products + kMostFactors * of_factor;
    for (int32_t i = thread_; i < factors * of_factor; i += threads_) {
      const int32_t slot = i % kSlots;
      const int32_t begin = i % of_factor / kSlots * gain_shape::kSumBlock;
      const int32_t end = min(begin + gain_shape::kSumBlock, dim_);
      const float inverse = inverse_step(i / of_factor, steps_[slot]);
      float product = 0.0F;
      float norm = 0.0F;
#pragma unroll 4
      for (int32_t channel = begin; channel < end; ++channel) {
        const float x = row(slot)[channel];
        const float level = level_of(x, inverse);
        product += x * level;
        norm += level * level;
      }
      products[i] = product;
      norms[i] = norm;
    }
    __syncthreads();
    if (thread_ < kSlots) {
      float best = 0.0F;
      float best_product = 0.0F;
      float best_norm = 0.0F;
      const float of_row = steps_[thread_];
      for (int32_t f = 0; f < factors; ++f) {
        const float product = total_of(products + f * of_factor);
        const float norm = total_of(norms + f * of_factor);
        if (best != 0.0F && product * product * best_norm <= best_product * best_product * norm) continue;
        best = inverse_step(f, of_row);
        best_product = product;
        best_norm = norm;
      }
      steps_[thread_] = best;
      products_[thread_] = best_product;
    }
    __syncthreads();
  }
  __device__ float inverse_step(int32_t factor, float of_row) const {
    return 1.0F / (gain_shape::step_of(bits_) * step_factor(bits_, factor) * of_row);
  }
  __device__ float level_of(float x, float inverse) const {
    return static_cast<float>(scalar_code(bits_, x * inverse)) - gain_shape::middle(bits_);
  }

  /// Fills codes_, [channels][slots], with trellis codes and their levels in the byte above.
  __device__ void find_paths() {
    const ChainPlaces chain(kKeys, bits_, dim_);
    auto* levels = reinterpret_cast<int32_t*>(sums_);
    fill_costs(bits_, thread_, threads_, levels, costs_);
    __syncthreads();
    for (int32_t first = 0; first < kSlots; first += search_lanes_) {
      if (thread_ >= search_lanes_) continue;
      const int32_t slot = first + thread_;
      const float factor = gain_shape::kLevelUnit / steps_[slot];
      find_path(
          chain.length(), costs_, decisions_ + thread_, search_lanes_,
          [&](int32_t step) { return entry(slot, chain.channel(step), factor); },
          [&](int32_t step, uint32_t window) {
            codes_[chain.channel(step) * kSlots + slot] = static_cast<uint16_t>(window);
          });
    }
    __syncthreads();
    // All threads derive codes and levels from the register at each value.
    for (int32_t i = thread_; i < chain.length() * kSlots; i += threads_) {
      const int32_t slot = i % kSlots;
      const int32_t channel = i / kSlots;
      const int32_t target = entry(slot, channel, gain_shape::kLevelUnit / steps_[slot]) - gain_shape::kFarthestTarget;
      const uint32_t window = codes_[i];
      const int32_t subset = gain_shape::parities(window);
      int32_t other = 0;
      for (int32_t each = 1; channel < dim_ && each < 1 << (bits_ - 1); ++each) {
        const auto cost = [&](int32_t of) {
          return gain_shape::distance(target, levels[gain_shape::kSubsets * of + subset]);
        };
        if (cost(each) < cost(other)) other = each;
      }
      const uint32_t code = (window & 1U) << static_cast<uint32_t>(bits_ - 1) | static_cast<uint32_t>(other);
      const auto level = static_cast<uint32_t>(levels[gain_shape::kSubsets * other + subset]);
      codes_[i] = static_cast<uint16_t>(is_coded(slot) ? code | level << 8U : 0U);
    }
    __syncthreads();
  }

  /// Entry of a value in the table of costs.
  __device__ int32_t entry(int32_t slot, int32_t channel, float factor) const {
    if (channel >= dim_) return kNoTargetEntry;
    constexpr auto kFarthest = static_cast<float>(gain_shape::kFarthestTarget);
    const float units = is_coded(slot) ? row(slot)[channel] * factor : 0.0F;
    return static_cast<int32_t>(rintf(fminf(fmaxf(units, -kFarthest), kFarthest))) + gain_shape::kFarthestTarget;
  }

  __device__ void write_gains() const {
    if (thread_ >= kSlots) return;
    const float product = products_[thread_];
    const float gain = is_coded(thread_) && product > 0.0F ? norms_[thread_] / product : 0.0F;
    const float highest = __uint_as_float(__reduce_max_sync(0xFFFFFFFFU, __float_as_uint(gain)));
    const __half largest = __float2half_rn(fminf(highest, 65504.0F));
    const float divisor = __half2float(largest);
    const uint32_t code = divisor > 0.0F ? gain_code(gain, divisor) : 0;
    target_[(kKeys ? page_.keys.gains : page_.values.gains) + slot_place(thread_)] = static_cast<uint8_t>(code);
    if (thread_ == 0) {
      auto* halves = reinterpret_cast<__half*>(target_ + (kKeys ? page_.keys.numbers : page_.values.numbers));
      halves[kKeys ? kKeyLargest : kValueLargest] = largest;
    }
  }

  __device__ void write_planes() const {
    if (bits_ != 3) return write_plane(0, bits_, 0);
    const int32_t low_rows = ((kKeys ? dim_ : kSlots) + 15) / 16;
    write_plane(0, 2, 0);
    write_plane(low_rows * lanes(), 1, 2);
  }

  __device__ int32_t lanes() const { return kKeys ? kSlots : value_lanes(dim_); }

  __device__ uint32_t code_of(int32_t slot, int32_t channel) const {
    if (kTrellis && kind_.is_trellis()) return codes_[channel * kSlots + slot] & 0xFFU;
    return channel < dim_ && is_coded(slot) ? scalar_code(bits_, row(slot)[channel] * steps_[slot]) : 0U;
  }

  /// Writes bits [first_bit, first_bit + field_bits) of codes as a plane of words that begins at `first_word`.
  __device__ void write_plane(int32_t first_word, int32_t field_bits, int32_t first_bit) const {
    const int32_t per_word = 32 / field_bits;
    const int32_t reduction = kKeys ? dim_ : kSlots;
    const int32_t n = (reduction + per_word - 1) / per_word * lanes();
    // Values past the head size keep only their highest bit, where a trellis continues.
    const bool whole = bits_ != 3 || first_bit != 0;
    auto* words = reinterpret_cast<uint32_t*>(target_);
    for (int32_t i = thread_; i < n; i += threads_) {
      const int32_t lane = i % lanes();
      const int32_t first = i / lanes() * per_word;
      uint32_t word = 0;
#pragma unroll 4
      for (int32_t e = 0; e < per_word; ++e) {
        const int32_t slot = kKeys ? lane : first + e;
        const int32_t channel = kKeys ? first + e : lane;
        if (!whole && channel >= dim_) break;
        const uint32_t field = code_of(slot, channel) >> first_bit & ((1U << field_bits) - 1U);
        word |= field << (8 * (e % 4) + field_bits * (e / 4));
      }
      const int32_t at = first_word + i;
      const int32_t chunk = kKeys ? key_chunk(kind_, at / 4) : value_chunk(kind_, dim_, at / 4);
      words[4 * chunk + at % 4] = word;
    }
  }

  CodeType kind_;
  int32_t bits_;
  const PagePlaces& page_;
  int32_t dim_;
  int32_t used_;
  int32_t search_lanes_;
  int32_t thread_;
  int32_t threads_;
  float* rows_;
  uint16_t* codes_;
  uint4* costs_;
  uint2* decisions_;
  float* sums_;
  float* norms_;
  float* steps_;
  float* products_;
  float* rest_;
  uint8_t* target_;
};

}  // namespace kvq::cuda
