#include "core/system.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <array>
#include <cstdio>
#include <cstring>

namespace kvq {
namespace {

/// The system's paths are UTF-16, with backslashes where libraries are loaded from.
struct WidePath {
  explicit WidePath(const char* path) {
    is_valid = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, text, static_cast<int>(kMaxPath)) > 0;
    if (!is_valid) text[0] = L'\0';
    for (wchar_t* each = text; *each != L'\0'; ++each) *each = *each == L'/' ? L'\\' : *each;
  }
  wchar_t text[kMaxPath];
  bool is_valid;
};

}  // namespace

uint32_t count_forks() { return 0; }

const char* const kCudaPluginFile = "kvq_cuda.dll";

void CloseLibrary::operator()(void* library) const noexcept { FreeLibrary(static_cast<HMODULE>(library)); }

LoadedLibrary open_library(const char* path) {
  const WidePath wide(path);
  if (!wide.is_valid) {
    SetLastError(ERROR_INVALID_NAME);
    return nullptr;
  }
  // What a library needs is searched for beside it, too, if its folder is known.
  const bool has_folder = std::strpbrk(path, "/\\") != nullptr;
  return LoadedLibrary(LoadLibraryExW(wide.text, nullptr, has_folder ? LOAD_WITH_ALTERED_SEARCH_PATH : 0));
}

const char* why_not_opened(const char* /*path*/) {
  constexpr DWORD kFlags =
      FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS | FORMAT_MESSAGE_MAX_WIDTH_MASK;  // in one line
  thread_local std::array<char, 400> text;
  std::array<wchar_t, 160> wide{};
  const DWORD error = GetLastError();
  const DWORD length = FormatMessageW(kFlags, nullptr, error, 0, wide.data(), static_cast<DWORD>(wide.size()), nullptr);
  const int size = static_cast<int>(text.size());
  if (length == 0 || WideCharToMultiByte(CP_UTF8, 0, wide.data(), -1, text.data(), size, nullptr, nullptr) == 0) {
    std::snprintf(text.data(), text.size(), "error %lu", error);
  }
  size_t end = std::strlen(text.data());
  while (end > 0 && (text[end - 1] == ' ' || text[end - 1] == '.')) text[--end] = '\0';
  return text.data();
}

void* find_function(const LoadedLibrary& library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library.get()), name));
}

bool can_open_libraries() { return true; }  // every program has the loader, and runtimes that are shared

bool find_own_folder(char (&folder)[kMaxPath]) {
  constexpr DWORD kFlags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
  HMODULE module = nullptr;
  wchar_t wide[kMaxPath];
  if (GetModuleHandleExW(kFlags, reinterpret_cast<LPCWSTR>(&find_own_folder), &module) == 0) return false;
  const DWORD length = GetModuleFileNameW(module, wide, static_cast<DWORD>(kMaxPath));
  if (length == 0 || length >= kMaxPath) return false;
  const int size = static_cast<int>(sizeof(folder));
  if (WideCharToMultiByte(CP_UTF8, 0, wide, -1, folder, size, nullptr, nullptr) == 0) return false;
  char* slash = std::strrchr(folder, '\\');
  if (slash == nullptr) return false;
  *slash = '\0';
  return true;
}

bool is_file(const char* path) {
  const WidePath wide(path);
  return wide.is_valid && GetFileAttributesW(wide.text) != INVALID_FILE_ATTRIBUTES;
}

void sleep_while(const std::atomic<int32_t>& value, int32_t old) noexcept {
  WaitOnAddress(const_cast<std::atomic<int32_t>*>(&value), &old, sizeof(old), INFINITE);
}
void wake_all(std::atomic<int32_t>& value) noexcept { WakeByAddressAll(&value); }

}  // namespace kvq
