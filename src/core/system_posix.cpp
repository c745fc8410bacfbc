#include "core/system.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
#if defined(__linux__)
#include <link.h>
#endif

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <new>
#include <span>

namespace kvq {
namespace {

static_assert(kMaxPath >= PATH_MAX);

std::atomic<uint32_t> n_forks{0};

#if defined(__linux__) && !defined(__ANDROID__)

/// The C library reports argv[0] of a program, which need not be a path, or may be relative to a folder that the
/// program has left. True if `file` is that, whose place is then `path`, or empty.
bool find_program(const char* file, char (&path)[kMaxPath]) {
  if (std::strchr(file, '/') != nullptr && std::strcmp(file, program_invocation_name) != 0) return false;
  std::memset(path, 0, sizeof(path));  // readlink() does not end what it writes
  if (readlink("/proc/self/exe", path, sizeof(path) - 1) <= 0 || path[sizeof(path) - 2] != '\0') path[0] = '\0';
  return true;
}

#else

bool find_program(const char* /*file*/, char (&/*path*/)[kMaxPath]) { return false; }  // paths of programs are known

#endif

}  // namespace

uint32_t count_forks() {
  static const bool counting = [] {
    if (pthread_atfork(nullptr, nullptr, [] { ++n_forks; }) != 0) throw std::bad_alloc();
    return true;
  }();
  return counting ? n_forks.load() : 0;
}

const char* const kCudaPluginFile = "libkvq_cuda.so";

void CloseLibrary::operator()(void* library) const noexcept { dlclose(library); }

LoadedLibrary open_library(const char* path) { return LoadedLibrary(dlopen(path, RTLD_NOW | RTLD_LOCAL)); }

const char* why_not_opened(const char* path) {
  const char* text = dlerror();  // which names a missing library that `path` needs
  if (text == nullptr) return "the loader gives no reason";
  const size_t length = std::strlen(path);
  if (std::strncmp(text, path, length) == 0 && std::strncmp(text + length, ": ", 2) == 0) return text + length + 2;
  return text;
}

void* find_function(const LoadedLibrary& library, const char* name) { return dlsym(library.get(), name); }

#if defined(__linux__)

bool can_open_libraries() {
  bool has_loader = false;
  dl_iterate_phdr(
      [](dl_phdr_info* program, size_t /*size*/, void* found) {
        for (const auto& header : std::span(program->dlpi_phdr, program->dlpi_phnum)) {
          if (header.p_type == PT_INTERP) *static_cast<bool*>(found) = true;
        }
        return 1;  // the rest are libraries
      },
      &has_loader);
  return has_loader;
}

#else

bool can_open_libraries() { return true; }  // there are no static programs

#endif

bool find_own_folder(char (&folder)[kMaxPath]) {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&find_own_folder), &info) == 0 || info.dli_fname == nullptr) return false;
  if (!find_program(info.dli_fname, folder)) {
    const int length = std::snprintf(folder, sizeof(folder), "%s", info.dli_fname);
    if (length < 0 || static_cast<size_t>(length) >= sizeof(folder)) return false;
  }
  char* slash = std::strrchr(folder, '/');
  if (slash == nullptr) return false;
  *slash = '\0';
  return true;
}

bool is_file(const char* path) { return access(path, F_OK) == 0; }

void sleep_while(const std::atomic<int32_t>& value, int32_t old) noexcept {
  value.wait(old, std::memory_order_acquire);
}
void wake_all(std::atomic<int32_t>& value) noexcept { value.notify_all(); }

}  // namespace kvq
