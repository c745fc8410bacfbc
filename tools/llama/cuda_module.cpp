#include "cuda_module.h"

#include <dlfcn.h>

#include <cstring>
#include <system_error>

#include "error.h"
#include "kvq.hpp"

namespace llama {
namespace {

constexpr const char* kFileName = "libkvq_llama_cuda.so";

// What the loader says; it begins with the path unless another library is at fault.
std::string loader_reason(const std::string& path) {
  const char* text = dlerror();
  const std::string reason = text != nullptr ? text : "the loader gives no reason";
  const std::string prefix = path + ": ";
  return reason.starts_with(prefix) ? reason.substr(prefix.size()) : reason;
}

// Folders of libkvq, if it is a shared library, and of the program.
std::vector<std::filesystem::path> own_folders() {
  std::vector<std::filesystem::path> folders;
  Dl_info info;
  // The function's address as such may lie in the program, which calls it through a stub there.
  const void* function = dlsym(RTLD_DEFAULT, "kvq_api_version");
  if (function != nullptr && dladdr(function, &info) != 0 && info.dli_fname != nullptr) {
    folders.push_back(std::filesystem::path(info.dli_fname).parent_path());
  }
  std::error_code ignored;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  if (!program.empty()) folders.push_back(program.parent_path());
  return folders;
}

std::filesystem::path find_module() {
  for (const std::filesystem::path& folder : own_folders()) {
    std::error_code ignored;
    if (std::filesystem::exists(folder / kFileName, ignored)) return folder / kFileName;
  }
  return kFileName;
}

}  // namespace

const CudaModule& load_cuda_module(const std::filesystem::path& path) {
  const std::string text = path.string();
  void* handle = dlopen(text.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw Error("cannot load the model runner's GPU module, " + text + ": " + loader_reason(text));
  // The library stays open: its CUDA runtime has exit handlers, and arrays that it made are freed by it.
  const auto entry = reinterpret_cast<CudaModuleEntry>(dlsym(handle, kCudaModuleEntry));
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
