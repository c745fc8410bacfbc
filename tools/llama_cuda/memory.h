#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "llama/device.h"

namespace llama::cuda {

/// An Error with the call's name and CUDA's own text unless `status` is success.
void check(cudaError_t status, const char* call);
void check(cublasStatus_t status, const char* call);

struct FreeDeviceMemory {
  void operator()(void* memory) const;
};
using DeviceMemory = std::unique_ptr<void, FreeDeviceMemory>;

/// Memory of the current device. Freeing it waits for the work that was issued before.
DeviceMemory allocate_device(size_t bytes);

/// `n` numbers in memory of the current device.
Array device_array(size_t n);

/// `n` numbers in page-locked host memory.
Array host_array(size_t n);

}  // namespace llama::cuda
