#pragma once

#include <cstring>
#include <string_view>

namespace llama {

/// As `text.find(part, begin)`, in linear time whatever both hold: std::string_view compares anew at every place.
inline size_t find_text(std::string_view text, std::string_view part, size_t begin = 0) {
  if (begin > text.size()) return std::string_view::npos;
  const void* at = ::memmem(text.data() + begin, text.size() - begin, part.data(), part.size());
  return at != nullptr ? static_cast<size_t>(static_cast<const char*>(at) - text.data()) : std::string_view::npos;
}

}  // namespace llama
