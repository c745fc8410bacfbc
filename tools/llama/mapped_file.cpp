#include "mapped_file.h"

#include <system_error>

#include "system.h"

namespace llama {

bool is_present(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const std::span<const std::byte> bytes = map_file(path);
  bytes_ = {bytes.data(), Unmap{bytes.size()}};
}

void MappedFile::forget() const {
  if (bytes_) forget_mapped(bytes());
}

void MappedFile::Unmap::operator()(const std::byte* bytes) const { unmap_file({bytes, size}); }

}  // namespace llama
