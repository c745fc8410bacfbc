#pragma once

#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "kvq/terminal/files.h"

/// A directory for the files of a test.
class ScratchDirectory : public cli::TemporaryDirectory {
 public:
  std::filesystem::path write(std::string_view name, std::string_view content) const {
    std::filesystem::path file = path() / name;
    std::filesystem::remove(file);  // some file systems sync on overwriting
    std::ofstream(file, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
    return file;
  }
};

/// Contents of a file that must exist.
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}
