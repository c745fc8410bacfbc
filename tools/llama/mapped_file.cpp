#include "mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "error.h"

namespace llama {

bool is_present(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

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

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(path);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail(path, std::string("cannot stat: ") + std::strerror(errno));
  if (!S_ISREG(info.st_mode)) fail(path, "not a regular file");
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return;
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) fail(path, std::string("cannot map: ") + std::strerror(errno));
  bytes_ = {static_cast<const std::byte*>(address), Unmap{size}};
}

void MappedFile::forget() const {
  if (bytes_) ::madvise(const_cast<std::byte*>(bytes_.get()), bytes().size(), MADV_DONTNEED);
}

void MappedFile::Unmap::operator()(const std::byte* bytes) const { ::munmap(const_cast<std::byte*>(bytes), size); }

}  // namespace llama
