// Residuals of vectors from the nearest centres of their head, for one page with any positions. Arithmetic follows the
// host's operation by operation (formats/gain_shape/centred.cpp).
#pragma once

#include "kernels/append/append.h"
#include "kernels/device/rope.cuh"

namespace kvq::cuda {

inline constexpr float kTopByte = 127.0F;

/// Composes two rotations.
__device__ inline float2 multiply_rotations(float2 a, float2 b) {
  return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

/// Rotation of a position as in the host's tables (core/rotation_table.h): the product of its digits' rotations.
__device__ inline float2 position_rotation(int32_t position, double frequency) {
  constexpr int32_t kDigits = 32;
  float2 rotation = cos_sin(static_cast<double>(position % kDigits) * frequency);
  double unit = kDigits;
  for (position /= kDigits; position > 0; position /= kDigits, unit *= kDigits) {
    const int32_t digit = position % kDigits;
    if (digit != 0) rotation = multiply_rotations(rotation, cos_sin(static_cast<double>(digit) * unit * frequency));
  }
  return rotation;
}

/// Position of a slot of a page with gaps.
__device__ inline int32_t slot_position(const AppendArguments& a, const DeviceWrite& w, int32_t slot) {
  if (w.token_position < 0) return a.positions[~w.token_position - w.kept + slot];
  if (slot >= w.kept) return w.token_position + slot - w.kept;
  const SequenceView& view = a.target_of(w).view;
  return view.positions[(static_cast<int64_t>(w.head) * view.capacity + w.index) * kSlots + slot];
}

/// Best score and its centre; ties go to the first centre.
struct BestCentre {
  float score = -INFINITY;
  int32_t index = 0;

  /// Considers a centre with an index above all considered before.
  __device__ void look_at(float other, int32_t centre) {
    if (other <= score) return;
    score = other;
    index = centre;
  }
  __device__ void join(const BestCentre& other) {
    if (other.score > score || (other.score == score && other.index < index)) *this = other;
  }
  /// Joins with the lane at `bit` distance.
  __device__ void join_across(int32_t bit) {
    join({__shfl_xor_sync(0xFFFFFFFFU, score, bit), __shfl_xor_sync(0xFFFFFFFFU, index, bit)});
  }
};

/// Tables that a search takes from a layer, for either side.
struct SideCentres {
  const float* floats;  // [count][head_dim]
  int32_t count;
  const uint32_t* rounded;  // [quads][padded]
  const float* mean;
  const float* biases;
  float scale;
  int32_t padded;

  __device__ SideCentres(const AppendArguments& a, bool keys, int32_t head, bool own_positions) {
    const CentreTables& tables = a.centres;
    const CentreSearchTables& search = keys ? tables.key_search : tables.value_search;
    count = keys ? tables.key_centres : tables.value_centres;
    padded = search.padded;
    floats = (keys ? tables.keys_float : tables.values_float) + static_cast<int64_t>(head) * count * a.head.keys;
    rounded = search.rounded + static_cast<int64_t>(head) * ((a.head.keys + 3) / 4) * padded;
    mean = search.means + head * a.head.keys;
    biases = (own_positions ? search.own_biases : search.biases) + head * padded;
    scale = count > 0 ? search.scales[head] : 0.0F;  // search.scales is null without centres
  }
};

/// Subtracts the nearest centres from a side's tokens, four tokens per warp.
template <bool kKeys>
class CentreTaker {
 public:
  /// Shared memory: rotation of the page's first position, tokens as bytes, indices of centres.
  __host__ __device__ static constexpr int32_t words(int32_t head_dim) {
    return kMaxHeadDim + kSlots * quads(head_dim) + kSlots / 4;
  }

  /// `rows`: [slots][head_dim + 1] floats.
  __device__ CentreTaker(const AppendArguments& arguments, const DeviceWrite& write, float* rows, uint32_t* memory)
      : a_(arguments),
        w_(write),
        own_(kKeys && write.has_positions != 0),
        centres_(arguments, kKeys, write.head, own_),
        pairs_(kKeys ? arguments.rope.rotary_dim / 2 : 0),
        lane_(static_cast<int32_t>(threadIdx.x) % 32),
        rows_(rows),
        first_(reinterpret_cast<float2*>(memory)),
        words_(memory + kMaxHeadDim),
        indices_(reinterpret_cast<uint8_t*>(words_ + kSlots * quads(arguments.head.keys))) {}

  /// Subtracts centres from the first `used` rows; ends with a barrier.
  __device__ void take(int32_t used) {
    const auto threads = static_cast<int32_t>(blockDim.x);
    const auto thread = static_cast<int32_t>(threadIdx.x);
    for (int32_t i = thread; !own_ && i < pairs_; i += threads)
      first_[i] = position_rotation(w_.first_position, theta(i));
    if (thread < kSlots) indices_[thread] = 0;
    __syncthreads();
    for (int32_t first = thread / 32 * kTogether; first < used; first += threads / 32 * kTogether) {
      const int32_t n = min(kTogether, used - first);
      if (centres_.count > 1) find(first, n);
      __syncwarp();
      for (int32_t slot = first; slot < first + n; ++slot) subtract(slot);
    }
    __syncthreads();
  }

  /// Writes centre indices and, for keys, how they are rotated. `side`: of the page.
  __device__ void write(const PagePlaces& page, uint8_t* side) const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (centres_.count > 1 && thread < kSlots) {
      side[(kKeys ? page.keys.centres : page.values.centres) + slot_place(thread)] = indices_[thread];
    }
    if (kKeys && thread == 0) reinterpret_cast<uint16_t*>(side + page.keys.numbers)[kKeySlotRotation] = own_ ? 1 : 0;
  }

 private:
  static constexpr int32_t kTogether = 4;

  __host__ __device__ static constexpr int32_t quads(int32_t head_dim) { return (head_dim + 3) / 4; }

  __device__ double theta(int32_t pair) const { return static_cast<double>(a_.rope.inv_freq[pair]); }
  __device__ float* row(int32_t slot) const { return rows_ + slot * (a_.head.keys + 1); }

  __device__ float2 rotation(int32_t slot, int32_t pair) const {
    if (own_) return position_rotation(slot_position(a_, w_, slot), theta(pair));
    const float* within = a_.centres.page_rotations + slot * 2 * pairs_;
    return multiply_rotations(first_[pair], make_float2(within[pair], within[pairs_ + pair]));
  }

  /// Calls `use` with each of the lane's channels of a slot and its value, rotation undone and mean subtracted.
  template <typename Use>
  __device__ void for_each_number(int32_t slot, const Use& use) const {
    const float* x = row(slot);
    for (int32_t pair = lane_; pair < pairs_; pair += 32) {
      const int32_t first = a_.rope.first_channel(pair);
      const int32_t second = a_.rope.partner_of(first);
      const float2 by = rotation(slot, pair);
      use(first, x[first] * by.x + x[second] * by.y - centres_.mean[first]);
      use(second, x[second] * by.x - x[first] * by.y - centres_.mean[second]);
    }
    for (int32_t channel = 2 * pairs_ + lane_; channel < a_.head.keys; channel += 32) {
      use(channel, x[channel] - centres_.mean[channel]);
    }
  }

  /// Finds the nearest centres of slots [first, first + n).
  __device__ void find(int32_t first, int32_t n) {
    float units[kTogether] = {};
#pragma unroll 1
    for (int32_t i = 0; i < n; ++i) {
      float largest = 0.0F;
      for_each_number(first + i, [&](int32_t, float x) { largest = fmaxf(largest, fabsf(x)); });
      largest = __uint_as_float(__reduce_max_sync(0xFFFFFFFFU, __float_as_uint(largest)));
      const float inverse = largest > 0.0F ? kTopByte / largest : 0.0F;
      auto* bytes = reinterpret_cast<int8_t*>(words_ + (first + i) * quads(a_.head.keys));
      for_each_number(first + i, [&](int32_t channel, float x) { bytes[channel] = round_to_byte(x * inverse); });
      const float unit = largest / kTopByte * centres_.scale;
#pragma unroll
      for (int32_t j = 0; j < kTogether; ++j) units[j] = i == j ? unit : units[j];
    }
    __syncwarp();
    BestCentre best[kTogether];
    const uint32_t* words = words_ + first * quads(a_.head.keys);
    for (int32_t centre = lane_; centre < centres_.padded; centre += 32) {
      int32_t products[kTogether] = {};
      for (int32_t quad = 0; quad < quads(a_.head.keys); ++quad) {
        const auto of_centre = static_cast<int32_t>(centres_.rounded[quad * centres_.padded + centre]);
#pragma unroll
        for (int32_t i = 0; i < kTogether; ++i) {
          if (i >= n) break;
          const auto of_slot = static_cast<int32_t>(words[i * quads(a_.head.keys) + quad]);
          products[i] = __dp4a(of_slot, of_centre, products[i]);
        }
      }
      const float bias = centres_.biases[centre];
#pragma unroll
      for (int32_t i = 0; i < kTogether; ++i) {
        best[i].look_at(static_cast<float>(products[i]) * units[i] - bias, centre);
      }
    }
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      for (int32_t bit = 1; bit < 32; bit *= 2) best[i].join_across(bit);
      if (i < n && lane_ == 0) indices_[first + i] = static_cast<uint8_t>(best[i].index);
    }
  }

  /// Subtracts the slot's centre after rotating it to the key's position.
  __device__ void subtract(int32_t slot) const {
    const float* centre = centres_.floats + static_cast<int32_t>(indices_[slot]) * a_.head.keys;
    float* x = row(slot);
    for (int32_t pair = lane_; pair < pairs_; pair += 32) {
      const int32_t first = a_.rope.first_channel(pair);
      const int32_t second = a_.rope.partner_of(first);
      const float2 by = rotation(slot, pair);
      const float a = centre[first];
      const float b = centre[second];
      x[first] -= a * by.x - b * by.y;
      x[second] -= a * by.y + b * by.x;
    }
    for (int32_t channel = 2 * pairs_ + lane_; channel < a_.head.keys; channel += 32) x[channel] -= centre[channel];
  }

  __device__ static int8_t round_to_byte(float x) { return static_cast<int8_t>(__float2int_rn(x)); }

  const AppendArguments& a_;
  const DeviceWrite& w_;
  const bool own_;  // keys are rotated by per-slot positions
  const SideCentres centres_;
  const int32_t pairs_;
  const int32_t lane_;
  float* rows_;
  float2* first_;     // [pairs]
  uint32_t* words_;   // [slots][quads]
  uint8_t* indices_;  // [slots]
};

}  // namespace kvq::cuda
