// Rows of floats in shared memory on their way to be queries or outputs. The code is short rather than fast: it runs
// once or twice, and instructions that run once come from memory.
#pragma once

#include "kernels/attend/units.cuh"
#include "kernels/device/hadamard.cuh"
#include "kernels/device/head_rotation.cuh"
#include "kernels/wide/wide.h"

namespace kvq::cuda {

struct FloatRows {
  float* numbers;
  int32_t stride;
  BlockMix mix;  // of the rows' channels

  __device__ __forceinline__ FloatRows(void* memory, int32_t dim, int32_t stride_of_rows)
      : numbers(static_cast<float*>(memory)), stride(stride_of_rows), mix(dim) {}

  __device__ __forceinline__ int32_t dim() const { return mix.head_dim(); }
  __device__ __forceinline__ float* row(int32_t i) const { return numbers + i * stride; }
};

/// Butterflies of a row at distances `half`, 2 · half, … by a warp.
template <int32_t kRadix>
__device__ __forceinline__ void turn_step(float* row, int32_t dim, int32_t half, const Lane& lane) {
  const int32_t shift = __ffs(half) - 1;
#pragma unroll 1
  for (int32_t i = lane.index; i < dim / kRadix; i += 32) {
    float* place = row + (i >> shift) * (kRadix << shift) + (i & (half - 1));
    transform_values<kRadix>(place, half);
  }
  __syncwarp();
}

/// A warp hands over the numbers of a row, rotated or, which is the same, rotated back if `turned`: calls `store` with
/// each channel and its number. Overwrites the row.
template <typename Store>
__device__ __forceinline__ void deliver_row(float* row, const BlockMix& mix, bool turned, const Lane& lane,
                                            const Store& store) {
  const int32_t dim = mix.head_dim();
  float norm = 1.0F;
  __syncwarp();
  if (turned) {
    int32_t done = 1;
#pragma unroll 1
    for (; 8 * done <= mix.width(); done *= 8) turn_step<8>(row, dim, done, lane);
#pragma unroll 1
    for (; 2 * done <= mix.width(); done *= 2) turn_step<2>(row, dim, done, lane);
    norm = rsqrtf(static_cast<float>(mix.width()));
  }
  if (turned && mix.mixes()) {
#pragma unroll 1
    for (int32_t channel = lane.index; channel < dim; channel += 32) {
      const int32_t to = channel / mix.width();
      const float* within = row + channel % mix.width();
      float x = 0.0F;
#pragma unroll 1
      for (int32_t from = 0; from < dim / mix.width(); ++from) {
        x = fmaf(mix.factor(to, from), within[from * mix.width()], x);
      }
      store(channel, x * norm);
    }
    return;
  }
#pragma unroll 4
  for (int32_t channel = lane.index; channel < dim; channel += 32) store(channel, row[channel] * norm);
}

/// Rotates a row in place, or rotates it back. `other`: memory for a row.
__device__ __forceinline__ void turn_row(float* row, float* other, const BlockMix& mix, const Lane& lane) {
  deliver_row(row, mix, true, lane, [other](int32_t channel, float x) { other[channel] = x; });
  __syncwarp();
  for (int32_t channel = lane.index; channel < mix.head_dim(); channel += 32) row[channel] = other[channel];
}

/// A warp writes a row of outputs, which are sums relative to `seen`, to the caller or, if `partials` is not null, to
/// the block's partial of kRows rows and kValues channels. `turned`: they are rotated.
template <int kRows, int kValues>
__device__ __forceinline__ void write_output_row(const AttendArguments& arguments, const Unit& unit, const Lane& lane,
                                                 int32_t row, const RowSum& seen, float* numbers, const BlockMix& mix,
                                                 bool turned, float* partials) {
  const bool partial = partials != nullptr;
  const RowPlace place = row_place(arguments, unit, row);
  const int64_t at = row_offset(arguments.out_strides, place);
  const LayerScales scales = scales_of(arguments, unit);
  float* outputs = partials + 2 * kRows + row * kValues;
  float factor = 1.0F;
  if (!partial) {
    factor = finish_row(arguments, place, seen, lane.index == 0);
  } else if (lane.index == 0) {
    reinterpret_cast<float2*>(partials)[row] = {seen.maximum, seen.sum};
  }
  deliver_row(numbers, mix, turned, lane, [&](int32_t channel, float x) {
    if (partial) {
      outputs[channel] = x;
      return;
    }
    float output = x * factor;
    if (scales) output = unscale_output(scales, unit.head, arguments.head, channel, output, factor * seen.sum);
    write_float(arguments.out, arguments.out_dtype, at + channel, output);
  });
}

}  // namespace kvq::cuda
