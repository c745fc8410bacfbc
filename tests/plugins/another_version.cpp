// A plug-in and a module of the model runner of another version; their functions must not be called.
#include "backend/plugin.h"
#include "llama/cuda_module.h"

namespace {

constexpr kvq::BackendPlugin kPlugin{sizeof(kvq::BackendPlugin), "kvq 99.0.0 plug-in 98", nullptr, nullptr};

constexpr llama::CudaModule kModule{"kvq 99.0.0 model runner 98", nullptr};

}  // namespace

extern "C" __attribute__((visibility("default"))) const kvq::BackendPlugin* kvq_cuda_plugin() { return &kPlugin; }
extern "C" __attribute__((visibility("default"))) const llama::CudaModule* kvq_llama_cuda_module() { return &kModule; }
