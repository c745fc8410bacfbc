#include "jinja_text.h"

#include <array>
#include <cctype>

#include "error.h"
#include "system.h"

namespace llama::jinja {
namespace {

std::string mapped(std::string text, int (*map)(int)) {
  for (char& c : text) c = static_cast<unsigned char>(c) < 0x80 ? static_cast<char>(map(c)) : c;
  return text;
}

}  // namespace

std::string lower(std::string text) { return mapped(std::move(text), std::tolower); }
std::string upper(std::string text) { return mapped(std::move(text), std::toupper); }
std::string capitalized(const std::string& text) {
  return upper(text.substr(0, 1)) + (text.empty() ? "" : lower(text.substr(1)));
}

std::string strip(std::string_view text, const Value& characters, bool left, bool right) {
  std::array<bool, 256> strips{};
  const bool given = characters && !characters->is_null();
  for (const char c : given ? std::string_view(string_of(characters, "cannot strip")) : kSpace) {
    strips[static_cast<unsigned char>(c)] = true;
  }
  const auto stripped = [&strips](char c) { return strips[static_cast<unsigned char>(c)]; };
  while (left && !text.empty() && stripped(text.front())) text.remove_prefix(1);
  while (right && !text.empty() && stripped(text.back())) text.remove_suffix(1);
  return std::string(text);
}

Json split(const std::string& text, const Value& separator, Budget& budget) {
  Json parts = Json::array();
  const auto add = [&](size_t begin, size_t end) {
    budget.take(Budget::kStep + end - begin);
    parts.push_back(text.substr(begin, end - begin));
  };
  if (separator && !separator->is_null()) {
    const std::string& by = string_of(separator, "cannot split at");
    if (by.empty()) throw Error("cannot split at an empty text");
    size_t begin = 0;
    for (size_t at = find_text(text, by); at != std::string::npos; at = find_text(text, by, begin)) {
      add(begin, at);
      begin = at + by.size();
    }
    add(begin, text.size());
    return parts;
  }
  for (size_t begin = text.find_first_not_of(kSpace); begin != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
    add(begin, end);
    begin = text.find_first_not_of(kSpace, end);
  }
  return parts;
}

}  // namespace llama::jinja
