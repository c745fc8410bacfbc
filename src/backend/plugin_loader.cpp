#include "backend/plugin_loader.h"

#include "core/error.h"
#include "core/system.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

namespace kvq {
namespace {

/// The end of a path, with the file name, cut to leave room for the reason in a message.
struct ShortPath {
  explicit ShortPath(const char* path) {
    const size_t length = std::strlen(path);
    const size_t kept = std::min(length, sizeof(text) - 1);
    std::memcpy(text, path + length - kept, kept);
    text[kept] = '\0';
    if (kept < length) std::memcpy(text, "...", 3);
  }
  char text[104];
};

const BackendPlugin& plugin_in(LoadedLibrary library, const char* path) {
  const auto entry = reinterpret_cast<BackendPluginEntry>(find_function(library, kCudaPluginEntry));
  const BackendPlugin* plugin = entry != nullptr ? entry() : nullptr;
  if (plugin == nullptr || plugin->abi == nullptr) {
    fail(KVQ_E_UNSUPPORTED, "%s is not a kvq plug-in: %s", ShortPath(path).text,
         entry != nullptr ? "kvq_cuda_plugin returns NULL" : "it has no function kvq_cuda_plugin");
  }
  if (std::strcmp(plugin->abi, KVQ_PLUGIN_ABI) != 0 || plugin->struct_size != sizeof(BackendPlugin)) {
    fail(KVQ_E_UNSUPPORTED, "%s is of another version: it is \"%.64s\", this library needs \"%s\"",
         ShortPath(path).text, plugin->abi, KVQ_PLUGIN_ABI);
  }
  // Stays loaded: the CUDA runtime inside has threads and exit handlers, which unloading would leave without code.
  static_cast<void>(library.release());
  return *plugin;
}

const BackendPlugin& load(const char* path) {
  LoadedLibrary library = open_library(path);
  if (library == nullptr) {
    fail(KVQ_E_UNSUPPORTED, "cannot load the plug-in %s: %s", ShortPath(path).text, why_not_opened(path));
  }
  return plugin_in(std::move(library), path);
}

}  // namespace

const BackendPlugin& load_cuda_plugin(const char* path) {
  if (path != nullptr && path[0] == '\0') fail(KVQ_E_ARGUMENT, "plugin is empty: give a path or NULL");
  if (!can_open_libraries()) {
    fail(KVQ_E_UNSUPPORTED, "this program is linked statically and cannot load the plug-in %s: link it dynamically",
         ShortPath(path != nullptr ? path : kCudaPluginFile).text);
  }
  if (path != nullptr) return load(path);

  char folder[kMaxPath];
  const bool has_folder = find_own_folder(folder);
  char beside[kMaxPath + 32];
  std::snprintf(beside, sizeof(beside), "%s/%s", has_folder ? folder : "", kCudaPluginFile);
  if (has_folder && is_file(beside)) return load(beside);

  LoadedLibrary library = open_library(kCudaPluginFile);
  if (library == nullptr) {
    fail(KVQ_E_UNSUPPORTED, "no CUDA plug-in: there is no %s in %s, and the loader says: %s", kCudaPluginFile,
         has_folder ? ShortPath(folder).text : "an unknown folder", why_not_opened(kCudaPluginFile));
  }
  return plugin_in(std::move(library), kCudaPluginFile);
}

}  // namespace kvq
