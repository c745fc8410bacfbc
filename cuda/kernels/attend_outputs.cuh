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
/// rotation is its own inverse. Channel 32m + 4g + 2h + i is out_[n][m][h][2i + c].
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::change_space() {
  const int32_t block = hadamard_block();
#pragma unroll 1
  for (int32_t d = 4; d <= 16 && d < block; d *= 2) {
#pragma unroll
    for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
      for (int32_t i = 0; i < 8 * kChannels; ++i) butterfly(out_[n][i / 8][i / 4 % 2][i % 4], lane_, d);
    }
  }
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t m = 0; m < kChannels; ++m) {
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        butterfly(out_[n][m][0][c], out_[n][m][0][c + 2]);
        butterfly(out_[n][m][1][c], out_[n][m][1][c + 2]);
      }
#pragma unroll
      for (int32_t c = 0; c < 4; ++c) {
        if (block > 2) butterfly(out_[n][m][0][c], out_[n][m][1][c]);
      }
    }
#pragma unroll
    for (int32_t d = 1; d < kChannels; d *= 2) {
      if (32 * d >= block) break;
#pragma unroll
      for (int32_t i = 0; i < 8 * kChannels; ++i) {
        const int32_t m = i / 8;
        if ((m & d) == 0) butterfly(out_[n][m][i / 4 % 2][i % 4], out_[n][m + d][i / 4 % 2][i % 4]);
      }
    }
  }
  scale_outputs(rsqrtf(static_cast<float>(block)));
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ float* Block<DP, kFull, NT>::warp_outputs(int32_t warp) const {
  return reinterpret_cast<float*>(rings_ + warp * a_.ring_bytes);
}

/// This warp's maxima, sums and outputs, the latter where its ring was: rows [kRows][DP], of which every four channels
/// trade places so that lanes of different rows meet in no bank: channel c of row r is at c ^ (r / 2 % 4).
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::store_warp() {
  __syncwarp();
#pragma unroll
  for (int32_t n = 0; n < NT; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      float sum = sum_[n][c];
      sum += __shfl_xor_sync(kAll, sum, 4);
      sum += __shfl_xor_sync(kAll, sum, 8);
      sum += __shfl_xor_sync(kAll, sum, 16);
      const int32_t row = 8 * n + 2 * t_ + c;
      if (row >= rows_) continue;
      if (g_ == 0) {
        s_.maxima[warp_][row] = maximum_[n][c];
        s_.sums[warp_][row] = sum;
      }
      float* to = warp_outputs(warp_) + row * DP + 4 * g_;
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
#pragma unroll
        for (int32_t m = 0; m < kChannels; ++m) to[32 * m + (i ^ t_)] = out_[n][m][i / 2][2 * (i % 2) + c];
      }
    }
  }
}

/// Call `act` for every row of the unit, with the lanes of one or two rows a warp. Lanes whose row does not exist take
/// part, since rows are rotated by all lanes of a warp, with the last row.
template <int DP, bool kFull, int NT>
template <typename Do>
__device__ __forceinline__ void Block<DP, kFull, NT>::for_each_row(const Do& act) const {
  constexpr int32_t kWarpRows = 32 / kRowLanes;
#pragma unroll 1
  for (int32_t first = warp_ * kWarpRows; first < rows_; first += warps_ * kWarpRows) {
    Merged row;
    row.row = min(first + lane_ / kRowLanes, rows_ - 1);
    row.column = 4 * (lane_ % kRowLanes);
    act(row);
  }
}

/// Weighted sum of the warps' outputs.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::merge_warps(Merged& to) const {
  to.maximum = minus_infinity();
#pragma unroll
  for (int32_t w = 0; w < kMaxWarps; ++w) {
    if (w < warps_) to.maximum = fmaxf(to.maximum, s_.maxima[w][to.row]);
  }
  const float reference = to.maximum == minus_infinity() ? 0.0F : to.maximum;
  const int32_t swap = to.row / 2 % 4;
  to.sum = 0.0F;
  float x[kVectors][4] = {};
#pragma unroll
  for (int32_t w = 0; w < kMaxWarps; ++w) {
    if (w >= warps_) break;
    const float weight = exp2_fast(s_.maxima[w][to.row] - reference);
    to.sum += weight * s_.sums[w][to.row];
#pragma unroll
    for (int32_t v = 0; v < kVectors; ++v) {
      const float4 each = *reinterpret_cast<const float4*>(warp_outputs(w) + to.row * DP + to.column + 128 * v);
      x[v][0] += weight * each.x;
      x[v][1] += weight * each.y;
      x[v][2] += weight * each.z;
      x[v][3] += weight * each.w;
    }
  }
#pragma unroll
  for (int32_t v = 0; v < kVectors; ++v) {
    const float a = (swap & 1) != 0 ? x[v][1] : x[v][0];
    const float b = (swap & 1) != 0 ? x[v][0] : x[v][1];
    const float c = (swap & 1) != 0 ? x[v][3] : x[v][2];
    const float d = (swap & 1) != 0 ? x[v][2] : x[v][3];
    to.x[v][0] = (swap & 2) != 0 ? c : a;
    to.x[v][1] = (swap & 2) != 0 ? d : b;
    to.x[v][2] = (swap & 2) != 0 ? a : c;
    to.x[v][3] = (swap & 2) != 0 ? b : d;
  }
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ float* Block<DP, kFull, NT>::partial(const Segment& segment, int32_t part) const {
  return a_.partials + static_cast<int64_t>(segment.first_partial + part) * kPartialFloats;
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::store_partial(const Segment& segment, const Merged& row) const {
  float* to = partial(segment, segment.part);
  if (row.column == 0) reinterpret_cast<float2*>(to)[row.row] = {row.maximum, row.sum};
#pragma unroll
  for (int32_t v = 0; v < kVectors; ++v) {
    const float(&x)[4] = row.x[v];
    *reinterpret_cast<float4*>(to + 2 * kRows + row.row * DP + row.column + 128 * v) = {x[0], x[1], x[2], x[3]};
  }
}

/// Weighted sum of all blocks' outputs, in the order of the blocks. Many at a time, so that all are on their way.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::merge_partials(const Segment& segment, Merged& to) const {
  constexpr int32_t kAtOnce = 16 / kVectors;
  to.maximum = minus_infinity();
  to.sum = 0.0F;
#pragma unroll
  for (int32_t i = 0; i < 4 * kVectors; ++i) to.x[i / 4][i % 4] = 0.0F;
#pragma unroll 1
  for (int32_t part = 0; part < segment.parts; part += kAtOnce) {
    float maxima[kAtOnce];
    float sums[kAtOnce];
    float4 x[kAtOnce][kVectors];
    float highest = to.maximum;
#pragma unroll
    for (int32_t k = 0; k < kAtOnce; ++k) {
      const float* from = partial(segment, min(part + k, segment.parts - 1));
      const float2 both = __ldcg(reinterpret_cast<const float2*>(from) + to.row);
      maxima[k] = both.x;
      sums[k] = both.y;
#pragma unroll
      for (int32_t v = 0; v < kVectors; ++v) {
        x[k][v] = __ldcg(reinterpret_cast<const float4*>(from + 2 * kRows + to.row * DP + to.column + 128 * v));
      }
    }
#pragma unroll
    for (int32_t k = 0; k < kAtOnce; ++k) {
      if (part + k >= segment.parts) maxima[k] = minus_infinity();
      highest = fmaxf(highest, maxima[k]);
    }
    const float reference = highest == minus_infinity() ? 0.0F : highest;
    const float before = exp2_fast(to.maximum - reference);
    to.maximum = highest;
    to.sum *= before;
#pragma unroll
    for (int32_t i = 0; i < 4 * kVectors; ++i) to.x[i / 4][i % 4] *= before;
#pragma unroll
    for (int32_t k = 0; k < kAtOnce; ++k) {
      const float weight = exp2_fast(maxima[k] - reference);
      to.sum += weight * sums[k];
#pragma unroll
      for (int32_t v = 0; v < kVectors; ++v) {
        to.x[v][0] += weight * x[k][v].x;
        to.x[v][1] += weight * x[k][v].y;
        to.x[v][2] += weight * x[k][v].z;
        to.x[v][3] += weight * x[k][v].w;
      }
    }
  }
}

/// Back from rotated space. All lanes of a warp.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::rotate(Merged& row) const {
  const int32_t block = hadamard_block();
  const float norm = rsqrtf(static_cast<float>(block));
#pragma unroll
  for (int32_t v = 0; v < kVectors; ++v) {
    float(&x)[4] = row.x[v];
    butterfly(x[0], x[1]);
    butterfly(x[2], x[3]);
    if (block > 2) {
      butterfly(x[0], x[2]);
      butterfly(x[1], x[3]);
    }
#pragma unroll
    for (int32_t d = 1; d < kRowLanes; d *= 2) {
      if (4 * d >= block) break;
#pragma unroll
      for (float& each : x) butterfly(each, lane_, d);
    }
#pragma unroll
    for (float& each : x) each *= norm;
  }
  if constexpr (kVectors == 2) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      if (block > 128) butterfly(row.x[0][i], row.x[1][i]);
    }
  }
}

/// From this block's warps to the caller, or by way of partials, which the last block of a unit merges.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::write_output(const Segment& segment) {
  if (segment.parts == 1) {
    for_each_row([&](Merged& row) {
      merge_warps(row);
      write_row(segment.unit, row);
    });
    return;
  }
  for_each_row([&](Merged& row) {
    merge_warps(row);
    store_partial(segment, row);
  });
  __syncthreads();
  int32_t* tickets = a_.tickets + segment.index;
  const bool last = threadIdx.x == 0 && take_ticket(tickets) == segment.parts - 1;
  if (last) *tickets = 0;
  if (__syncthreads_or(last ? 1 : 0) == 0) return;
  for_each_row([&](Merged& row) {
    merge_partials(segment, row);
    write_row(segment.unit, row);
  });
}

template <int DP, bool kFull, int NT>
__device__ __forceinline__ void Block<DP, kFull, NT>::write_row(const Unit& unit, Merged& row) const {
  if (a_.hadamard_values != 0) rotate(row);
  // A query that sees no token gives zeros.
  const float factor = row.sum > 0.0F ? 1.0F / row.sum : 0.0F;
  const int64_t at = row_offset(unit, row.row) + row.column;
#pragma unroll
  for (int32_t v = 0; v < kVectors; ++v) {
    float(&x)[4] = row.x[v];
#pragma unroll
    for (float& each : x) each *= factor;
    if (kFull || row.column + 128 * v < a_.head_dim) write_four(a_.out, a_.out_dtype, at + 128 * v, x);
  }
}

/// Of a row in q and in out.
template <int DP, bool kFull, int NT>
__device__ __forceinline__ int64_t Block<DP, kFull, NT>::row_offset(const Unit& unit, int32_t row) const {
  const auto of_unit = static_cast<uint32_t>(unit.first_row + row);
  const uint32_t query = divide(of_unit, a_.group);
  const auto head =
      static_cast<int32_t>(static_cast<uint32_t>(unit.head) * a_.group.number + of_unit - query * a_.group.number);
  return (static_cast<int64_t>(sequence_of(unit).query_begin + static_cast<int32_t>(query)) * a_.q_heads + head) *
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
