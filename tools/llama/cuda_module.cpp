#include "cuda_module.h"

#include <cstring>
#include <system_error>

#include "error.h"
#include "kvq.hpp"
#include "system.h"

namespace llama {
namespace {

std::filesystem::path find_module() {
  for (const std::filesystem::path& folder : own_folders()) {
    std::error_code ignored;
    if (std::filesystem::exists(folder / kCudaModuleFile, ignored)) return folder / kCudaModuleFile;
  }
  return kCudaModuleFile;
}

}  // namespace

const CudaModule& load_cuda_module(const std::filesystem::path& path) {
  const std::string text = path.string();
  std::string reason;
  void* library = open_library(text, reason);
  if (library == nullptr) throw Error("cannot load the model runner's GPU module, " + text + ": " + reason);
  // The library stays open: its CUDA runtime has exit handlers, and arrays that it made are freed by it.
  const auto entry = reinterpret_cast<CudaModuleEntry>(find_function(library, kCudaModuleEntry));
  const CudaModule* module = entry != nullptr ? entry() : nullptr;
  if (module == nullptr || module->abi == nullptr) {
    throw Error(text + " is not the model runner's GPU module: it has no function " + kCudaModuleEntry);
  }
  if (std::strcmp(module->abi, KVQ_LLAMA_MODULE_ABI) != 0) {
    throw Error(text + " is of another version: it is \"" + module->abi + "\", this program needs \"" +
                KVQ_LLAMA_MODULE_ABI + "\"");
  }
  return *module;
}

std::unique_ptr<Device> make_cuda_device(int32_t index) {
  kvq::device_describe(KVQ_DEVICE_CUDA, index);  // first: the lack of a GPU says more than that of a library for it
  return load_cuda_module(find_module()).make_device(index);
}

}  // namespace llama
