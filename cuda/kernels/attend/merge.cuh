// Merges outputs from warps' registers over warps and blocks, and writes them to the caller.
#pragma once

#include "kernels/attend/segments.cuh"
#include "kernels/device/copies.cuh"
#include "kernels/device/head_rotation.cuh"
#include "kernels/pages/outputs.cuh"
#include "kernels/pages/softmax.cuh"

namespace kvq::cuda {

/// A warp's outputs in shared memory, in place of its ring: rows [kRows][kWidth] with channel c of row r at
/// c ^ (r / 2 % 4), so that lanes of different rows do not conflict in banks.
__device__ __forceinline__ float* warp_outputs(const Rings& rings, int32_t warp) {
  return reinterpret_cast<float*>(rings.of(warp));
}

/// Stores this warp's maxima, sums and outputs of the unit's `rows`.
template <typename G>
__device__ __forceinline__ void store_warp(const Block<G>& block, int32_t rows, const SoftmaxState<G::kTiles>& softmax,
                                           const Outputs<G>& outputs) {
  const Lane& lane = block.lane;
  __syncwarp();
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) {
      float sum = softmax.sum[n][c];
      sum += __shfl_xor_sync(kAll, sum, 4);
      sum += __shfl_xor_sync(kAll, sum, 8);
      sum += __shfl_xor_sync(kAll, sum, 16);
      const int32_t row = 8 * n + 2 * lane.t + c;
      if (row >= rows) continue;
      if (lane.g == 0) {
        block.shared.maxima[lane.warp][row] = softmax.maximum[n][c];
        block.shared.sums[lane.warp][row] = sum;
      }
      float* to = warp_outputs(block.rings, lane.warp) + row * G::kWidth + 4 * lane.g;
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
#pragma unroll
        for (int32_t m = 0; m < G::kChannels; ++m) {
          to[32 * m + (i ^ lane.t)] = outputs.channels[n][m][i / 2][2 * (i % 2) + c];
        }
      }
    }
  }
}

/// A lane's share of a merge: four channels of a row from `column` on, and from each 128 after it.
template <typename G>
struct Merged {
  static constexpr int32_t kVectors = G::kWidth / 128 > 1 ? G::kWidth / 128 : 1;
  static constexpr int32_t kRowLanes = G::kWidth / 4 / kVectors;

  int32_t row;
  int32_t column;
  float maximum;
  float sum;
  float x[kVectors][4];
};

/// Calls `act` for every row of the unit, one or two rows per warp. Lanes without a row repeat the last one, because a
/// Hadamard rotation needs all lanes of a warp.
template <typename G, typename Do>
__device__ __forceinline__ void for_each_row(const Lane& lane, int32_t rows, const Do& act) {
  constexpr int32_t kRowLanes = Merged<G>::kRowLanes;
  constexpr int32_t kWarpRows = 32 / kRowLanes;
#pragma unroll 1
  for (int32_t first = lane.warp * kWarpRows; first < rows; first += lane.warps * kWarpRows) {
    Merged<G> row;
    row.row = min(first + lane.index / kRowLanes, rows - 1);
    row.column = 4 * (lane.index % kRowLanes);
    act(row);
  }
}

__device__ __forceinline__ void add_weighted(float (&to)[4], float weight, const float4& x) {
  to[0] = fmaf(weight, x.x, to[0]);
  to[1] = fmaf(weight, x.y, to[1]);
  to[2] = fmaf(weight, x.z, to[2]);
  to[3] = fmaf(weight, x.w, to[3]);
}

/// Sums the warps' outputs, weighted.
template <typename G>
__device__ __forceinline__ void merge_warps(const Block<G>& block, Merged<G>& to) {
  constexpr int32_t kVectors = Merged<G>::kVectors;
  const auto& shared = block.shared;
  const int32_t warps = block.lane.warps;
  to.maximum = minus_infinity();
#pragma unroll
  for (int32_t w = 0; w < kMaxWarps; ++w) {
    if (w < warps) to.maximum = fmaxf(to.maximum, shared.maxima[w][to.row]);
  }
  const float reference = to.maximum == minus_infinity() ? 0.0F : to.maximum;
  to.sum = 0.0F;
  float x[kVectors][4] = {};
#pragma unroll
  for (int32_t w = 0; w < kMaxWarps; ++w) {
    if (w >= warps) break;
    const float weight = exp2_fast(shared.maxima[w][to.row] - reference);
    to.sum = fmaf(weight, shared.sums[w][to.row], to.sum);
    const float* from = warp_outputs(block.rings, w) + to.row * G::kWidth + to.column;
#pragma unroll
    for (int32_t v = 0; v < kVectors; ++v) {
      add_weighted(x[v], weight, *reinterpret_cast<const float4*>(from + 128 * v));
    }
  }
  const int32_t swap = to.row / 2 % 4;
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

/// Stores a block's outputs of a segment for the block that merges them: maximum and sum [kRows][2], outputs
/// [kRows][kWidth].
template <typename G>
__device__ __forceinline__ float* partial(const AttendArguments& arguments, const Segment& segment, int32_t part) {
  constexpr int32_t kFloats = G::kRows * (G::kWidth + 2);
  return arguments.partials + static_cast<int64_t>(segment.first_partial + part) * kFloats;
}

/// Offset of a lane's channels in a partial.
template <typename G>
__device__ __forceinline__ int32_t place_in_partial(const Merged<G>& row) {
  return 2 * G::kRows + row.row * G::kWidth + row.column;
}

template <typename G>
__device__ __forceinline__ void store_partial(const AttendArguments& arguments, const Segment& segment,
                                              const Merged<G>& row) {
  float* to = partial<G>(arguments, segment, segment.part);
  if (row.column == 0) reinterpret_cast<float2*>(to)[row.row] = {row.maximum, row.sum};
#pragma unroll
  for (int32_t v = 0; v < Merged<G>::kVectors; ++v) {
    const float(&x)[4] = row.x[v];
    *reinterpret_cast<float4*>(to + place_in_partial(row) + 128 * v) = {x[0], x[1], x[2], x[3]};
  }
}

/// Sums the weighted outputs of all blocks in block order, with many loads in flight.
template <typename G>
__device__ __forceinline__ void merge_partials(const AttendArguments& arguments, const Segment& segment,
                                               Merged<G>& to) {
  constexpr int32_t kVectors = Merged<G>::kVectors;
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
      const float* from = partial<G>(arguments, segment, min(part + k, segment.parts - 1));
      const float2 both = __ldcg(reinterpret_cast<const float2*>(from) + to.row);
      maxima[k] = both.x;
      sums[k] = both.y;
#pragma unroll
      for (int32_t v = 0; v < kVectors; ++v) {
        x[k][v] = __ldcg(reinterpret_cast<const float4*>(from + place_in_partial(to) + 128 * v));
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
      to.sum = fmaf(weight, sums[k], to.sum);
#pragma unroll
      for (int32_t v = 0; v < kVectors; ++v) add_weighted(to.x[v], weight, x[k][v]);
    }
  }
}

/// Undoes the rotation of values. All lanes of a warp take part.
template <typename G>
__device__ __forceinline__ void rotate(const Block<G>& of, Merged<G>& row) {
  const Lane& lane = of.lane;
  const int32_t block = of.geometry.hadamard_block();
  const float norm = rsqrtf(static_cast<float>(block));
#pragma unroll
  for (int32_t v = 0; v < Merged<G>::kVectors; ++v) {
    float(&x)[4] = row.x[v];
    butterfly(x[0], x[1]);
    butterfly(x[2], x[3]);
    if (block > 2) {
      butterfly(x[0], x[2]);
      butterfly(x[1], x[3]);
    }
#pragma unroll
    for (int32_t d = 1; d < Merged<G>::kRowLanes; d *= 2) {
      if (4 * d >= block) break;
#pragma unroll
      for (float& each : x) butterfly(each, lane.index, d);
    }
#pragma unroll
    for (float& each : x) each *= norm;
  }
  if constexpr (Merged<G>::kVectors == 2) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      if (block > 128) butterfly(row.x[0][i], row.x[1][i]);
    }
  }
  if constexpr (!G::kExact) {
    const BlockMix mix(of.geometry.head_dim());
    if (!mix.mixes()) return;
    static_assert(Merged<G>::kRowLanes == 32);
    float* whole = warp_outputs(of.rings, 0) + row.row * G::kWidth;  // has been merged
    __syncwarp();
#pragma unroll
    for (int32_t i = 0; i < 4 * Merged<G>::kVectors; ++i) {
      whole[row.column + 128 * (i / 4) + i % 4] = row.x[i / 4][i % 4];
    }
    __syncwarp();
#pragma unroll
    for (int32_t i = 0; i < 4 * Merged<G>::kVectors; ++i) {
      const int32_t channel = row.column + 128 * (i / 4) + i % 4;
      if (of.geometry.has_channel(channel)) row.x[i / 4][i % 4] = mix.channel(whole, channel);
    }
  }
}

template <typename G>
__device__ __forceinline__ void write_row(const Block<G>& block, const Unit& unit, Merged<G>& row) {
  const AttendArguments& arguments = block.arguments;
  if (arguments.hadamard_values != 0) rotate(block, row);
  const RowPlace place = row_place(arguments, unit, row.row);
  // Outputs are zeros for queries that see no token.
  float factor = row.sum > 0.0F ? 1.0F / row.sum : 0.0F;
  if (__builtin_expect(arguments.lse != nullptr || arguments.sinks != nullptr, 0)) {
    factor = finish_row(arguments, place, {row.maximum, row.sum}, row.column == 0);
  }
  const int64_t at = row_offset(arguments.out_strides, place) + row.column;
  const LayerScales scales = scales_of(arguments, unit);
#pragma unroll
  for (int32_t v = 0; v < Merged<G>::kVectors; ++v) {
    float(&x)[4] = row.x[v];
#pragma unroll
    for (float& each : x) each *= factor;
    if (block.geometry.has_channel(row.column + 128 * v)) {
      if (scales) {
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t channel = row.column + 128 * v + i;
          x[i] = unscale_output(scales, unit.head, arguments.head, channel, x[i], factor * row.sum);
        }
      }
      write_four(arguments.out, arguments.out_dtype, at + 128 * v, x);
    }
  }
}

/// Writes this block's outputs to the caller, or to partials that the last block of a unit merges.
template <typename G>
__device__ __forceinline__ void write_output(const Block<G>& block, const Segment& segment, int32_t rows) {
  const AttendArguments& arguments = block.arguments;
  const bool split = segment.parts != 1;
  if (split) {
    for_each_row<G>(block.lane, rows, [&](Merged<G>& row) {
      merge_warps(block, row);
      store_partial(arguments, segment, row);
    });
    __syncthreads();
    int32_t* tickets = arguments.tickets + segment.index;
    const bool last = threadIdx.x == 0 && take_ticket(tickets) == segment.parts - 1;
    if (last) *tickets = 0;
    if (__syncthreads_or(last ? 1 : 0) == 0) return;
  }
  for_each_row<G>(block.lane, rows, [&](Merged<G>& row) {
    if (split) {
      merge_partials(arguments, segment, row);
    } else {
      merge_warps(block, row);
    }
    write_row(block, segment.unit, row);
  });
}

}  // namespace kvq::cuda
