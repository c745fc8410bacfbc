#include "pretokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "error.h"
#include "json_document.h"
#include "unicode.h"

namespace llama {

namespace {

constexpr uint32_t kLeastMatchLimit = 10'000'000;

using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
using MatchContext = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

/// The files are written for Oniguruma, whose \s is the Unicode property; that of PCRE2 has U+180E in addition.
std::string with_unicode_spaces(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool escape = pattern[i] == '\\' && i + 1 < pattern.size();
    if (escape && pattern[i + 1] == 's') {
      out += "\\p{White_Space}";
    } else if (escape && pattern[i + 1] == 'S') {
      out += "\\P{White_Space}";
    } else {
      out += pattern.substr(i, escape ? 2 : 1);
    }
    if (escape) ++i;
  }
  return out;
}

}  // namespace

void Regex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Regex::Regex(std::string_view pattern, Syntax syntax, const std::string& place) : place_(place) {
  const bool literal = syntax == Syntax::kLiteral;
  if (!literal && pattern.find("&&") != std::string_view::npos) {
    throw Error(place + ": pattern " + in_quotes(pattern) + " has an intersection of classes, which is not supported");
  }
  const std::string source = literal ? std::string(pattern) : with_unicode_spaces(pattern);
  // Oniguruma lets ^ and $ match at every line.
  const uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(), options, &error, &offset, nullptr));
  if (code_ == nullptr) throw Error(place + ": pattern " + in_quotes(pattern) + ": " + message_of(error));
}

std::vector<std::pair<size_t, size_t>> Regex::matches(std::string_view text) const {
  const MatchData data(pcre2_match_data_create_from_pattern(code_.get(), nullptr), &pcre2_match_data_free);
  const MatchContext context(pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  if (data == nullptr || context == nullptr) throw std::bad_alloc();
  // Backtracking through one long run of spaces takes a step for every space.
  const uint64_t limit = std::clamp<uint64_t>(8 * uint64_t{text.size()}, kLeastMatchLimit, UINT32_MAX);
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(limit));

  std::vector<std::pair<size_t, size_t>> found;
  for (size_t at = 0; at < text.size();) {
    const int count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                  PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) throw Error(place_ + ": matching failed at byte " + std::to_string(at) + ": " + message_of(count));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    if (range[1] > range[0]) found.emplace_back(range[0], range[1]);
    // An empty match must not be found again.
    at = range[1] > at ? range[1] : at + utf8_character_size(text.substr(at));
  }
  return found;
}

}  // namespace llama
