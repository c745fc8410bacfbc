#include "core/system.h"

#include <unistd.h>

namespace kvq {

uint32_t count_forks() { return 0; }

// Modules are whole programs: there is no loader.
const char* const kCudaPluginFile = "libkvq_cuda.so";
void CloseLibrary::operator()(void* /*library*/) const noexcept {}
LoadedLibrary open_library(const char* /*path*/) { return nullptr; }
const char* why_not_opened(const char* /*path*/) { return "this system has no loader"; }
void* find_function(const LoadedLibrary& /*library*/, const char* /*name*/) { return nullptr; }
bool can_open_libraries() { return true; }  // open_library() says why not
bool find_own_folder(char (&/*folder*/)[kMaxPath]) { return false; }

bool is_file(const char* path) { return access(path, F_OK) == 0; }

// Without threads nobody else changes a value.
void sleep_while(const std::atomic<int32_t>& /*value*/, int32_t /*old*/) noexcept {}
void wake_all(std::atomic<int32_t>& /*value*/) noexcept {}

}  // namespace kvq
