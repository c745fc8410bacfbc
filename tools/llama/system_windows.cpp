#include "system.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>
// shellapi.h needs what windows.h defines
#include <fcntl.h>
#include <io.h>
#include <shellapi.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <random>
#include <system_error>

#include "error.h"

namespace llama {
namespace {

std::string utf8(std::wstring_view text) {
  if (text.empty()) return "";
  const int length = static_cast<int>(text.size());
  std::string result(text.size() * 3, '\0');  // a UTF-16 unit takes at most three bytes
  const int size = WideCharToMultiByte(CP_UTF8, 0, text.data(), length, result.data(), static_cast<int>(result.size()),
                                       nullptr, nullptr);
  result.resize(static_cast<size_t>(std::max(size, 0)));
  return result;
}

/// What the system says about an error, in one line without the full stop.
std::string message_of(DWORD error) {
  constexpr DWORD kFlags =
      FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS | FORMAT_MESSAGE_MAX_WIDTH_MASK;  // in one line
  std::array<wchar_t, 512> wide{};
  const DWORD length = FormatMessageW(kFlags, nullptr, error, 0, wide.data(), static_cast<DWORD>(wide.size()), nullptr);
  std::string text = utf8({wide.data(), length});
  while (text.ends_with(' ') || text.ends_with('.')) text.pop_back();
  return text.empty() ? "error " + std::to_string(error) : text;
}

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw Error(path.string() + ": " + what);
}

class Handle {
 public:
  explicit Handle(HANDLE value) : value_(value) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (value_ != nullptr && value_ != INVALID_HANDLE_VALUE) CloseHandle(value_);
  }

  HANDLE get() const { return value_; }

 private:
  HANDLE value_;
};

constexpr size_t kMaxPath = 32768;  // what the system takes

}  // namespace

std::vector<std::string> command_line(int argc, char** argv) {
  static_cast<void>(argv);  // in the code page of the system, which may lack characters of a name
  int n = 0;
  wchar_t** words = CommandLineToArgvW(GetCommandLineW(), &n);
  if (words == nullptr || n < argc) throw Error("cannot read the command line: " + message_of(GetLastError()));
  std::vector<std::string> result;
  for (int i = 1; i < n; ++i) result.push_back(utf8(words[i]));
  LocalFree(words);
  return result;
}

void prepare_streams() {
  SetConsoleOutputCP(CP_UTF8);
  SetConsoleCP(CP_UTF8);
  for (std::FILE* stream : {stdout, stderr}) _setmode(_fileno(stream), _O_BINARY);  // no '\r' before every '\n'
}

bool is_terminal(std::FILE* stream) {
  DWORD mode = 0;  // that a console has; _isatty takes NUL for a terminal
  return GetConsoleMode(reinterpret_cast<HANDLE>(_get_osfhandle(_fileno(stream))), &mode) != 0;
}

std::FILE* binary_input() {
  _setmode(_fileno(stdin), _O_BINARY);  // no '\r' taken away, and no end at Ctrl-Z
  return stdin;
}

std::filesystem::path path_of(std::string_view name) { return std::u8string(name.begin(), name.end()); }

std::FILE* open_to_read(const std::filesystem::path& path) { return _wfopen(path.c_str(), L"rb"); }
std::FILE* open_to_write(const std::filesystem::path& path) { return _wfopen(path.c_str(), L"wb"); }

std::span<const std::byte> map_file(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) fail(path, "not a regular file");
  const Handle file(CreateFileW(path.c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
                                nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr));
  if (file.get() == INVALID_HANDLE_VALUE) fail(path, "cannot open: " + message_of(GetLastError()));
  LARGE_INTEGER size;
  if (GetFileSizeEx(file.get(), &size) == 0) fail(path, "cannot stat: " + message_of(GetLastError()));
  if (size.QuadPart == 0) return {};
  const Handle mapping(CreateFileMappingW(file.get(), nullptr, PAGE_READONLY, 0, 0, nullptr));
  if (mapping.get() == nullptr) fail(path, "cannot map: " + message_of(GetLastError()));
  const void* address = MapViewOfFile(mapping.get(), FILE_MAP_READ, 0, 0, 0);  // which keeps the mapping open
  if (address == nullptr) fail(path, "cannot map: " + message_of(GetLastError()));
  return {static_cast<const std::byte*>(address), static_cast<size_t>(size.QuadPart)};
}

void unmap_file(std::span<const std::byte> bytes) { UnmapViewOfFile(bytes.data()); }

// Unlocking what is not locked takes it out of the working set.
void forget_mapped(std::span<const std::byte> bytes) {
  VirtualUnlock(const_cast<std::byte*>(bytes.data()), bytes.size());
}

std::filesystem::path make_temporary_directory(const std::string& prefix) {
  constexpr int kTries = 100;
  const std::filesystem::path parent = std::filesystem::temp_directory_path();  // the user's own
  std::random_device random;
  std::error_code failure;
  std::filesystem::path path;
  for (int i = 0; i < kTries; ++i) {
    path = parent / (prefix + std::to_string(random()));
    if (std::filesystem::create_directory(path, failure)) return path;
    if (failure) break;
  }
  throw Error("cannot make " + path.string() + ": " + failure.message());
}

std::filesystem::path program_file() {
  std::wstring path(kMaxPath, L'\0');
  path.resize(GetModuleFileNameW(nullptr, path.data(), static_cast<DWORD>(path.size())));
  return path;
}

// Libraries lie beside the program.
std::vector<std::filesystem::path> own_folders() { return {program_file().parent_path()}; }

const char* const kCudaModuleFile = "kvq_llama_cuda.dll";

void* open_library(const std::string& path, std::string& reason) {
  std::filesystem::path file = path_of(path);
  file.make_preferred();
  // What a library needs is searched for beside it, too, if its folder is known.
  const DWORD flags = file.has_parent_path() ? LOAD_WITH_ALTERED_SEARCH_PATH : 0;
  void* library = LoadLibraryExW(file.c_str(), nullptr, flags);
  if (library == nullptr) reason = message_of(GetLastError());
  return library;
}

void* find_function(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

// std::clock() is the time that has passed here.
double processor_seconds() {
  std::array<FILETIME, 4> times{};
  if (GetProcessTimes(GetCurrentProcess(), times.data(), &times[1], &times[2], &times[3]) == 0) return 0.0;
  double seconds = 0.0;
  for (const FILETIME& time : {times[2], times[3]}) {  // of the kernel and of the process
    constexpr double kTick = 1e-7;
    seconds += kTick * static_cast<double>(uint64_t{time.dwHighDateTime} << 32 | time.dwLowDateTime);
  }
  return seconds;
}

uint64_t host_memory_bytes() {
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof(status);
  return GlobalMemoryStatusEx(&status) != 0 ? status.ullTotalPhys : 0;
}

uint64_t last_level_cache_bytes() {
  DWORD bytes = 0;
  GetLogicalProcessorInformation(nullptr, &bytes);
  std::vector<SYSTEM_LOGICAL_PROCESSOR_INFORMATION> parts(bytes / sizeof(SYSTEM_LOGICAL_PROCESSOR_INFORMATION));
  if (parts.empty() || GetLogicalProcessorInformation(parts.data(), &bytes) == 0) return 0;
  for (const SYSTEM_LOGICAL_PROCESSOR_INFORMATION& part : parts) {
    if (part.Relationship == RelationCache && part.Cache.Level == 3) return part.Cache.Size;
  }
  return 0;
}

std::string processor_name() {
  std::array<wchar_t, 256> name{};
  auto bytes = static_cast<DWORD>((name.size() - 1) * sizeof(wchar_t));
  const LSTATUS status = RegGetValueW(HKEY_LOCAL_MACHINE, L"HARDWARE\\DESCRIPTION\\System\\CentralProcessor\\0",
                                      L"ProcessorNameString", RRF_RT_REG_SZ, nullptr, name.data(), &bytes);
  if (status != ERROR_SUCCESS) return "";
  std::string text = utf8(name.data());
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

std::tm local_time(std::time_t time) {
  std::tm local{};
  localtime_s(&local, &time);
  return local;
}

// By Knuth, Morris and Pratt, since the C library has no memmem.
size_t find_text(std::string_view text, std::string_view part, size_t begin) {
  if (begin > text.size()) return std::string_view::npos;
  std::vector<size_t> border(part.size() + 1, 0);  // of each beginning of `part`, how much of it is its end as well
  const auto extend = [&](size_t matched, char next) {
    while (matched > 0 && part[matched] != next) matched = border[matched];
    return part[matched] == next ? matched + 1 : 0;
  };
  for (size_t i = 1; i < part.size(); ++i) border[i + 1] = extend(border[i], part[i]);
  size_t matched = 0;
  for (size_t i = begin; matched < part.size(); ++i) {
    if (i == text.size()) return std::string_view::npos;
    matched = extend(matched, text[i]);
    if (matched == part.size()) return i + 1 - matched;
  }
  return begin;  // an empty part
}

void sleep_while(const std::atomic<uint32_t>& value, uint32_t old) {
  WaitOnAddress(const_cast<std::atomic<uint32_t>*>(&value), &old, sizeof(old), INFINITE);
}
void wake_one(std::atomic<uint32_t>& value) { WakeByAddressSingle(&value); }
void wake_all(std::atomic<uint32_t>& value) { WakeByAddressAll(&value); }

// Handlers are called once, as on other systems. Nobody sends SIGTERM here; Ctrl-Break and closing the console's window
// are SIGBREAK.
struct InterruptHandler::Replaced {
  Note interrupt;
  Note stop;
};

InterruptHandler::InterruptHandler(Note note)
    : replaced_(std::make_unique<Replaced>(Replaced{std::signal(SIGINT, note), std::signal(SIGBREAK, note)})) {}

InterruptHandler::~InterruptHandler() {
  std::signal(SIGINT, replaced_->interrupt);
  std::signal(SIGBREAK, replaced_->stop);
}

}  // namespace llama
