#include "terminal/output_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "llama/error.h"

namespace cli {
namespace {

llama::Error cannot_write(const std::filesystem::path& path, const std::string& why) {
  return llama::Error("cannot write " + path.string() + ": " + why);
}

/// What is replaced: of a link, the file that it leads to. Devices and pipes cannot be.
std::filesystem::path file_of(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(status)) throw cannot_write(path, "it is a directory");
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw cannot_write(path, "it is no regular file");
  }
  return std::filesystem::is_symlink(path, ignored) ? std::filesystem::weakly_canonical(path, ignored) : path;
}

}  // namespace

void check_writable(const std::filesystem::path& path) {
  std::error_code ignored;
  file_of(path);
  const std::filesystem::path directory = path.parent_path();
  if (!directory.empty() && !std::filesystem::is_directory(directory, ignored)) {
    throw cannot_write(path, "there is no directory " + directory.string());
  }
  write_file(path.string() + ".test", {});
  std::filesystem::remove(path.string() + ".test", ignored);
}

OutputFile::OutputFile(std::filesystem::path path)
    : path_(file_of(path)), temporary_(path_.string() + ".tmp"), file_(std::fopen(temporary_.c_str(), "wb")) {
  if (file_ == nullptr) throw cannot_write(path_, std::strerror(errno));
}

OutputFile::~OutputFile() {
  if (file_ != nullptr) std::fclose(file_);
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove(temporary_, ignored);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size())
    throw cannot_write(path_, std::strerror(errno));
}

void OutputFile::finish() {
  if (std::fclose(std::exchange(file_, nullptr)) != 0) throw cannot_write(path_, std::strerror(errno));
  std::error_code failure;
  std::filesystem::rename(temporary_, path_, failure);
  if (failure) throw cannot_write(path_, failure.message());
  temporary_.clear();
}

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  OutputFile file(path);
  file.write(bytes);
  file.finish();
}

}  // namespace cli
