#include "cuda_device.h"
#include "llama/cuda_module.h"

namespace llama::cuda {
namespace {

constexpr CudaModule kModule{KVQ_LLAMA_MODULE_ABI, make_device};

}  // namespace
}  // namespace llama::cuda

extern "C" __attribute__((visibility("default"))) const llama::CudaModule* kvq_llama_cuda_module() {
  return &llama::cuda::kModule;
}
