#pragma once

#include <cuda_runtime_api.h>

namespace kvq::cuda {

/// Throw KVQ_E_BACKEND (KVQ_E_MEMORY when memory is out) with CUDA's own text unless `status` is success.
void check(cudaError_t status, const char* call);

/// Makes a device current for the calling thread, and the caller's again at the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace kvq::cuda
