// Rotation of heads (core/head_rotation.h), some rows per warp at a time.
#pragma once

#include "kernels/device/head_rotation.cuh"
#include "kernels/pages/math.cuh"

namespace kvq::cuda {

/// Rows whose steps overlap.
constexpr int32_t kRotatedRows = 4;

/// A lane's channels lane + 32 · i of rows of at most kWidth channels; those past the head are zeros.
template <int kWidth>
using RowShares = float[kRotatedRows][kWidth / 32];

/// The rotation, or its inverse, which is the same.
template <int kWidth>
class RowRotation {
 public:
  __device__ __forceinline__ explicit RowRotation(int32_t head_dim) : mix_(head_dim) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t blocks = head_dim / mix_.width();
    if (blocks == 1 || blocks > kMostKept) return;
#pragma unroll
    for (int32_t i = 0; i < kShare; ++i) {
      const int32_t to = (lane + 32 * i) / mix_.width();
#pragma unroll
      for (int32_t from = 0; from < kMostKept; ++from) {
        factors_[i][from] = to < blocks && from < blocks ? mix_.factor(to, from) : 0.0F;
      }
    }
  }

  /// `scratch`: [kRotatedRows][kWidth] in shared memory, of this warp.
  __device__ __forceinline__ void apply(float* scratch, RowShares<kWidth>& x) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int32_t d = 1; d < 32; d *= 2) {
      if (d >= mix_.width()) break;
#pragma unroll
      for (int32_t i = 0; i < kRotatedRows * kShare; ++i) butterfly(x[i / kShare][i % kShare], lane, d);
    }
#pragma unroll
    for (int32_t d = 1; d < kShare; d *= 2) {
      if (32 * d >= mix_.width()) break;
#pragma unroll
      for (int32_t i = 0; i < kShare; ++i) {
        if ((i & d) != 0 || i + d >= kShare) continue;
#pragma unroll
        for (int32_t r = 0; r < kRotatedRows; ++r) butterfly(x[r][i], x[r][i + d]);
      }
    }
    const float norm = rsqrtf(static_cast<float>(mix_.width()));
#pragma unroll
    for (int32_t i = 0; i < kRotatedRows * kShare; ++i) x[i / kShare][i % kShare] *= norm;
    if (mix_.mixes()) mix_blocks(scratch, x);
  }

 private:
  static constexpr int32_t kShare = kWidth / 32;
  static constexpr int32_t kMostKept = 5;  // blocks whose factors stay in registers

  __device__ __forceinline__ void mix_blocks(float* scratch, RowShares<kWidth>& x) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    __syncwarp();
#pragma unroll
    for (int32_t i = 0; i < kRotatedRows * kShare; ++i) {
      scratch[i / kShare * kWidth + lane + 32 * (i % kShare)] = x[i / kShare][i % kShare];
    }
    __syncwarp();
    const int32_t width = mix_.width();
    const int32_t blocks = mix_.head_dim() / width;
#pragma unroll
    for (int32_t i = 0; i < kShare; ++i) {
      const int32_t channel = lane + 32 * i;
      const float* within = scratch + (channel & (width - 1));
#pragma unroll
      for (int32_t r = 0; r < kRotatedRows; ++r) {
        if (blocks > kMostKept) {
          x[r][i] = channel < mix_.head_dim() ? mix_.channel(scratch + r * kWidth, channel) : 0.0F;
          continue;
        }
        float sum = 0.0F;
#pragma unroll
        for (int32_t from = 0; from < kMostKept; ++from) {
          if (from < blocks) sum = fmaf(factors_[i][from], within[r * kWidth + from * width], sum);
        }
        x[r][i] = sum;
      }
    }
    __syncwarp();
  }

  BlockMix mix_;
  float factors_[kShare][kMostKept];
};

}  // namespace kvq::cuda
