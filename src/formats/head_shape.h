// Channels of a KV head. Also compiled as device code.
#pragma once

#include "formats/side_format.h"

namespace kvq {

/// Multiples of 8.
struct HeadShape {
  int32_t keys = 0;
  int32_t values = 0;

  constexpr HeadShape() = default;
  KVQ_HOST_DEVICE constexpr HeadShape(int32_t both) : keys(both), values(both) {}
  KVQ_HOST_DEVICE constexpr HeadShape(int32_t of_keys, int32_t of_values) : keys(of_keys), values(of_values) {}

  KVQ_HOST_DEVICE constexpr int32_t of(Side side) const { return side == Side::kKeys ? keys : values; }
  constexpr bool is_equal() const { return keys == values; }
  constexpr int32_t largest() const { return keys > values ? keys : values; }
  constexpr int32_t sum() const { return keys + values; }

  constexpr bool operator==(const HeadShape&) const = default;
};

}  // namespace kvq
