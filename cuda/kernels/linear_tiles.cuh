// How the codes of a tile, 16 rows by 16 columns, become the first operand of a product on tensor cores.
//
// A lane (g, t) = (lane / 4, lane % 4) decodes rows g and g + 8 in four columns: those that follow each other in the
// stream of codes, so that a lane's codes of a row are a single piece of it, a run. Columns have another order than
// operands, so inputs come in that order, too.
#pragma once

#include "kernels/fragments.cuh"
#include "kernels/linear.h"

namespace kvq::cuda {

using weights::Family;

/// Of rows g and g + 8, each of two columns: the first operand of m16n8k16.
struct TileOperand {
  uint32_t of[4];
};

/// Inputs of columns that follow each other, a lane's four.
__device__ __forceinline__ void load_neighbours(const uint16_t* x, int32_t t, uint32_t (&b)[2]) {
  const uint2 four = *reinterpret_cast<const uint2*>(x + 4 * t);
  b[0] = four.x;
  b[1] = four.y;
}

template <Family kFamily, int32_t kQuarters>
struct TileCode {
  static constexpr weights::Code kCode{kFamily, kQuarters};
  static constexpr int32_t kDims = kCode.dims();
  static constexpr int32_t kSteps = 4 / kDims;      // of a run
  static constexpr int32_t kWords = 2 * kQuarters;  // of a tile
  static constexpr uint32_t kWindow = kCode.window_bits() == 32 ? ~0U : (1U << kCode.window_bits()) - 1U;
  static_assert(kCode.first_bit(kSteps - 1) + kCode.window_bits() <= 32);

  /// What a code's index stands for, as halves: a pair of them if steps have two dimensions.
  using Level = std::conditional_t<kDims == 2, uint32_t, uint16_t>;
  static __device__ __forceinline__ Level level(const LinearSegment& segment, int32_t index) {
    const auto half = [&](int32_t i) {
      return static_cast<uint32_t>(__half_as_ushort(__int2half_rn(segment.levels[i])));
    };
    if constexpr (kDims == 2) {
      return half(2 * index) | half(2 * index + 1) << 16U;
    } else {
      return static_cast<uint16_t>(half(index));
    }
  }

  /// Runs are in the order of their places in the stream.
  static __device__ __forceinline__ int32_t run_of(int32_t row, int32_t t) {
    return kDims == 2 ? t / 2 * 32 + 2 * row + t % 2 : 16 * t + row;
  }

  static __device__ __forceinline__ uint32_t load_run(const uint32_t* tile, int32_t run) {
    const int32_t bit = run * kQuarters;
    const int32_t word = bit / 32;
    const int32_t next = word + 1 < kWords ? word + 1 : 0;
    return __funnelshift_r(__ldg(tile + word), __ldg(tile + next), static_cast<uint32_t>(bit % 32));
  }

  /// Of step i of a run.
  static __device__ __forceinline__ uint32_t decode_step(uint32_t run, int32_t i, const Level* levels,
                                                         const LinearSegment& segment) {
    const uint32_t window = run >> static_cast<uint32_t>(weights::Code{kFamily, kQuarters}.first_bit(i));
    if constexpr (kCode.is_trellis()) {
      const uint32_t u = window * (window + segment.addend);
      const uint32_t mask = (1U << static_cast<uint32_t>(segment.index_bits)) - 1U;
      return levels[u >> static_cast<uint32_t>(15 - segment.index_bits) & mask] ^ (u & 0x8000U);
    } else {
      return levels[window & kWindow];
    }
  }

  static __device__ __forceinline__ TileOperand decode(const uint8_t* tile, int32_t g, int32_t t, const Level* levels,
                                                       const LinearSegment& segment) {
    TileOperand operand;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const uint32_t run = load_run(reinterpret_cast<const uint32_t*>(tile), run_of(g + 8 * i, t));
      uint32_t steps[kSteps];
#pragma unroll
      for (int32_t k = 0; k < kSteps; ++k) steps[k] = decode_step(run, k, levels, segment);
      if constexpr (kDims == 2) {
        operand.of[i] = steps[0];
        operand.of[2 + i] = steps[1];
      } else {
        operand.of[i] = steps[0] | steps[1] << 16U;
        operand.of[2 + i] = steps[2] | steps[3] << 16U;
      }
    }
    return operand;
  }

  /// The inputs of a tile that meet these.
  static __device__ __forceinline__ void load_inputs(const uint16_t* x, int32_t t, uint32_t (&b)[2]) {
    if constexpr (kDims == 2) {
      const uint16_t* from = x + t / 2 * 8 + t % 2 * 2;
      const uint32_t first = *reinterpret_cast<const uint32_t*>(from);
      const uint32_t second = *reinterpret_cast<const uint32_t*>(from + 4);
      b[0] = low_halves(first, second);
      b[1] = high_halves(first, second);
    } else {
      load_neighbours(x, t, b);
    }
  }
};

/// Weights that are halves, [16 columns][16 rows] a tile.
template <int32_t kQuarters>
struct TileCode<Family::kFloat16, kQuarters> {
  static constexpr weights::Code kCode{Family::kFloat16, kQuarters};
  using Level = uint16_t;
  static __device__ __forceinline__ Level level(const LinearSegment& /*segment*/, int32_t /*index*/) { return 0; }

  static __device__ __forceinline__ TileOperand decode(const uint8_t* tile, int32_t g, int32_t t,
                                                       const Level* /*levels*/, const LinearSegment& /*segment*/) {
    const auto* halves = reinterpret_cast<const uint16_t*>(tile);
    const auto at = [&](int32_t row, int32_t column) {
      return static_cast<uint32_t>(__ldg(halves + column * weights::kTileRows + row));
    };
    TileOperand operand;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
#pragma unroll
      for (int32_t k = 0; k < 2; ++k) {
        const int32_t column = 4 * t + 2 * k;
        operand.of[2 * k + i] = at(g + 8 * i, column) | at(g + 8 * i, column + 1) << 16U;
      }
    }
    return operand;
  }

  static __device__ __forceinline__ void load_inputs(const uint16_t* x, int32_t t, uint32_t (&b)[2]) {
    load_neighbours(x, t, b);
  }
};

}  // namespace kvq::cuda
