#include "backend/plugin_loader.h"

#include "core/error.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

namespace kvq {
namespace {

constexpr char kFileName[] = "libkvq_cuda.so";

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

struct Close {
  void operator()(void* handle) const noexcept { dlclose(handle); }
};
using Handle = std::unique_ptr<void, Close>;

Handle open(const char* path) { return Handle(dlopen(path, RTLD_NOW | RTLD_LOCAL)); }

/// The loader's message without the path, which may be too long. A missing library that `path` needs is named.
const char* reason(const char* path) {
  const char* text = dlerror();
  if (text == nullptr) return "the loader gives no reason";
  const size_t length = std::strlen(path);
  if (std::strncmp(text, path, length) == 0 && std::strncmp(text + length, ": ", 2) == 0) return text + length + 2;
  return text;
}

const BackendPlugin& plugin_in(Handle handle, const char* path) {
  const auto entry = reinterpret_cast<BackendPluginEntry>(dlsym(handle.get(), kCudaPluginEntry));
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
  static_cast<void>(handle.release());
  return *plugin;
}

/// dlopen loads a library once and counts: opening it for every context is cheap, and no handle is kept.
const BackendPlugin& load(const char* path) {
  Handle handle = open(path);
  if (handle == nullptr) {
    fail(KVQ_E_UNSUPPORTED, "cannot load the plug-in %s: %s", ShortPath(path).text, reason(path));
  }
  return plugin_in(std::move(handle), path);
}

/// Detects a static program: dlopen would bring second C and C++ runtimes, and memory and exceptions would cross
/// between them and the program's own.
bool is_static_program() {
  bool has_loader = false;
  dl_iterate_phdr(
      [](dl_phdr_info* program, size_t /*size*/, void* found) {
        for (const auto& header : std::span(program->dlpi_phdr, program->dlpi_phnum)) {
          if (header.p_type == PT_INTERP) *static_cast<bool*>(found) = true;
        }
        return 1;  // the rest are libraries
      },
      &has_loader);
  return !has_loader;
}

/// Folder of the library or program that holds this function; false if unknown.
bool own_folder(char (&folder)[PATH_MAX]) {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return false;
  // For a program the loader reports argv[0], which need not be a path, or may be relative to a folder the program has
  // left.
  const bool is_program =
      std::strchr(info.dli_fname, '/') == nullptr || std::strcmp(info.dli_fname, program_invocation_name) == 0;
  if (is_program) {
    const ssize_t length = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    if (length <= 0) return false;
    folder[length] = '\0';
  } else {
    const int length = std::snprintf(folder, sizeof(folder), "%s", info.dli_fname);
    if (length < 0 || static_cast<size_t>(length) >= sizeof(folder)) return false;
  }
  char* slash = std::strrchr(folder, '/');
  if (slash == nullptr) return false;
  *slash = '\0';
  return true;
}

}  // namespace

const BackendPlugin& load_cuda_plugin(const char* path) {
  if (path != nullptr && path[0] == '\0') fail(KVQ_E_ARGUMENT, "plugin is empty: give a path or NULL");
  if (is_static_program()) {
    fail(KVQ_E_UNSUPPORTED, "this program is linked statically and cannot load the plug-in %s: link it dynamically",
         ShortPath(path != nullptr ? path : kFileName).text);
  }
  if (path != nullptr) return load(path);

  char folder[PATH_MAX];
  const bool has_folder = own_folder(folder);
  char beside[PATH_MAX + sizeof(kFileName)];
  std::snprintf(beside, sizeof(beside), "%s/%s", has_folder ? folder : "", kFileName);
  if (has_folder && access(beside, F_OK) == 0) return load(beside);

  Handle handle = open(kFileName);
  if (handle == nullptr) {
    fail(KVQ_E_UNSUPPORTED, "no CUDA plug-in: there is no %s in %s, and the loader says: %s", kFileName,
         has_folder ? ShortPath(folder).text : "an unknown folder", reason(kFileName));
  }
  return plugin_in(std::move(handle), kFileName);
}

}  // namespace kvq
