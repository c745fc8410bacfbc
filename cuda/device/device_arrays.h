// Arrays in device memory that are made together.
#pragma once

#include "core/memory.h"

#include <cstddef>
#include <utility>

namespace kvq::cuda {

class CudaBackend;

/// Arrays one behind the other. Made and filled during a call of the backend.
class DeviceArrays {
 public:
  template <typename... Arrays>
  static size_t bytes_for(const Arrays&... arrays) {
    return (padded(arrays.size() * sizeof(arrays[0])) + ... + 0);
  }

  /// What `n` numbers need, beside other arrays.
  template <typename Number>
  static size_t bytes_for_room(size_t n) {
    return padded(n * sizeof(Number));
  }

  DeviceArrays(CudaBackend& backend, Allocator& account, size_t bytes);
  DeviceArrays(DeviceArrays&& other) noexcept;
  DeviceArrays& operator=(DeviceArrays&& other) = delete;
  ~DeviceArrays();

  /// Room for `n` numbers at the next place.
  template <typename Number>
  Number* take(size_t n) {
    return reinterpret_cast<Number*>(take_bytes(n * sizeof(Number)));
  }
  /// Copy an array to the next place; null if it is empty.
  template <typename Array>
  auto put(const Array& array) -> decltype(array.data()) {
    return static_cast<decltype(array.data())>(put_bytes(array.data(), array.size() * sizeof(array[0])));
  }

 private:
  static constexpr size_t padded(size_t bytes) { return (bytes + 255) / 256 * 256; }
  std::byte* take_bytes(size_t bytes) { return std::exchange(next_, next_ + padded(bytes)); }
  const void* put_bytes(const void* host, size_t bytes);

  CudaBackend& backend_;
  Allocator& account_;
  std::byte* memory_;
  size_t bytes_;
  std::byte* next_;
};

}  // namespace kvq::cuda
