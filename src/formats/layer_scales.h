// What a layer's keys and values are multiplied with before they are stored, and what undoes it.
#pragma once

#include "core/host_device.h"
#include "formats/head_shape.h"

#include <cstddef>
#include <cstdint>

namespace kvq {

// Limits of what is stored as scales. Any common factor of a head's scales means the same: the largest is at most 1, so
// that scaled numbers fit FP16 wherever given ones do.
inline constexpr float kLeastScale = 1.0F / 4096.0F;
inline constexpr float kMaxValueOffset = 1024.0F;

enum class ScaleArray : uint8_t {
  kKeys,     // factors of keys after RoPE
  kQueries,  // factors of queries after RoPE: 1 over those of keys
  kValues,   // factors of values, after the offsets have been subtracted
  kOutputs,  // factors of outputs: 1 over those of values
  kOffsets,  // added to outputs, times the share of attention that tokens get
};
inline constexpr int32_t kScaleArrays = 5;
inline constexpr int32_t kKeyArrays = 2;  // the first ones, with the channels of keys

/// Scales of one layer in a backend's memory, kHeader numbers and for each KV head its arrays; null: stored as given.
/// Pages of every format, FP16 ones too, hold scaled numbers, so that only new tokens, queries and outputs meet scales.
struct LayerScales {
  static constexpr size_t kHeader = 4;  // the first: 1 if tokens become FP16 before they are scaled, else 0

  const float* numbers = nullptr;

  /// Numbers of a head before those of an array.
  KVQ_HOST_DEVICE static constexpr int32_t offset(int32_t array, const HeadShape& head) {
    return array <= kKeyArrays ? array * head.keys : kKeyArrays * head.keys + (array - kKeyArrays) * head.values;
  }
  static constexpr size_t floats(int32_t kv_heads, const HeadShape& head) {
    return kHeader + static_cast<size_t>(kv_heads) * static_cast<size_t>(offset(kScaleArrays, head));
  }
  KVQ_HOST_DEVICE explicit operator bool() const { return numbers != nullptr; }
  /// Whether tokens are scaled as FP16 numbers, like those that waited in pages until there were scales.
  KVQ_HOST_DEVICE bool rounds_first() const { return numbers != nullptr && numbers[0] != 0.0F; }
  KVQ_HOST_DEVICE const float* of(ScaleArray array, int32_t head, const HeadShape& shape) const {
    return numbers + kHeader + static_cast<ptrdiff_t>(head) * offset(kScaleArrays, shape) +
           offset(static_cast<int32_t>(array), shape);
  }
  /// Null without scales.
  KVQ_HOST_DEVICE const float* find(ScaleArray array, int32_t head, const HeadShape& shape) const {
    return numbers != nullptr ? of(array, head, shape) : nullptr;
  }
};

}  // namespace kvq
