#pragma once

#include <filesystem>
#include <fstream>
#include <string_view>

#include "cli/terminal/temporary_directory.h"

/// A directory for the files of a test.
class ScratchDirectory : public cli::TemporaryDirectory {
 public:
  std::filesystem::path write(std::string_view name, std::string_view content) const {
    std::filesystem::path file = path() / name;
    std::filesystem::remove(file);  // overwriting makes some file systems wait for the disk
    std::ofstream(file, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
    return file;
  }
};
