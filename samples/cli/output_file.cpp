#include "output_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>

#include "llama/error.h"

namespace cli {
namespace {

llama::Error cannot_write(const std::filesystem::path& path, const std::string& why) {
  return llama::Error("cannot write " + path.string() + ": " + why);
}

std::filesystem::path unfinished(const std::filesystem::path& path) { return path.string() + ".tmp"; }

}  // namespace

void check_writable(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw cannot_write(path, "it is a directory");
  write_file(path.string() + ".test", {});
  std::filesystem::remove(path.string() + ".test", ignored);
}

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  const std::filesystem::path temporary = unfinished(path);
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) throw cannot_write(path, std::strerror(errno));
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed) throw cannot_write(path, std::strerror(errno));
  std::error_code failure;
  std::filesystem::rename(temporary, path, failure);
  if (failure) throw cannot_write(path, failure.message());
}

}  // namespace cli
