#pragma once

#include "core/error.h"

#include <cuda_runtime_api.h>

#include <cstdio>

namespace kvq::cuda {

/// Throw KVQ_E_BACKEND (KVQ_E_MEMORY when memory is out) with CUDA's own text unless `status` is success.
inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a failed call is reported once, here
  char message[sizeof(kvq_error::message)];
  std::snprintf(message, sizeof(message), "%s: %s (%s)", call, cudaGetErrorString(status), cudaGetErrorName(status));
  throw Error(status == cudaErrorMemoryAllocation ? KVQ_E_MEMORY : KVQ_E_BACKEND, static_cast<int32_t>(status),
              message);
}

}  // namespace kvq::cuda
