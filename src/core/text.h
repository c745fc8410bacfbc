// Text that comes from elsewhere: whether it is UTF-8, and how messages show it.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace kvq {

bool is_utf8(std::string_view text);

/// Write as much of `text` to `out` as fits, with a NUL behind it, for which there must be room: as UTF-8, control
/// characters and whatever is no UTF-8 in the form \x1b. A character that `text` has only the beginning of, because it
/// was cut off there, is left out. Returns the bytes of `text` that were dealt with.
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
