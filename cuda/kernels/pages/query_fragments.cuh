// Queries as operands of a warp's products over channels.
#pragma once

#include "kernels/device/fragments.cuh"
#include "kernels/pages/geometry.cuh"

namespace kvq::cuda {

/// Arrangement of queries for a kind of keys in products over channels: a key word holds four channels for each of
/// several products, its fields.
struct KeyOrder {
  int32_t fields;  // a power of two
  int32_t shift;   // bits by which codes of a field lie above those of the previous one; queries compensate
  bool codes;      // codes instead of FP16: a lane's four channels are paired (0, 2), (1, 3)

  __device__ __forceinline__ int32_t field(int32_t step) const { return step & (fields - 1); }
  /// First of the four channels that lane t supplies to product `step`.
  __device__ __forceinline__ int32_t channel(int32_t t, int32_t step) const {
    return 16 * (step - field(step)) + 4 * (fields * t + field(step));
  }
};

/// The unit's queries in registers, arranged for one kind of keys.
template <typename G>
struct QueryFragments {
  static constexpr int32_t kQuads = G::kSteps * G::kTiles / 2;

  uint32_t quads[kQuads][4];
  float row_scale[G::kTiles][2];
  float sums[G::kTiles][2];  // over all channels, for kinds with gains

  /// Register of query tile n for product `step`: half 0 or 1 of this lane's four channels. For codes, the quads are
  /// first operands too (see score_codes): of two tiles, or of one tile and two successive products.
  __device__ __forceinline__ uint32_t of_codes(int32_t n, int32_t step, int32_t half) const {
    return G::kTiles == 2 ? quads[step][2 * half + n] : quads[step / 2][2 * half + step % 2];
  }

  /// Register of query tile n for FP16 pages, whose second operand is a pair of neighbours.
  __device__ __forceinline__ uint32_t of_halves(int32_t n, int32_t step, int32_t half) const {
    return G::kTiles == 2 ? quads[step][2 * n + half] : quads[step / 2][2 * (step % 2) + half];
  }
};

/// Loads four channels of a query for product `step`.
__device__ __forceinline__ uint2 load_four(const __half* row, const KeyOrder& order, int32_t t, int32_t step) {
  const uint2 four = *reinterpret_cast<const uint2*>(row + order.channel(t, step));
  if (!order.codes) return four;
  const uint32_t half = static_cast<uint32_t>(15 - order.shift * order.field(step))
                        << 10U;  // 2^−(bits below the field)
  const uint32_t down = half | half << 16U;
  return {multiply(low_halves(four.x, four.y), down), multiply(high_halves(four.x, four.y), down)};
}

/// `rows`: queries in shared memory, `stride` apart, Hadamard-rotated if keys are.
template <typename G>
__device__ __forceinline__ void load_fragments(const __half* rows, int32_t stride, const KeyOrder& order,
                                               const Lane& lane, QueryFragments<G>& to) {
#pragma unroll
  for (int32_t i = 0; i < QueryFragments<G>::kQuads; ++i) {
    uint2 four[2];
#pragma unroll
    for (int32_t j = 0; j < 2; ++j) {
      const int32_t n = G::kTiles == 2 ? j : 0;
      four[j] = load_four(rows + (8 * n + lane.g) * stride, order, lane.t, G::kTiles == 2 ? i : 2 * i + j);
    }
    to.quads[i][0] = four[0].x;
    to.quads[i][1] = order.codes ? four[1].x : four[0].y;
    to.quads[i][2] = order.codes ? four[0].y : four[1].x;
    to.quads[i][3] = four[1].y;
  }
}

template <typename G>
__device__ __forceinline__ void load_fragments(const __half (&rows)[G::kRows][G::kWidth + 8], const KeyOrder& order,
                                               const Lane& lane, QueryFragments<G>& to) {
  load_fragments(rows[0], G::kWidth + 8, order, lane, to);
}

/// Sums queries over channels with the rounding that products with codes see.
template <typename G>
__device__ __forceinline__ void sum_queries(const KeyOrder& order, const Lane& lane, QueryFragments<G>& to) {
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
    float sum = 0.0F;
#pragma unroll
    for (int32_t step = 0; step < G::kSteps; ++step) {
      const auto weight = static_cast<float>(1 << (order.shift * order.field(step)));
#pragma unroll
      for (int32_t half = 0; half < 2; ++half) {
        const uint32_t pair = to.of_codes(n, step, half);
        const float2 two = __half22float2(*reinterpret_cast<const __half2*>(&pair));
        sum = fmaf(weight, two.x + two.y, sum);
      }
    }
    sum += __shfl_xor_sync(kAll, sum, 1);
    sum += __shfl_xor_sync(kAll, sum, 2);
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) to.sums[n][c] = __shfl_sync(kAll, sum, 4 * (2 * lane.t + c));
  }
}

/// Loads the row scales of this lane's columns.
template <typename G>
__device__ __forceinline__ void load_row_scales(const float (&row_scale)[G::kRows], const Lane& lane,
                                                QueryFragments<G>& to) {
#pragma unroll
  for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
    for (int32_t c = 0; c < 2; ++c) to.row_scale[n][c] = row_scale[8 * n + 2 * lane.t + c];
  }
}

}  // namespace kvq::cuda
