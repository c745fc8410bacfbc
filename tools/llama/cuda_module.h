#pragma once

#include <filesystem>

#include "device.h"

namespace llama {

/// Changes with anything that both sides of the module must agree on: device.h and what it includes.
#define KVQ_LLAMA_MODULE_ABI "kvq " KVQ_VERSION_STRING " model runner 5"

/// What libkvq_llama_cuda.so, the runner's GPU half, provides. It is a library of its own, opened on request, because
/// it needs cuBLAS: without it everything else has to run as well. The first member never changes.
struct CudaModule {
  const char* abi;  // KVQ_LLAMA_MODULE_ABI of its build
  std::unique_ptr<Device> (*make_device)(int32_t index);
};

/// The one function that it exports.
using CudaModuleEntry = const CudaModule* (*)();
inline constexpr char kCudaModuleEntry[] = "kvq_llama_cuda_module";

/// Open a module for good. An Error with the loader's reason, such as a library that is missing, if it cannot be used.
/// \param path  as open_library understands it.
const CudaModule& load_cuda_module(const std::filesystem::path& path);

/// A GPU for a model: with the module beside libkvq or beside the program, else where the loader searches. An Error
/// with the reason if there is no such GPU or no module.
std::unique_ptr<Device> make_cuda_device(int32_t index);

}  // namespace llama
