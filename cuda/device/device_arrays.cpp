#include "device/device_arrays.h"

#include "cuda_backend.h"
#include "device/cuda_error.h"

namespace kvq::cuda {

DeviceArrays::DeviceArrays(CudaBackend& backend, Allocator& account, size_t bytes)
    : backend_(backend),
      account_(account),
      memory_(bytes > 0 ? static_cast<std::byte*>(backend.allocate_device(account, bytes)) : nullptr),
      bytes_(bytes),
      next_(memory_) {}

DeviceArrays::DeviceArrays(DeviceArrays&& other) noexcept
    : backend_(other.backend_),
      account_(other.account_),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(other.bytes_),
      next_(other.next_) {}

DeviceArrays::~DeviceArrays() { backend_.release_device(account_, memory_, bytes_); }

const void* DeviceArrays::put_bytes(const void* host, size_t bytes) {
  if (bytes == 0) return nullptr;
  std::byte* to = take_bytes(bytes);
  // Returns once the array may change: it is not page-locked.
  check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, backend_.stream()), "cudaMemcpyAsync");
  return to;
}

}  // namespace kvq::cuda
