#pragma once

#include "core/memory.h"

#include <cstddef>
#include <cstdint>

namespace kvq {

/// Memory that begins where page data may begin, which a Vector of bytes need not.
class AlignedBytes {
 public:
  explicit AlignedBytes(Allocator& allocator) : bytes_(allocator) {}

  /// What is new is zeros. Invalidates data().
  void resize(size_t bytes) {
    bytes_.reserve(bytes_of(bytes));  // no more than that: it is counted
    bytes_.resize(bytes_of(bytes));
  }
  /// What so many take.
  static constexpr size_t bytes_of(size_t bytes) { return bytes + kDataAlignment; }
  bool empty() const { return bytes_.empty(); }
  std::byte* data() { return bytes_.data() + offset(); }
  const std::byte* data() const { return bytes_.data() + offset(); }

 private:
  size_t offset() const { return -reinterpret_cast<uintptr_t>(bytes_.data()) & (kDataAlignment - 1); }

  Vector<std::byte> bytes_;
};

}  // namespace kvq
