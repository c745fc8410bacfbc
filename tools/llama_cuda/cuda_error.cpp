#include "cuda_error.h"

#include <string>

#include "llama/error.h"

namespace llama::cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a failed call is reported once, here
  throw Error(std::string(call) + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(std::string(call) + ": " + cublasLtGetStatusString(status));
}

}  // namespace llama::cuda
