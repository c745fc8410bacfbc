#include "terminal/files.h"

#include <cerrno>
#include <cstring>
#include <memory>
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

constexpr size_t kMaxCorpusBytes = size_t{1} << 30;
constexpr size_t kBlock = size_t{1} << 16;

llama::Error cannot_read(const std::filesystem::path& path, const std::string& why) {
  return llama::Error("cannot read " + path.string() + ": " + why);
}

/// What an open file still has; `path` is what errors call it.
std::string read_rest(std::FILE* file, const std::filesystem::path& path, size_t max_bytes) {
  std::string text;
  errno = 0;
  for (size_t got = 1; got != 0;) {
    const size_t old_size = text.size();
    text.resize(old_size + kBlock);
    got = std::fread(text.data() + old_size, 1, kBlock, file);
    text.resize(old_size + got);
    if (text.size() > max_bytes) throw cannot_read(path, "it is longer than " + std::to_string(max_bytes) + " bytes");
  }
  if (std::ferror(file) != 0) throw cannot_read(path, std::strerror(errno));
  return text;
}

}  // namespace

void check_writable(const std::filesystem::path& path) {
  std::error_code ignored;
  file_of(path);
  const std::filesystem::path directory = path.parent_path();
  if (!directory.empty() && !std::filesystem::is_directory(directory, ignored)) {
    throw cannot_write(path, "there is no directory " + directory.string());
  }
  const std::filesystem::path test = llama::path_of(path.string() + ".test");
  write_file(test, std::string());
  std::filesystem::remove(test, ignored);
}

OutputFile::OutputFile(std::filesystem::path path)
    : path_(file_of(path)),
      temporary_(llama::path_of(path_.string() + ".tmp")),
      file_(llama::open_to_write(temporary_)) {
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

std::string read_text(const std::filesystem::path& path, size_t max_bytes) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw cannot_read(path, "it is a directory");
  errno = 0;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(llama::open_to_read(path), std::fclose);
  if (!file) throw cannot_read(path, std::strerror(errno));
  return read_rest(file.get(), path, max_bytes);
}

std::string read_input(size_t max_bytes) { return read_rest(llama::binary_input(), "standard input", max_bytes); }

std::string read_corpus(const std::filesystem::path& path) {
  std::string text = read_text(path, kMaxCorpusBytes);
  if (text.empty()) throw cannot_read(path, "it is empty");
  return text;
}

std::vector<std::string> read_corpora(const std::vector<std::string>& paths) {
  std::vector<std::string> texts;
  for (const std::string& path : paths) texts.push_back(read_corpus(llama::path_of(path)));
  return texts;
}

}  // namespace cli
