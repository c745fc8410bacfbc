#include "unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "error.h"

namespace llama {

namespace {

const utf8proc_uint8_t* as_utf8proc(std::string_view text) {
  return reinterpret_cast<const utf8proc_uint8_t*>(text.data());
}

struct Character {
  utf8proc_int32_t code_point;
  size_t size;  // 0: not UTF-8
};

Character first_character(std::string_view text) {
  // The length may be negative for "unknown" and is at most 4 for one character.
  const auto available = static_cast<utf8proc_ssize_t>(text.size() < 4 ? text.size() : 4);
  Character character{-1, 0};
  const utf8proc_ssize_t size = utf8proc_iterate(as_utf8proc(text), available, &character.code_point);
  character.size = size > 0 ? static_cast<size_t>(size) : 0;
  return character;
}

utf8proc_option_t options_of(NormalForm form) {
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (compatible ? UTF8PROC_COMPAT : 0));
}

void check(utf8proc_ssize_t result) {
  if (result < 0) throw Error(std::string("Unicode normalization failed: ") + utf8proc_errmsg(result));
}

std::vector<utf8proc_int32_t> decomposed(std::string_view text, utf8proc_option_t options) {
  constexpr size_t kLongest = 32;  // code points of one character, which are at most 18
  std::vector<utf8proc_int32_t> code_points;
  size_t used = 0;
  for (size_t i = 0; i < text.size();) {
    const Character character = first_character(text.substr(i));
    if (code_points.size() - used < kLongest) code_points.resize(2 * code_points.size() + kLongest);
    int unused = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(character.code_point, code_points.data() + used,
                                                           utf8proc_ssize_t{kLongest}, options, &unused);
    check(count);
    used += static_cast<size_t>(count);
    i += character.size;
  }
  code_points.resize(used);
  return code_points;
}

/// Canonical ordering. utf8proc_map() does it in quadratic time.
void order_marks(std::vector<utf8proc_int32_t>& code_points) {
  const auto rank = [](utf8proc_int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; };
  const auto is_mark = [&rank](utf8proc_int32_t code_point) { return rank(code_point) != 0; };
  for (auto begin = code_points.begin(); begin != code_points.end();) {
    begin = std::find_if(begin, code_points.end(), is_mark);
    const auto end = std::find_if_not(begin, code_points.end(), is_mark);
    std::ranges::stable_sort(begin, end, {}, rank);
    begin = end;
  }
}

void append_normalized(std::string& out, std::string_view text, NormalForm form) {
  std::vector<utf8proc_int32_t> code_points = decomposed(text, options_of(form));
  order_marks(code_points);
  const auto count = static_cast<utf8proc_ssize_t>(code_points.size());
  code_points.emplace_back();  // room that reencoding asks for
  const utf8proc_ssize_t size = utf8proc_reencode(code_points.data(), count, options_of(form));
  check(size);
  out.append(reinterpret_cast<const char*>(code_points.data()), static_cast<size_t>(size));
}

bool is_ascii(std::string_view text) {
  return std::ranges::none_of(text, [](char c) { return (c & 0x80) != 0; });
}

/// Printable Latin-1 characters stand for themselves; the other bytes take the code points from 256 on.
constexpr bool is_own_symbol(unsigned byte) { return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad); }

constexpr std::array<char16_t, 256> make_byte_alphabet() {
  std::array<char16_t, 256> alphabet{};
  unsigned next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    alphabet[byte] = static_cast<char16_t>(is_own_symbol(byte) ? byte : next++);
  }
  return alphabet;
}

constexpr std::array<char16_t, 256> kByteAlphabet = make_byte_alphabet();
constexpr size_t kByteAlphabetEnd = 256 + 68;  // one past the largest code point of the alphabet

constexpr std::array<int16_t, kByteAlphabetEnd> make_byte_of_symbol() {
  std::array<int16_t, kByteAlphabetEnd> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (size_t byte = 0; byte < 256; ++byte) bytes[kByteAlphabet[byte]] = static_cast<int16_t>(byte);
  return bytes;
}

constexpr std::array<int16_t, kByteAlphabetEnd> kByteOfSymbol = make_byte_of_symbol();

}  // namespace

size_t utf8_character_size(std::string_view text) {
  if (!text.empty() && (text.front() & 0x80) == 0) return 1;
  return first_character(text).size;
}

void append_utf8(std::string& text, char32_t code_point) {
  std::array<utf8proc_uint8_t, 4> buffer{};
  const utf8proc_ssize_t size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), buffer.data());
  text.append(reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(size));
}

std::vector<Utf8Run> utf8_runs(std::string_view text) {
  std::vector<Utf8Run> runs;
  size_t start = 0;
  bool valid = true;
  for (size_t i = 0; i < text.size();) {
    const size_t size = utf8_character_size(text.substr(i));
    if ((size != 0) != valid) {
      if (i > start) runs.push_back({text.substr(start, i - start), valid});
      start = i;
      valid = !valid;
    }
    i += size != 0 ? size : 1;
  }
  if (start < text.size()) runs.push_back({text.substr(start), valid});
  return runs;
}

std::string normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  std::string out;
  for (const Utf8Run& run : utf8_runs(text)) {
    if (run.valid) {
      append_normalized(out, run.text, form);
    } else {
      out += run.text;
    }
  }
  return out;
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string out;
  for (char c : bytes) append_utf8(out, kByteAlphabet[static_cast<unsigned char>(c)]);
  return out;
}

bool append_from_byte_alphabet(std::string& bytes, std::string_view token) {
  const size_t size_before = bytes.size();
  while (!token.empty()) {
    const Character character = first_character(token);
    const bool known = character.size != 0 && static_cast<size_t>(character.code_point) < kByteAlphabetEnd &&
                       kByteOfSymbol[static_cast<size_t>(character.code_point)] >= 0;
    if (!known) {
      bytes.resize(size_before);
      return false;
    }
    bytes += static_cast<char>(kByteOfSymbol[static_cast<size_t>(character.code_point)]);
    token.remove_prefix(character.size);
  }
  return true;
}

}  // namespace llama
