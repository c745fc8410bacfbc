#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

/// Bytes of the UTF-8 character that `text` begins with; 0 if it begins with none.
size_t utf8_character_size(std::string_view text);

/// Append the UTF-8 form of a code point that is not a surrogate.
void append_utf8(std::string& text, char32_t code_point);

struct Utf8Run {
  std::string_view text;
  bool valid;
};

/// Cut into alternating longest runs of valid UTF-8 and of bytes that are not.
std::vector<Utf8Run> utf8_runs(std::string_view text);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

/// Unicode normalization; bytes that are not UTF-8 stay as they are.
std::string normalize(std::string_view text, NormalForm form);

/// The byte-level alphabet of GPT-2: every byte as a printable character, so that vocabularies can be JSON.
std::string to_byte_alphabet(std::string_view bytes);

/// Append the bytes that a token of the byte-level alphabet stands for; false (and nothing appended) if a character of
/// `token` is not of the alphabet.
bool append_from_byte_alphabet(std::string& bytes, std::string_view token);

}  // namespace llama
