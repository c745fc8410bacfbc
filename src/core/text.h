// Text that comes from elsewhere: whether it is UTF-8, and how messages show it.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace kvq {

/// Bytes of the UTF-8 character at the beginning of `text`; 0 if there is none, or only a part of it.
size_t character_bytes(std::string_view text);

bool is_utf8(std::string_view text);

/// Write as much of `text` to `out` as fits, with a NUL behind it: as UTF-8, control characters and whatever is no
/// UTF-8 in the form \x1b. A character that `text` has only the beginning of, because it was cut off there, is left
/// out. Returns the bytes of `text` that were dealt with.
size_t write_readable(std::string_view text, std::span<char> out);

/// A text as a message may show it: readable and short.
class Quoted {
 public:
  explicit Quoted(std::string_view text);
  const char* c_str() const { return text_.data(); }

 private:
  std::array<char, 64> text_;
};

}  // namespace kvq
