// What systems do differently: a file system_*.cpp of each kind of system implements it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace kvq {

/// Number of forks between this process and its first ancestor that called this.
uint32_t count_forks();

/// The file of the CUDA plug-in.
extern const char* const kCudaPluginFile;

/// Bytes for any path.
constexpr size_t kMaxPath = 4096;

struct CloseLibrary {
  void operator()(void* library) const noexcept;
};
/// A library that the system's loader has opened.
using LoadedLibrary = std::unique_ptr<void, CloseLibrary>;

/// Null if the library cannot be opened. `path` is UTF-8; a name without a folder is searched for. The loader counts:
/// opening a library again is cheap.
LoadedLibrary open_library(const char* path);

/// Why open_library failed, if the thread has called nothing else since, without `path`, which may be too long for a
/// message. The text lives until the thread's next call.
const char* why_not_opened(const char* path);

/// A function of the library; null if it has none of this name.
void* find_function(const LoadedLibrary& library, const char* name);

/// False in a static program: opened libraries would bring second C and C++ runtimes, and memory and exceptions would
/// cross between them and the program's own.
bool can_open_libraries();

/// Folder of the library or program that holds this function; false if unknown.
bool find_own_folder(char (&folder)[kMaxPath]);

bool is_file(const char* path);

/// Sleep while `value` is `old`; it may return early. With wake_all, what std::atomic has, but for a system without
/// futexes, where GCC 12's loses wake-ups between its look at the value and its sleep.
void sleep_while(const std::atomic<int32_t>& value, int32_t old) noexcept;
/// `value` may be gone already when it has been changed.
void wake_all(std::atomic<int32_t>& value) noexcept;

}  // namespace kvq
