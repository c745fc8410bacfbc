#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace llama::cuda {

/// An Error with the call's name and CUDA's own text unless `status` is success.
void check(cudaError_t status, const char* call);
void check(cublasStatus_t status, const char* call);

}  // namespace llama::cuda
