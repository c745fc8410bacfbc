#include "core/text.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace kvq {
namespace {

/// Bytes of a character by its first one, and the range of its second one that excludes overlong forms, surrogates and
/// characters beyond U+10FFFF (The Unicode Standard, table 3-7).
struct Lead {
  size_t bytes;  // 0: no first byte
  uint8_t low;
  uint8_t high;
};

Lead lead_of(uint8_t first) {
  if (first < 0x80) return {1, 0x80, 0xBF};
  if (first < 0xC2 || first > 0xF4) return {0, 0x80, 0xBF};
  if (first < 0xE0) return {2, 0x80, 0xBF};
  if (first == 0xE0) return {3, 0xA0, 0xBF};
  if (first == 0xED) return {3, 0x80, 0x9F};
  if (first < 0xF0) return {3, 0x80, 0xBF};
  if (first == 0xF0) return {4, 0x90, 0xBF};
  return {4, 0x80, static_cast<uint8_t>(first == 0xF4 ? 0x8F : 0xBF)};
}

/// Bytes of the first character in `text`, and its full length; 0: no character.
struct Found {
  size_t bytes;
  size_t of;
};

Found first_character(std::string_view text) {
  if (text.empty()) return {0, 0};
  const Lead lead = lead_of(static_cast<uint8_t>(text[0]));
  size_t n = 1;
  for (; n < std::min(lead.bytes, text.size()); ++n) {
    const auto next = static_cast<uint8_t>(text[n]);
    if (next < (n == 1 ? lead.low : 0x80) || next > (n == 1 ? lead.high : 0xBF)) return {0, 0};
  }
  return lead.bytes == 0 ? Found{0, 0} : Found{n, lead.bytes};
}

/// C0, DEL and C1, which is U+0080 to U+009F.
bool is_control(std::string_view character) {
  const auto first = static_cast<uint8_t>(character[0]);
  return first < 0x20 || first == 0x7F || (first == 0xC2 && static_cast<uint8_t>(character[1]) < 0xA0);
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const auto [bytes, of] = first_character(text);
    if (bytes == 0 || bytes < of) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

size_t write_readable(std::string_view text, std::span<char> out) {
  constexpr char kDigits[] = "0123456789abcdef";
  size_t used = 0;
  size_t done = 0;
  const auto put = [&](char c) { out[used++] = c; };
  while (done < text.size()) {
    const auto [bytes, of] = first_character(text.substr(done));
    if (bytes < of) {  // cut off
      done = text.size();
      break;
    }
    const std::string_view piece = text.substr(done, std::max<size_t>(bytes, 1));
    const bool as_it_is = bytes > 0 && !is_control(piece);
    if (used + piece.size() * (as_it_is ? 1 : 4) >= out.size()) break;
    for (const char c : piece) {
      const auto byte = static_cast<uint8_t>(c);
      if (as_it_is) {
        put(c);
      } else {
        for (const char each : {'\\', 'x', kDigits[byte >> 4U], kDigits[byte & 15U]}) put(each);
      }
    }
    done += piece.size();
  }
  out[used] = '\0';
  return done;
}

Quoted::Quoted(std::string_view text) {
  constexpr std::string_view kRest = "...";
  if (write_readable(text, text_) == text.size()) return;
  write_readable(text, std::span(text_).first(text_.size() - kRest.size()));
  std::copy_n(kRest.data(), kRest.size() + 1, text_.data() + std::strlen(text_.data()));
}

}  // namespace kvq
