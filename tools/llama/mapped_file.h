#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace llama {

/// Whether there is such a file. What cannot be looked at counts as missing.
bool is_present(const std::filesystem::path& path);

/// A regular file mapped read-only into memory. Movable; the bytes keep their address.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  /// Empty for an empty file.
  std::span<const std::byte> bytes() const { return bytes_; }
  /// Count no bytes read so far as memory of this process; they are mapped anew where they are read again.
  void forget() const;

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace llama
