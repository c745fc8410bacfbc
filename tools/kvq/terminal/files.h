#pragma once

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "llama/system.h"

namespace cli {

/// An Error that says why unless a file can be written there. Leaves no file behind.
void check_writable(const std::filesystem::path& path);

/// A file that is written piece by piece and appears under its name when it is whole.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  /// Leaves nothing behind unless finish() was called.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void finish();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::FILE* file_;
};

/// Write a file, which appears under its name when it is whole.
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
inline void write_file(const std::filesystem::path& path, const std::string& text) {
  write_file(path, std::as_bytes(std::span(text)));
}

/// The whole file; an Error that says why when it cannot be read, is a directory, or is longer than `max_bytes`.
std::string read_text(const std::filesystem::path& path, size_t max_bytes);
/// The same of standard input, to its end.
std::string read_input(size_t max_bytes);

/// The whole of a text to evaluate on; also an Error when it is empty.
std::string read_corpus(const std::filesystem::path& path);
std::vector<std::string> read_corpora(const std::vector<std::string>& paths);

/// A new directory under the system's temporary one, removed with its files in the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() : path_(llama::make_temporary_directory("kvq-")) {}
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace cli
