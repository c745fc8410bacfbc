// Channels of queries as lanes read them.
#pragma once

#include "kernels/attend/attend.h"
#include "kernels/pages/geometry.cuh"

namespace kvq::cuda {

/// How RoPE turns a channel of the key side with another one.
struct Turn {
  bool turns = false;
  int32_t pair = 0;
  int32_t partner = 0;
  float sign = 0.0F;  // of the partner's sine
};

__device__ __forceinline__ Turn turn_of(const AttendArguments& arguments, int32_t channel) {
  const int32_t of_rope = channel - arguments.rotary_begin;
  if (of_rope < 0 || of_rope >= arguments.rotary_dim) return {};
  const int32_t half = arguments.rotary_dim / 2;
  const bool halves = arguments.rope_pairing == 1;
  const bool first = halves ? of_rope < half : of_rope % 2 == 0;
  const int32_t distance = halves ? half : 1;
  return {true, halves ? (first ? of_rope : of_rope - half) : of_rope / 2,
          first ? channel + distance : channel - distance, first ? -1.0F : 1.0F};
}

/// The sum of a warp's lanes, in all of them.
__device__ __forceinline__ float sum_of_lanes(float x) {
#pragma unroll
  for (int32_t d = 16; d > 0; d /= 2) x += __shfl_xor_sync(kAll, x, d);
  return x;
}

}  // namespace kvq::cuda
