// New tokens before encoding. A thread holds 16 channels of a token, in two runs of eight that RoPE pairs.
#pragma once

#include "kernels/append/tile.cuh"

namespace kvq::cuda {

/// cos and sin of all pairs for 32 slots in the order of the threads' reads: [slots][4][units]{two pairs}.
class SlotRotations {
 public:
  __host__ __device__ static constexpr int32_t bytes(int32_t head_dim) { return head_dim / 2 * kSlots * 8; }

  __device__ SlotRotations(const RopeArguments& rope, int32_t head_dim, void* memory)
      : rope_(rope), units_(head_dim / 16), table_(static_cast<float4*>(memory)) {}

  /// Address for a slot; each next slot is `slot_stride()` further.
  __device__ float2* place(int32_t slot, int32_t pair) const {
    const int32_t eighth = rope_.half() ? pair / 8 : pair / 4;
    const int32_t within = rope_.half() ? pair % 8 : eighth / units_ * 4 + pair % 4;
    const int32_t at = ((slot * 4 + within / 2) * units_ + eighth % units_) * 2 + within % 2;
    return reinterpret_cast<float2*>(table_) + at;
  }
  __device__ int32_t slot_stride() const { return 8 * units_; }
  __device__ void put(int32_t slot, int32_t pair, float2 rotation) const { *place(slot, pair) = rotation; }

  /// Rotates channels [8·eighths[i], 8·eighths[i] + 8) of a slot, or undoes it with `kBack`.
  template <bool kBack = false>
  __device__ void rotate(int32_t slot, int32_t unit, const int32_t (&eighths)[2], float (&x)[2][8]) const {
    float2 angles[8];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const float4 two = table_[(slot * 4 + i) * units_ + unit];
      angles[2 * i] = make_float2(two.x, two.y);
      angles[2 * i + 1] = make_float2(two.z, two.w);
    }
    if (rope_.half()) {
      if (16 * eighths[0] >= rope_.rotary_dim) return;
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) rotate_pair<kBack>(angles[i], x[0][i], x[1][i]);
    } else {
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) {
        if (8 * eighths[i / 4] >= rope_.rotary_dim) continue;
        rotate_pair<kBack>(angles[i], x[i / 4][i % 4 * 2], x[i / 4][i % 4 * 2 + 1]);
      }
    }
  }

 private:
  template <bool kBack>
  __device__ static void rotate_pair(const float2& angle, float& first, float& second) {
    const float x = kBack ? first * angle.x + second * angle.y : first * angle.x - second * angle.y;
    second = kBack ? second * angle.x - first * angle.y : first * angle.y + second * angle.x;
    first = x;
  }

  const RopeArguments& rope_;
  const int32_t units_;  // threads per token
  float4* table_;
};

/// Rotations of 32 positions, shared by the heads of the same tokens.
class Angles {
 public:
  __host__ __device__ static constexpr int32_t bytes(int32_t head_dim) {
    return SlotRotations::bytes(head_dim) + head_dim / 2 * static_cast<int32_t>(sizeof(double2) + sizeof(double));
  }

  __device__ Angles(const AppendArguments& arguments, int32_t head_dim, uint8_t* memory)
      : a_(arguments),
        steps_(reinterpret_cast<double2*>(memory)),
        inv_freq_(reinterpret_cast<double*>(steps_ + head_dim / 2)),
        table_(arguments.rope, head_dim, inv_freq_ + head_dim / 2) {}

  /// Runs once, before a barrier.
  __device__ void start(int32_t thread) const {
    if (thread >= a_.rope.rotary_dim / 2) return;
    inv_freq_[thread] = static_cast<double>(a_.rope.inv_freq[thread]);
    steps_[thread] = cos_sin_double(inv_freq_[thread]);
  }

  /// Computes the rotations of a page's tokens; a barrier must follow. For consecutive positions, eight tokens share
  /// one cosine and sine and take one product each, in double precision.
  __device__ void find(const DeviceWrite& page, int32_t thread, int32_t threads) const {
    const int32_t pairs = a_.rope.rotary_dim / 2;
    constexpr int32_t kRun = 8;
    for (int32_t i = thread; i < pairs * (kSlots / kRun); i += threads) {
      const int32_t pair = i % pairs;
      const int32_t slot = i / pairs * kRun;
      float2* place = table_.place(slot, pair);
      const double inv_freq = inv_freq_[pair];
      if (page.token_position >= 0) {
        const double2 step = steps_[pair];
        double2 at = cos_sin_double(static_cast<double>(page.token_position + slot) * inv_freq);
        for (int32_t j = 0; j < kRun; ++j) {
          place[j * table_.slot_stride()] = make_float2(static_cast<float>(at.x), static_cast<float>(at.y));
          at = make_double2(fma(at.x, step.x, -at.y * step.y), fma(at.x, step.y, at.y * step.x));
        }
      } else {
        for (int32_t j = 0; j < kRun; ++j) {
          place[j * table_.slot_stride()] =
              cos_sin(static_cast<double>(a_.positions[~page.token_position + slot + j]) * inv_freq);
        }
      }
    }
  }

  __device__ const SlotRotations& table() const { return table_; }

 private:
  const AppendArguments& a_;
  double2* steps_;    // [pairs], rotation by one position
  double* inv_freq_;  // [pairs]
  const SlotRotations table_;
};

__device__ inline void to_halves(const float (&x)[2][8], __half2 (&halves)[2][4]) {
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) {
    halves[i / 4][i % 4] = __floats2half2_rn(x[i / 4][i % 4 * 2], x[i / 4][i % 4 * 2 + 1]);
  }
}

__device__ inline void to_floats(const __half2 (&halves)[2][4], float (&x)[2][8]) {
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) {
    const float2 pair = __half22float2(halves[i / 4][i % 4]);
    x[i / 4][i % 4 * 2] = pair.x;
    x[i / 4][i % 4 * 2 + 1] = pair.y;
  }
}

/// Whether every magnitude is below the largest FP16 value; false for NaN.
__device__ inline bool are_below_most(const __half2 (&x)[2][4]) {
  __half2 highest = __habs2(x[0][0]);
#pragma unroll
  for (int32_t i = 1; i < 8; ++i) highest = __hmax2_nan(highest, __habs2(x[i / 4][i % 4]));
  return __hblt2(highest, __float2half2_rn(kMaxHalf));
}

/// Whether no magnitude exceeds the largest FP16 value, not even by less than half an ulp.
__device__ inline bool fit_halves(const float (&x)[2][8]) {
  bool fit = true;
#pragma unroll
  for (int32_t i = 0; i < 16; ++i) fit = fit && fabsf(x[i / 8][i % 8]) <= kMaxHalf;
  return fit;
}

/// Saturates infinities and replaces NaN with 0.
__device__ inline void keep_finite(__half2 (&x)[2][4]) {
  const __half2 most = __float2half2_rn(kMaxHalf);
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) {
    __half2& pair = x[i / 4][i % 4];
    pair = as_halves(as_word(pair) & __heq2_mask(pair, pair));
    pair = __hmax2(__hmin2(pair, most), __hneg2(most));
  }
}

__device__ inline void add_and_subtract(float& a, float& b) {
  const float sum = a + b;
  b = a - b;
  a = sum;
}

/// `units` adjacent threads hold a token. Near channels are combined first, as on the host (core/hadamard.h).
__device__ inline void rotate_hadamard(int32_t units, float (&x)[2][8]) {
#pragma unroll
  for (int32_t d = 1; d < 8; d *= 2) {
#pragma unroll
    for (int32_t i = 0; i < 16; ++i) {
      if ((i & d) == 0) add_and_subtract(x[i / 8][i % 8], x[i / 8][i % 8 + d]);
    }
  }
#pragma unroll
  for (int32_t d = 1; d < units; d *= 2) {
    const float sign = (threadIdx.x & static_cast<uint32_t>(d)) != 0 ? -1.0F : 1.0F;
#pragma unroll
    for (int32_t i = 0; i < 16; ++i) {
      float& each = x[i / 8][i % 8];
      each = fmaf(each, sign, __shfl_xor_sync(kAll, each, d));
    }
  }
  const float norm = 1.0F / sqrtf(static_cast<float>(16 * units));
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) {
    add_and_subtract(x[0][i], x[1][i]);
    x[0][i] *= norm;
    x[1][i] *= norm;
  }
}

}  // namespace kvq::cuda
