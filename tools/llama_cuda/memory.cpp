#include "memory.h"

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

void FreeDeviceMemory::operator()(void* memory) const { cudaFree(memory); }

DeviceMemory allocate_device(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status != cudaSuccess) check(status, ("cudaMalloc of " + std::to_string(bytes) + " bytes").c_str());
  return DeviceMemory(memory);
}

Array device_array(size_t n) {
  DeviceMemory memory = allocate_device(n * sizeof(float));
  auto* numbers = static_cast<float*>(memory.release());
  return {std::shared_ptr<float>(numbers, FreeDeviceMemory()), n};
}

Array host_array(size_t n) {
  const size_t bytes = n * sizeof(float);
  void* memory = nullptr;
  const cudaError_t status = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
  if (status != cudaSuccess) check(status, ("cudaHostAlloc of " + std::to_string(bytes) + " bytes").c_str());
  return {std::shared_ptr<float>(static_cast<float*>(memory), [](float* numbers) { cudaFreeHost(numbers); }), n};
}

}  // namespace llama::cuda
