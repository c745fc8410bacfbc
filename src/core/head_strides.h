#pragma once

#include <cstddef>
#include <cstdint>

namespace kvq {

/// Strides of the heads of a caller's tokens, in elements.
struct HeadStrides {
  int64_t token;
  int64_t head;

  static constexpr HeadStrides dense(int32_t heads, int32_t head_dim) { return {int64_t{heads} * head_dim, head_dim}; }
  /// First element of a head.
  constexpr size_t at(size_t of_token, size_t of_head) const {
    return of_token * static_cast<size_t>(token) + of_head * static_cast<size_t>(head);
  }
};

}  // namespace kvq
