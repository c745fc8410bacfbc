#pragma once

#include <array>
#include <string_view>

namespace kvq::io {

/// A text from a file as a message may show it: short, and without control characters.
class Quoted {
 public:
  explicit Quoted(std::string_view text) {
    const bool cut = text.size() > kMost;
    size_t used = 0;
    for (const char c : text.substr(0, cut ? kMost - 3 : kMost)) text_[used++] = c >= 0x20 && c < 0x7F ? c : '?';
    for (int i = 0; cut && i < 3; ++i) text_[used++] = '.';
  }
  const char* c_str() const { return text_.data(); }

 private:
  static constexpr size_t kMost = 60;
  std::array<char, kMost + 1> text_{};
};

}  // namespace kvq::io
