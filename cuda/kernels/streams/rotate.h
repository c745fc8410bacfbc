// Rotation of heads by positions of several streams, before other kernels read them.
#pragma once

#include "core/head_strides.h"
#include "core/rope.h"
#include "kernels/device/rope.h"

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

struct StreamArguments {
  const void* x;  // [n, heads] rows of `channels`
  HeadStrides strides;
  int32_t dtype;  // kvq_dtype
  int32_t n;
  int32_t heads;
  int32_t channels;
  int32_t rope_channel;      // where the channels begin that `rope` knows
  const int32_t* positions;  // [n, kRopeStreams], device memory
  RopeSections sections;
  float* out;  // dense
  RopeArguments rope;
};

cudaError_t launch_rotate_streams(const StreamArguments& arguments, cudaStream_t stream);

}  // namespace kvq::cuda
