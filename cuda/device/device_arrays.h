// Device memory and who owns it.
#pragma once

#include "core/memory.h"
#include "device/device.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

namespace kvq::cuda {

/// A block of device memory.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  /// 0 bytes: no memory.
  DeviceBlock(Device& device, Allocator& account, size_t bytes)
      : device_(&device),
        account_(&account),
        memory_(bytes > 0 ? static_cast<std::byte*>(device.allocate(account, bytes)) : nullptr),
        bytes_(bytes) {}
  DeviceBlock(DeviceBlock&& other) noexcept { swap(other); }
  DeviceBlock& operator=(DeviceBlock&& other) noexcept {
    DeviceBlock(std::move(other)).swap(*this);
    return *this;
  }
  ~DeviceBlock() {
    if (memory_ != nullptr) device_->release(*account_, memory_, bytes_);
  }

  std::byte* memory() const { return memory_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(DeviceBlock& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(account_, other.account_);
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
  }

  Device* device_ = nullptr;
  Allocator* account_ = nullptr;
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
};

/// Numbers in device memory. Created, filled and read during a Call.
template <typename Number>
class DeviceArray {
 public:
  DeviceArray(Device& device, Allocator& account, size_t n)
      : block_(device, account, std::max<size_t>(n, 1) * sizeof(Number)), n_(n) {}

  size_t size() const { return n_; }
  Number* data() const { return reinterpret_cast<Number*>(block_.memory()); }
  Number* from(size_t first) const { return data() + first; }

 private:
  DeviceBlock block_;
  size_t n_;
};

template <typename Number>
void upload(const Call& call, std::span<const Number> from, Number* to) {
  if (from.empty()) return;
  call.require(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, call.stream()),
               "cudaMemcpyAsync");
}

/// Waits for the device.
template <typename Number>
void download(const Call& call, const Number* from, std::span<Number> to) {
  if (!to.empty()) {
    call.require(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, call.stream()),
                 "cudaMemcpyAsync");
  }
  call.require(cudaStreamSynchronize(call.stream()), "cudaStreamSynchronize");
}

/// Arrays one behind the other. Created and filled during a Call.
class DeviceArrays {
 public:
  template <typename... Arrays>
  static size_t bytes_for(const Arrays&... arrays) {
    return (padded(arrays.size() * sizeof(arrays[0])) + ... + 0);
  }

  /// Bytes of `n` numbers, beside other arrays.
  template <typename Number>
  static size_t bytes_for_room(size_t n) {
    return padded(n * sizeof(Number));
  }

  DeviceArrays(Device& device, Allocator& account, size_t bytes)
      : device_(device), block_(device, account, bytes), next_(block_.memory()) {}

  /// Room for `n` numbers at the next place.
  template <typename Number>
  Number* take(size_t n) {
    return reinterpret_cast<Number*>(take_bytes(n * sizeof(Number)));
  }
  /// Copies an array to the next place; null if it is empty.
  template <typename Array>
  auto put(const Array& array) -> decltype(array.data()) {
    return static_cast<decltype(array.data())>(put_bytes(array.data(), array.size() * sizeof(array[0])));
  }

 private:
  static constexpr size_t padded(size_t bytes) { return (bytes + 255) / 256 * 256; }
  std::byte* take_bytes(size_t bytes) { return std::exchange(next_, next_ + padded(bytes)); }
  const void* put_bytes(const void* host, size_t bytes);

  Device& device_;
  DeviceBlock block_;
  std::byte* next_;
};

/// Grows blocks that are kept from call to call. Keeps outgrown blocks that a CUDA graph may know.
class BlockGrowth {
 public:
  /// \param call  function that needs the memory, for messages; kept.
  BlockGrowth(Device& device, Allocator& allocator, const char* call)
      : device_(device), allocator_(allocator), call_(call), outgrown_(allocator) {}

  Device& device() const { return device_; }
  Allocator& allocator() const { return allocator_; }
  /// Grows a block to at least `bytes`, zeroed if asked. Throws if `recorded` and memory would be needed.
  void grow(DeviceBlock& block, size_t bytes, bool zeroed, bool recorded);
  /// Notes that a graph may know all blocks.
  void keep() { in_graphs_ = true; }

 private:
  Device& device_;
  Allocator& allocator_;
  const char* call_;
  bool in_graphs_ = false;
  Vector<DeviceBlock> outgrown_;  // that a graph may know
};

}  // namespace kvq::cuda
