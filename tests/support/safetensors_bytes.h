#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// A safetensors file: the length of the header in 8 little-endian bytes, the header, the data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data, uint64_t header_length) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header_length >> (8 * i) & 0xff);
  return file.append(header).append(data);
}

inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  return safetensors_bytes(header, data, header.size());
}
