#pragma once

#include "core/sizes.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace kvq {

/// Sizes of a dense tensor, the outermost first.
class TensorShape {
 public:
  static constexpr size_t kMaxRank = 8;

  TensorShape() = default;
  TensorShape(std::initializer_list<int64_t> sizes) {
    for (const int64_t size : sizes) append(size);
  }

  std::span<const int64_t> sizes() const { return {sizes_.data(), rank_}; }
  /// Throws KVQ_E_LIMIT if these are more than a size_t counts.
  size_t elements() const {
    size_t count = 1;
    for (const int64_t each : sizes()) count = size(count, each);
    return count;
  }
  /// False beyond the largest rank.
  bool append(int64_t size) {
    if (rank_ == kMaxRank) return false;
    sizes_[rank_++] = size;
    return true;
  }
  bool operator==(const TensorShape&) const = default;

 private:
  std::array<int64_t, kMaxRank> sizes_{};  // 0 beyond the rank
  size_t rank_ = 0;
};

}  // namespace kvq
