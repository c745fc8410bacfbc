#include "system.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>

#include "error.h"

namespace llama {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw Error(path.string() + ": " + what);
}

class Descriptor {
 public:
  // O_NONBLOCK: opening a pipe must not wait for a writer before it can be refused.
  explicit Descriptor(const std::filesystem::path& path)
      : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (value_ < 0) fail(path, std::string("cannot open: ") + std::strerror(errno));
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(value_); }

  int get() const { return value_; }

 private:
  int value_;
};

}  // namespace

std::vector<std::string> command_line(int argc, char** argv) {
  const std::span<char*> words(argv, static_cast<size_t>(argc));
  return words.empty() ? std::vector<std::string>() : std::vector<std::string>(words.begin() + 1, words.end());
}

void prepare_streams() { std::signal(SIGPIPE, SIG_IGN); }

bool is_terminal(std::FILE* stream) { return isatty(fileno(stream)) == 1; }

std::filesystem::path path_of(std::string_view name) { return name; }

std::FILE* binary_input() { return stdin; }

std::FILE* open_to_read(const std::filesystem::path& path) { return std::fopen(path.c_str(), "rb"); }
std::FILE* open_to_write(const std::filesystem::path& path) { return std::fopen(path.c_str(), "wb"); }

std::span<const std::byte> map_file(const std::filesystem::path& path) {
  const Descriptor file(path);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail(path, std::string("cannot stat: ") + std::strerror(errno));
  if (!S_ISREG(info.st_mode)) fail(path, "not a regular file");
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return {};
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) fail(path, std::string("cannot map: ") + std::strerror(errno));
  return {static_cast<const std::byte*>(address), size};
}

void unmap_file(std::span<const std::byte> bytes) { ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size()); }

void forget_mapped(std::span<const std::byte> bytes) {
  ::madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_DONTNEED);
}

std::filesystem::path make_temporary_directory(const std::string& prefix) {
  std::string name = (std::filesystem::temp_directory_path() / (prefix + "XXXXXX")).string();
  if (::mkdtemp(name.data()) == nullptr) throw Error("cannot make " + name + ": " + std::strerror(errno));
  return name;
}

std::filesystem::path program_file() {
  std::error_code ignored;
  return std::filesystem::read_symlink("/proc/self/exe", ignored);
}

std::vector<std::filesystem::path> own_folders() {
  std::vector<std::filesystem::path> folders;
  Dl_info info;
  // The function's address as such may lie in the program, which calls it through a stub there.
  const void* function = dlsym(RTLD_DEFAULT, "kvq_api_version");
  if (function != nullptr && dladdr(function, &info) != 0 && info.dli_fname != nullptr) {
    folders.push_back(std::filesystem::path(info.dli_fname).parent_path());
  }
  const std::filesystem::path program = program_file();
  if (!program.empty()) folders.push_back(program.parent_path());
  return folders;
}

const char* const kCudaModuleFile = "libkvq_llama_cuda.so";

void* open_library(const std::string& path, std::string& reason) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* text = dlerror();
  reason = text != nullptr ? text : "the loader gives no reason";
  const std::string prefix = path + ": ";  // it begins so unless another library is at fault
  if (reason.starts_with(prefix)) reason.erase(0, prefix.size());
  return nullptr;
}

void* find_function(void* library, const char* name) { return dlsym(library, name); }

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

uint64_t host_memory_bytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

uint64_t last_level_cache_bytes() {
#ifdef _SC_LEVEL3_CACHE_SIZE
  const long size = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (size > 0) return static_cast<uint64_t>(size);
#endif
  return 0;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  const std::string wanted = "model name";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(wanted)) continue;
    const size_t begin = line.find_first_not_of(" \t:", wanted.size());
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::tm local_time(std::time_t time) {
  std::tm local{};
  localtime_r(&time, &local);
  return local;
}

size_t find_text(std::string_view text, std::string_view part, size_t begin) {
  if (begin > text.size()) return std::string_view::npos;
  const void* at = ::memmem(text.data() + begin, text.size() - begin, part.data(), part.size());
  return at != nullptr ? static_cast<size_t>(static_cast<const char*>(at) - text.data()) : std::string_view::npos;
}

void sleep_while(const std::atomic<uint32_t>& value, uint32_t old) { value.wait(old, std::memory_order_acquire); }
void wake_one(std::atomic<uint32_t>& value) { value.notify_one(); }
void wake_all(std::atomic<uint32_t>& value) { value.notify_all(); }

struct InterruptHandler::Replaced {
  struct sigaction interrupt;
  struct sigaction terminate;
};

InterruptHandler::InterruptHandler(Note note) : replaced_(std::make_unique<Replaced>()) {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGINT, &action, &replaced_->interrupt);
  sigaction(SIGTERM, &action, &replaced_->terminate);
}

InterruptHandler::~InterruptHandler() {
  sigaction(SIGINT, &replaced_->interrupt, nullptr);
  sigaction(SIGTERM, &replaced_->terminate, nullptr);
}

}  // namespace llama
