#pragma once

#include "core/memory.h"

#include <cstddef>

namespace kvq {

/// Cuts arrays off a block of memory, each aligned for vectors; without a block it only counts.
class MemoryCutter {
 public:
  /// `block` is aligned to kDataAlignment, or null.
  explicit MemoryCutter(std::byte* block) : block_(block) {}

  template <typename T>
  T* take(size_t n) {
    std::byte* array = block_ != nullptr ? block_ + used_ : nullptr;
    used_ += (n * sizeof(T) + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
    return reinterpret_cast<T*>(array);
  }

  size_t used() const { return used_; }

 private:
  std::byte* block_;
  size_t used_ = 0;
};

}  // namespace kvq
