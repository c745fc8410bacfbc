// The parts of CUB that the kernels use, on the host.
#pragma once

#include <driver_types.h>

#include <algorithm>
#include <cstddef>

namespace cub {

template <typename Key>
class DoubleBuffer {
 public:
  DoubleBuffer(Key* current, Key* /*alternate*/) : current_(current) {}
  Key* Current() const { return current_; }

 private:
  Key* current_;
};

struct DeviceRadixSort {
  /// Sorts by bits [begin, end); without `scratch`, returns the bytes it needs.
  template <typename Key>
  static cudaError_t SortKeys(void* scratch, size_t& bytes, const DoubleBuffer<Key>& keys, int n, int begin, int end,
                              cudaStream_t /*stream*/ = nullptr) {
    bytes = std::max<size_t>(bytes, 1);
    if (scratch == nullptr) return cudaSuccess;
    constexpr int kBits = 8 * sizeof(Key);
    const auto part = [=](Key key) { return static_cast<Key>(key << (kBits - end)) >> (kBits - end + begin); };
    std::stable_sort(keys.Current(), keys.Current() + n, [part](Key a, Key b) { return part(a) < part(b); });
    return cudaSuccess;
  }
};

}  // namespace cub
