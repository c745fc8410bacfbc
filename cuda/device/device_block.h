#pragma once

#include "cuda_backend.h"

namespace kvq::cuda {

/// Device memory for as long as a call issues work.
class DeviceBlock {
 public:
  DeviceBlock(CudaBackend& backend, Allocator& account, size_t bytes)
      : backend_(backend), account_(account), memory_(backend.allocate_device(account, bytes)), bytes_(bytes) {}
  ~DeviceBlock() { backend_.release_device(account_, memory_, bytes_); }
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;

  std::byte* memory() const { return static_cast<std::byte*>(memory_); }

 private:
  CudaBackend& backend_;
  Allocator& account_;
  void* memory_;
  size_t bytes_;
};

}  // namespace kvq::cuda
