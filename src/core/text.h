// Foreign text: UTF-8 checks, and quotes in messages.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace kvq {

bool is_utf8(std::string_view text);

/// Write as much of `text` to `out` as fits with a final NUL, for which there must be room: UTF-8 as it is, control
/// characters and other bytes in the form \x1b. Leaves out a character that is truncated at the end of `text`. Returns
/// the consumed bytes of `text`.
size_t write_readable(std::string_view text, std::span<char> out);

/// Text for a message: readable and short.
class Quoted {
 public:
  explicit Quoted(std::string_view text);
  const char* c_str() const { return text_.data(); }

 private:
  std::array<char, 64> text_;
};

}  // namespace kvq
