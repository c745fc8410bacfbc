#include "support/system.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <malloc.h>

#include <array>
#include <stdexcept>
#include <string_view>

namespace kvq_test {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what + " failed: error " + std::to_string(GetLastError()));
}

/// One word of a command line, as CommandLineToArgvW reads it: quotes within it, and backslashes before a quote, get a
/// backslash each.
std::string as_word(std::string_view word) {
  std::string text = "\"";
  size_t backslashes = 0;
  for (const char character : word) {
    if (character == '"') text.append(backslashes + 1, '\\');
    backslashes = character == '\\' ? backslashes + 1 : 0;
    text += character;
  }
  return text.append(backslashes, '\\') + "\"";
}

std::wstring wide(const std::string& text) {
  std::wstring result(text.size() + 1, L'\0');
  const int size = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text.c_str(), -1, result.data(),
                                       static_cast<int>(result.size()));
  require(size > 0, "converting " + text);
  result.resize(static_cast<size_t>(size) - 1);
  return result;
}

/// A stream for a program that inherits it.
HANDLE open_stream(const std::string& path, DWORD access, DWORD creation) {
  SECURITY_ATTRIBUTES inherited{sizeof(inherited), nullptr, TRUE};
  HANDLE const handle = CreateFileW(wide(path).c_str(), access, FILE_SHARE_READ | FILE_SHARE_WRITE, &inherited,
                                    creation, FILE_ATTRIBUTE_NORMAL, nullptr);
  require(handle != INVALID_HANDLE_VALUE, "opening " + path);
  return handle;
}

}  // namespace

size_t page_bytes() {
  SYSTEM_INFO info;
  GetSystemInfo(&info);
  return info.dwPageSize;
}

std::byte* map_guarded(size_t bytes) {
  auto* const memory = static_cast<std::byte*>(VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
  if (memory == nullptr) return nullptr;
  DWORD before = 0;
  require(VirtualProtect(memory + bytes - page_bytes(), page_bytes(), PAGE_NOACCESS, &before) != 0, "VirtualProtect");
  return memory;
}

void unmap_guarded(std::byte* memory, size_t /*bytes*/) { VirtualFree(memory, 0, MEM_RELEASE); }

void* allocate_aligned(size_t alignment, size_t size) noexcept { return _aligned_malloc(size, alignment); }
void free_aligned(void* memory) noexcept { _aligned_free(memory); }

std::optional<int> run_with_few_addresses(size_t /*bytes*/, const std::function<int()>& /*body*/) { return {}; }

void link_or_copy(const std::filesystem::path& file, const std::filesystem::path& link) {
  std::filesystem::copy_file(file, link);
}

bool can_make_links() { return false; }
bool make_pipe(const std::filesystem::path& /*path*/) { return false; }

const char* const kNothing = "NUL";
const char* const kFullOutput = nullptr;
const char* const kLibrarySuffix = ".dll";
const char* const kSystemLibrary = "kernel32.dll";
const char* const kNoFile =
    "cannot open: ";                     // "The system cannot find the file specified", or as the emulator words it
const char* const kNoLibrary = "found";  // "The specified module could not be found", or as the emulator words it
const char* const kMissingLibrary = "found";  // it does not say which

struct Process::Running {
  PROCESS_INFORMATION process{};
};

Process::Process(const std::string& program, const std::vector<std::string>& arguments, const Streams& streams)
    : running_(std::make_unique<Running>()) {
  std::string line = as_word(program);
  for (const std::string& argument : arguments) line += " " + as_word(argument);
  std::wstring command = wide(line);
  const std::array<HANDLE, 3> handles{open_stream(streams.in, GENERIC_READ, OPEN_EXISTING),
                                      open_stream(streams.out, GENERIC_WRITE, OPEN_ALWAYS),
                                      open_stream(streams.err, GENERIC_WRITE, OPEN_ALWAYS)};
  STARTUPINFOW startup{};
  startup.cb = sizeof(startup);
  startup.dwFlags = STARTF_USESTDHANDLES;
  startup.hStdInput = handles[0];
  startup.hStdOutput = handles[1];
  startup.hStdError = handles[2];
  // A group of its own, so that an interruption reaches it alone.
  const BOOL started = CreateProcessW(nullptr, command.data(), nullptr, nullptr, TRUE, CREATE_NEW_PROCESS_GROUP,
                                      nullptr, nullptr, &startup, &running_->process);
  for (HANDLE const each : handles) CloseHandle(each);
  require(started != 0, "starting " + program);
  CloseHandle(running_->process.hThread);
}

Process::~Process() { CloseHandle(running_->process.hProcess); }

std::optional<int> Process::exit_code() {
  if (WaitForSingleObject(running_->process.hProcess, 0) == WAIT_TIMEOUT) return {};
  return wait();
}

int Process::wait() {
  DWORD code = 0;
  require(WaitForSingleObject(running_->process.hProcess, INFINITE) == WAIT_OBJECT_0, "waiting");
  require(GetExitCodeProcess(running_->process.hProcess, &code) != 0, "GetExitCodeProcess");
  return code < 256 ? static_cast<int>(code) : -1;  // others are those of exceptions and interruptions
}

// A group of its own does not get Ctrl-C.
void Process::interrupt() { GenerateConsoleCtrlEvent(CTRL_BREAK_EVENT, running_->process.dwProcessId); }

std::optional<Shown> run_in_terminal(const std::string& /*program*/, const std::vector<std::string>& /*arguments*/,
                                     const std::string& /*typed*/) {
  return {};
}

}  // namespace kvq_test
