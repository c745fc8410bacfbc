#pragma once

#include "core/memory.h"

#include <cstddef>
#include <cstdint>

namespace kvq {

/// Bytes aligned for page data, unlike those of a Vector.
class AlignedBytes {
 public:
  explicit AlignedBytes(Allocator& allocator) : bytes_(allocator) {}

  /// Resize; new bytes are zeros. Invalidates data().
  void resize(size_t bytes) {
    bytes_.reserve(bytes_of(bytes));  // exact, since bytes are counted
    bytes_.resize(bytes_of(bytes));
  }
  /// Bytes allocated for `bytes`.
  static constexpr size_t bytes_of(size_t bytes) { return bytes + kDataAlignment; }
  bool empty() const { return bytes_.empty(); }
  std::byte* data() { return bytes_.data() + offset(); }
  const std::byte* data() const { return bytes_.data() + offset(); }

 private:
  size_t offset() const { return -reinterpret_cast<uintptr_t>(bytes_.data()) & (kDataAlignment - 1); }

  Vector<std::byte> bytes_;
};

}  // namespace kvq
