#include "tokenizer_text.h"

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "error.h"

namespace llama {
namespace {

constexpr auto kForms = std::to_array<std::pair<const char*, NormalForm>>(
    {{"NFC", NormalForm::kNfc}, {"NFD", NormalForm::kNfd}, {"NFKC", NormalForm::kNfkc}, {"NFKD", NormalForm::kNfkd}});

constexpr int64_t kMaxPrefixCount = 1000;

}  // namespace

Replacement Replacement::read(const JsonObject& object) {
  Replacement replacement{object.object("pattern").string("String"), object.string("content")};
  if (replacement.from.empty()) object.refuse("pattern", "expected a text to replace");
  return replacement;
}

void Replacement::apply(std::string& text) const {
  std::string replaced;
  size_t copied = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, copied)) {
    replaced.append(text, copied, at - copied).append(to);
    copied = at + from.size();
  }
  if (copied != 0) text = std::move(replaced.append(text, copied));
}

Normalizer::Normalizer(const nlohmann::json& json, const std::string& place) {
  if (!json.is_null()) add_stages(json, place);
}

void Normalizer::add_stages(const nlohmann::json& json, const std::string& place) {
  const JsonObject object(json, place);
  const std::string type = object.string("type");
  for (const auto& [name, form] : kForms) {
    if (type == name) {
      stages_.emplace_back(form);
      return;
    }
  }
  if (type == "Sequence") {
    const nlohmann::json& list = object.at("normalizers");
    if (!list.is_array()) object.refuse("normalizers", "expected a list");
    for (size_t i = 0; i < list.size(); ++i) add_stages(list[i], place + "[" + std::to_string(i) + "]");
  } else if (type == "Prepend") {
    stages_.emplace_back(Prepend{object.string("prepend")});
  } else if (type == "Replace") {
    stages_.emplace_back(Replacement::read(object));
  } else {
    object.refuse("type", "expected Sequence, Prepend, Replace, NFC, NFD, NFKC or NFKD");
  }
}

std::string Normalizer::apply(std::string text) const {
  if (text.empty()) return text;
  for (const auto& stage : stages_) {
    if (const auto* form = std::get_if<NormalForm>(&stage)) {
      text = normalize(text, *form);
    } else if (const auto* prepend = std::get_if<Prepend>(&stage)) {
      text.insert(0, prepend->prefix);
    } else if (const auto* replace = std::get_if<Replacement>(&stage)) {
      replace->apply(text);
    }
  }
  return text;
}

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  unsigned char byte = 0;
  const char* end = token.data() + 5;
  const auto result = std::from_chars(token.data() + 3, end, byte, 16);
  return result.ec == std::errc() && result.ptr == end ? byte : -1;
}

TokenDecoder::TokenDecoder(const nlohmann::json& json, const std::string& place) { add_stages(json, place); }

void TokenDecoder::add_stages(const nlohmann::json& json, const std::string& place) {
  const JsonObject object(json, place);
  const std::string type = object.string("type");
  if (type == "Sequence") {
    const nlohmann::json& list = object.at("decoders");
    if (!list.is_array()) object.refuse("decoders", "expected a list");
    for (size_t i = 0; i < list.size(); ++i) add_stages(list[i], place + "[" + std::to_string(i) + "]");
  } else if (type == "ByteLevel") {
    byte_level_ = true;
  } else if (type == "ByteFallback") {
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    fused_ = true;
  } else if (type == "Replace") {
    replacements_.push_back(Replacement::read(object));
  } else if (type == "Metaspace") {
    replacements_.push_back({object.string("replacement"), " "});
    if (replacements_.back().from.empty()) object.refuse("replacement", "expected a character");
    const bool add_prefix = object.boolean("add_prefix_space", true);
    prefix_ = " ";
    prefix_count_ = object.string("prepend_scheme", add_prefix ? "always" : "never") == "never" ? 0 : 1;
  } else if (type == "Strip") {
    // Stripping every token, or the end, would make the text of a token depend on its neighbours.
    if (!fused_) throw Error(place + ": Strip before Fuse is not supported");
    object.integer("stop", 0, 0, 0);
    prefix_ = object.string("content");
    prefix_count_ = static_cast<size_t>(object.integer("start", 0, kMaxPrefixCount, 0));
    if (prefix_.empty()) object.refuse("content", "expected a character");
  } else {
    object.refuse("type", "expected Sequence, ByteLevel, Metaspace, Replace, ByteFallback, Fuse or Strip");
  }
}

std::string TokenDecoder::piece(std::string_view token) const {
  std::string bytes;
  // Added tokens may hold characters outside the alphabet; they are spelled as themselves.
  if (byte_level_ && append_from_byte_alphabet(bytes, token)) return bytes;
  if (const int byte = byte_fallback_ ? byte_of_token(token) : -1; byte >= 0)
    return std::string(1, static_cast<char>(byte));
  bytes = token;
  for (const Replacement& replacement : replacements_) replacement.apply(bytes);
  return bytes;
}

size_t TokenDecoder::prefix_size(std::string_view text) const {
  size_t size = 0;
  for (size_t i = 0; i < prefix_count_ && text.substr(size).starts_with(prefix_); ++i) size += prefix_.size();
  return size;
}

}  // namespace llama
