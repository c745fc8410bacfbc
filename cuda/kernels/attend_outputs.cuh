// Outputs: from registers over warps and blocks to the caller.
#pragma once

#include "kernels/attend_block.cuh"

namespace kvq::cuda {

/// Give outputs the power of two that an integer page's products lack, and add what its minima contributed.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::finish_run() {
  if (format_.values() == Kind::kFloat16) return;
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t m = 0; m < kChannels; ++m) {
      const int32_t source = 4 * (m >> group_shift_) + t_;
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        const float each = __shfl_sync(kAll, bias_[n][c], source & 31);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          float& out = out_[n][m][i / 2][2 * (i % 2) + c];
          out = fmaf(out, kSubnormalScale, each);
        }
      }
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) bias_[n][i] = 0.0F;
  }
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::scale_outputs(float factor) {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t i = 0; i < 8 * kChannels; ++i) out_[n][i / 8][i / 4 % 2][i % 4] *= factor;
  }
}

/// Values of rotated pages are summed in rotated space. A list that mixes both kinds changes space between them; the
/// rotation is its own inverse.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::change_space(bool rotated) {
  if (rotated == rotated_space_) return;
  float* x = warp_outputs(warp_);  // the ring is empty
  move_outputs<true>(x);
  __syncwarp();
  rotate_rows(x, rows_, DP, a_.head_dim, lane_, 32, [] { __syncwarp(); });
  move_outputs<false>(x);
  order_before_copies();
  __syncwarp();
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ bool Block<DP, kFull, NT>::nothing_added() const {
  bool nothing = true;
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
    nothing = nothing && maximum_[n][0] == minus_infinity() && maximum_[n][1] == minus_infinity();
  }
  return __all_sync(kAll, nothing) != 0;
}

/// Registers to rows [kRows][DP] in shared memory, or back. Channel 32m + 4g + 2h + i is out_[n][m][h][2i + c].
template <int DP, bool kFull, int NT>
template <bool kStore>
__device__ __forceinline__ void Block<DP, kFull, NT>::move_outputs(float* x) {
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
#pragma unroll
      for (int32_t m = 0; m < kChannels; ++m) {
        // One by one: vectors would want registers in another order than tensor cores do, all the time.
        const uint32_t at = shared_address(x + (8 * n + 2 * t_ + c) * DP + 32 * m + 4 * g_);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i)
          move_float<kStore>(at + static_cast<uint32_t>(4 * i), out_[n][m][i / 2][2 * (i % 2) + c]);
      }
    }
  }
}

template <int DP, bool kFull, int NT>
template <bool kStore>
__device__ __forceinline__ void Block<DP, kFull, NT>::move_float(uint32_t address, float& value) {
  if constexpr (kStore) {
    asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(address), "f"(value) : "memory");
  } else {
    asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(value) : "r"(address) : "memory");
  }
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ float* Block<DP, kFull, NT>::warp_outputs(int32_t warp) const {
  return reinterpret_cast<float*>(rings_ + warp * a_.ring_bytes);
}

/// This warp's maxima, sums and outputs, the latter where its ring was.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::store_warp() {
  __syncwarp();
  move_outputs<true>(warp_outputs(warp_));
  if (lane_ == 0) s_.rotated_outputs[warp_] = rotated_space_ ? 1 : 0;
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      float sum = sum_[n][c];
      sum += __shfl_xor_sync(kAll, sum, 4);
      sum += __shfl_xor_sync(kAll, sum, 8);
      sum += __shfl_xor_sync(kAll, sum, 16);
      const int32_t row = 8 * n + 2 * t_ + c;
      if (g_ == 0) {
        s_.maxima[warp_][row] = maximum_[n][c];
        s_.sums[warp_][row] = sum;
      }
    }
  }
}

/// Into warp 0's place, in plain space.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::merge_warps() {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto threads = static_cast<int32_t>(blockDim.x);
  bool any_rotated = false;
  for (int32_t w = 0; w < warps_; ++w) any_rotated = any_rotated || s_.rotated_outputs[w] != 0;
  if (any_rotated) {
    // The sum of rotated outputs is rotated back once, in the place of the first of them.
    merge_outputs(1);
    rotate_rows(warp_outputs(first_warp(1)), rows_, DP, a_.head_dim, thread, threads, [] { __syncthreads(); });
    if (thread == 0) s_.rotated_outputs[first_warp(1)] = 2;
    __syncthreads();
  }
  merge_outputs(0);
}

/// Weighted sum of the outputs of one kind, 0 for plain and 1 for rotated ones, in the place of the first of them, or
/// of warp 0 for plain ones. Kind 2 is the sum of rotated ones, now plain.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::merge_outputs(int32_t kind) {
  auto* to = reinterpret_cast<float4*>(warp_outputs(kind == 0 ? 0 : first_warp(kind)));
#pragma unroll 1
  for (auto i = static_cast<int32_t>(threadIdx.x); i < rows_ * DP / 4; i += static_cast<int32_t>(blockDim.x)) {
    const int32_t row = 4 * i / DP;
    float highest = minus_infinity();
#pragma unroll 4
    for (int32_t w = 0; w < warps_; ++w) highest = fmaxf(highest, s_.maxima[w][row]);
    const float reference = highest == minus_infinity() ? 0.0F : highest;
    float total = 0.0F;
    float4 sum{0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll 4
    for (int32_t w = 0; w < warps_; ++w) {
      const int32_t of_warp = s_.rotated_outputs[w];
      const float own_weight = exp2_fast(s_.maxima[w][row] - reference);
      total += own_weight * s_.sums[w][row];
      const float weight = of_warp == kind ? own_weight : (of_warp == 2 ? 1.0F : 0.0F);
      const float4 each = reinterpret_cast<const float4*>(warp_outputs(w))[i];
      sum.x += weight * each.x;
      sum.y += weight * each.y;
      sum.z += weight * each.z;
      sum.w += weight * each.w;
    }
    if (4 * i % DP == 0) {
      s_.block_maximum[row] = highest;
      s_.block_sum[row] = total;
    }
    to[i] = sum;
  }
  __syncthreads();
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ int32_t Block<DP, kFull, NT>::first_warp(int32_t kind) const {
  int32_t w = 0;
  while (w + 1 < warps_ && s_.rotated_outputs[w] != kind) ++w;
  return w;
}

/// Blocks and units only ever rise along the line of pages, so no two segments share a number.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ float* Block<DP, kFull, NT>::partial(int32_t block, int32_t unit) const {
  return a_.partials + static_cast<int64_t>(block + unit) * kPartialFloats;
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::store_partial(int32_t unit) const {
  float* to = partial(static_cast<int32_t>(blockIdx.x), unit);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < kRows) {  // rows that do not exist are read, too, and ignored
    to[thread] = s_.block_maximum[thread];
    to[kRows + thread] = s_.block_sum[thread];
  }
  const auto* from = reinterpret_cast<const float4*>(warp_outputs(0));
#pragma unroll 1
  for (int32_t i = thread; i < rows_ * DP / 4; i += static_cast<int32_t>(blockDim.x)) {
    reinterpret_cast<float4*>(to + 2 * kRows)[i] = from[i];
  }
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::write_output(const Unit& unit, int32_t index, int32_t parts,
                                                                   int32_t first_block) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto threads = static_cast<int32_t>(blockDim.x);
  float* maxima_and_sums = warp_outputs(0);  // [parts][2][kRows]
  if (parts > 1) {
#pragma unroll 1
    for (int32_t i = thread; i < parts * 2 * kRows; i += threads) {
      maxima_and_sums[i] = __ldcg(partial(first_block + i / (2 * kRows), index) + i % (2 * kRows));
    }
    __syncthreads();
  }
#pragma unroll 1
  for (int32_t i = thread; i < rows_ * DP / 4; i += threads) {
    const int32_t row = 4 * i / DP;
    float sum = 0.0F;
    float4 value{0.0F, 0.0F, 0.0F, 0.0F};
    if (parts > 1) {
      float highest = minus_infinity();
#pragma unroll 4
      for (int32_t k = 0; k < parts; ++k) highest = fmaxf(highest, maxima_and_sums[2 * kRows * k + row]);
      const float reference = highest == minus_infinity() ? 0.0F : highest;
#pragma unroll 8
      for (int32_t k = 0; k < parts; ++k) {
        const float4 each = __ldcg(reinterpret_cast<const float4*>(partial(first_block + k, index) + 2 * kRows) + i);
        const float weight = exp2_fast(maxima_and_sums[2 * kRows * k + row] - reference);
        sum += weight * maxima_and_sums[2 * kRows * k + kRows + row];
        value.x += weight * each.x;
        value.y += weight * each.y;
        value.z += weight * each.z;
        value.w += weight * each.w;
      }
    } else {
      sum = s_.block_sum[row];
      value = reinterpret_cast<const float4*>(warp_outputs(0))[i];
    }
    if (4 * i % DP >= a_.head_dim) continue;
    // A query that sees no token gives zeros.
    const float factor = sum > 0.0F ? 1.0F / sum : 0.0F;
    const int64_t at = row_offset(unit, row) + 4 * i % DP;
    write_float(a_.out, a_.out_dtype, at, value.x * factor);
    write_float(a_.out, a_.out_dtype, at + 1, value.y * factor);
    write_float(a_.out, a_.out_dtype, at + 2, value.z * factor);
    write_float(a_.out, a_.out_dtype, at + 3, value.w * factor);
  }
}

/// Of a row in q and in out.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ int64_t Block<DP, kFull, NT>::row_offset(const Unit& unit, int32_t row) const {
  const int32_t of_unit = unit.first_row + row;
  return (static_cast<int64_t>(unit.sequence->query_begin + of_unit / group_) * a_.q_heads + unit.head * group_ +
          of_unit % group_) *
         a_.head_dim;
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::write_zeros(const Unit& unit) const {
  const int32_t rows = rows_of(unit);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < rows * a_.head_dim; i += static_cast<int32_t>(blockDim.x)) {
    write_float(a_.out, a_.out_dtype, row_offset(unit, i / a_.head_dim) + i % a_.head_dim, 0.0F);
  }
}

}  // namespace kvq::cuda
