// Channels of a KV head. Also compiled as device code.
#pragma once

#include "formats/side_format.h"

namespace kvq {

/// Channels of the sides of pages, multiples of 8.
struct HeadShape {
  int32_t keys = 0;
  int32_t values = 0;
  bool is_latent = false;  // a key is its value, stored once, followed by `keys` channels

  constexpr HeadShape() = default;
  KVQ_HOST_DEVICE constexpr HeadShape(int32_t both) : keys(both), values(both) {}
  KVQ_HOST_DEVICE constexpr HeadShape(int32_t of_keys, int32_t of_values) : keys(of_keys), values(of_values) {}
  static constexpr HeadShape latent(int32_t of_keys, int32_t of_values) {
    HeadShape shape(of_keys - of_values, of_values);
    shape.is_latent = true;
    return shape;
  }

  KVQ_HOST_DEVICE constexpr int32_t of(Side side) const { return side == Side::kKeys ? keys : values; }
  /// Channels of a key or query as callers give it.
  constexpr int32_t whole_key() const { return is_latent ? values + keys : keys; }
  /// Channels of these before those of the key side.
  constexpr int32_t before_keys() const { return is_latent ? values : 0; }
  constexpr bool is_equal() const { return keys == values && !is_latent; }
  KVQ_HOST_DEVICE constexpr int32_t largest() const { return keys > values ? keys : values; }
  constexpr int32_t sum() const { return keys + values; }

  constexpr bool operator==(const HeadShape&) const = default;
};

}  // namespace kvq
