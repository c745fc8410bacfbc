// Rotation by positions of several streams (M-RoPE). It comes before a call, which then takes heads as rotated: pages,
// masks and windows know one position a token.
#pragma once

#include "core/head_strides.h"
#include "core/rope.h"

#include <cstddef>

namespace kvq {

/// Tensors of a call that are rotated, or only converted.
enum class StreamTensor { kKeys, kValues, kQueries };
inline constexpr size_t kStreamTensors = 3;

struct StreamRotation {
  StreamTensor tensor;
  const void* x = nullptr;  // [n, heads] rows of `channels`
  HeadStrides strides{};
  kvq_dtype dtype = KVQ_F32;
  int32_t n = 0;
  int32_t heads = 0;
  int32_t channels = 0;
  const Rope* rope = nullptr;          // null: nothing is rotated
  int32_t rope_channel = 0;            // where the channels begin that the rope knows
  const int32_t* positions = nullptr;  // [n, kRopeStreams], in the device's memory
  bool recorded = false;               // as AttendBatch::recorded

  size_t floats() const { return static_cast<size_t>(n) * static_cast<size_t>(heads) * static_cast<size_t>(channels); }
};

}  // namespace kvq
