#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace llama {

/// Whether there is such a file. What cannot be looked at counts as missing.
bool is_present(const std::filesystem::path& path);

/// A regular file mapped read-only into memory. Movable; the bytes keep their address.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);

  /// Empty for an empty file.
  std::span<const std::byte> bytes() const { return {bytes_.get(), bytes_ ? bytes_.get_deleter().size : 0}; }
  /// Count no bytes read so far as memory of this process; they are mapped anew where they are read again.
  void forget() const;

 private:
  struct Unmap {
    size_t size;
    void operator()(const std::byte* bytes) const;
  };

  std::unique_ptr<const std::byte, Unmap> bytes_;
};

}  // namespace llama
