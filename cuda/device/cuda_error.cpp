#include "device/cuda_error.h"

#include "core/error.h"

#include <cstdio>

namespace kvq::cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a failed call is reported once, here
  char message[sizeof(kvq_error::message)];
  std::snprintf(message, sizeof(message), "%s: %s (%s)", call, cudaGetErrorString(status), cudaGetErrorName(status));
  throw Error(status == cudaErrorMemoryAllocation ? KVQ_E_MEMORY : KVQ_E_BACKEND, static_cast<int32_t>(status),
              message);
}

DeviceGuard::DeviceGuard(int device) {
  check(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ != device) check(cudaSetDevice(device), "cudaSetDevice");
}

DeviceGuard::~DeviceGuard() { cudaSetDevice(previous_); }

}  // namespace kvq::cuda
