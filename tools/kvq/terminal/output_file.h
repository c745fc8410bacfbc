#pragma once

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <span>

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

}  // namespace cli
