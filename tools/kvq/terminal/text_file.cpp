#include "terminal/text_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "llama/error.h"

namespace cli {
namespace {

constexpr size_t kMaxCorpusBytes = size_t{1} << 30;
constexpr size_t kBlock = size_t{1} << 16;

llama::Error cannot_read(const std::filesystem::path& path, const std::string& why) {
  return llama::Error("cannot read " + path.string() + ": " + why);
}

}  // namespace

std::string read_text(const std::filesystem::path& path, size_t max_bytes) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw cannot_read(path, "it is a directory");
  errno = 0;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw cannot_read(path, std::strerror(errno));
  std::string text;
  for (size_t got = 1; got != 0;) {
    const size_t old_size = text.size();
    text.resize(old_size + kBlock);
    got = std::fread(text.data() + old_size, 1, kBlock, file.get());
    text.resize(old_size + got);
    if (text.size() > max_bytes) throw cannot_read(path, "it is longer than " + std::to_string(max_bytes) + " bytes");
  }
  if (std::ferror(file.get()) != 0) throw cannot_read(path, std::strerror(errno));
  return text;
}

std::string read_corpus(const std::filesystem::path& path) {
  std::string text = read_text(path, kMaxCorpusBytes);
  if (text.empty()) throw cannot_read(path, "it is empty");
  return text;
}

std::vector<std::string> read_corpora(const std::vector<std::string>& paths) {
  std::vector<std::string> texts;
  for (const std::string& path : paths) texts.push_back(read_corpus(path));
  return texts;
}

}  // namespace cli
