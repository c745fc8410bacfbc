#include "tokenizer_parts.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "error.h"
#include "system.h"

namespace llama {
namespace {

constexpr auto kForms = std::to_array<std::pair<const char*, NormalForm>>(
    {{"NFC", NormalForm::kNfc}, {"NFD", NormalForm::kNfd}, {"NFKC", NormalForm::kNfkc}, {"NFKD", NormalForm::kNfkd}});

constexpr int64_t kMaxPrefixCount = 1000;
constexpr uint64_t kWordSteps = 16;  // a word of its own costs memory

template <class Add>
void for_each_stage(const JsonObject& sequence, const char* key, const std::string& place, Add add) {
  const nlohmann::json& list = sequence.at(key);
  if (!list.is_array()) sequence.refuse(key, "expected a list");
  for (size_t i = 0; i < list.size(); ++i) add(list[i], place + "[" + std::to_string(i) + "]");
}

constexpr uint32_t kMaxMatchKibibytes = 256 << 10;  // of places to return to
constexpr uint64_t kNormalizationSteps = 16;        // per byte: decomposing, ordering and composing takes longest

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

/// What ByteLevel cuts at unless told otherwise: contractions, letters, digits, other characters, spaces.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

PatternCut read_split(const JsonObject& object) {
  const std::string behavior = object.string("behavior");
  if (behavior != "Isolated" && behavior != "Removed") {
    object.refuse("behavior", "expected \"Isolated\" or \"Removed\"");
  }
  const bool isolated = behavior == "Isolated";
  const bool invert = object.boolean("invert", false);
  const JsonObject pattern = object.object("pattern");
  const bool literal = pattern.has("String");
  return {Regex(pattern.string(literal ? "String" : "Regex"),
                literal ? Regex::Syntax::kLiteral : Regex::Syntax::kPattern, pattern.place()),
          isolated || invert, isolated || !invert};
}

SpaceMarker read_metaspace(const JsonObject& object) {
  // Files older than prepend_scheme have only add_prefix_space.
  const std::string scheme =
      object.string("prepend_scheme", object.boolean("add_prefix_space", true) ? "always" : "never");
  SpaceMarker spaces{object.place(), object.string("replacement"), SpaceMarker::Prepend::kAlways,
                     object.boolean("split", true)};
  if (spaces.marker.empty() || utf8_character_size(spaces.marker) != spaces.marker.size()) {
    object.refuse("replacement", "expected one character");
  }
  if (scheme == "never") {
    spaces.prepend = SpaceMarker::Prepend::kNever;
  } else if (scheme == "first") {
    spaces.prepend = SpaceMarker::Prepend::kFirst;
  } else if (scheme != "always") {
    object.refuse("prepend_scheme", "expected \"first\", \"always\" or \"never\"");
  }
  return spaces;
}

/// Takes from a budget what a match takes: one step an item of the pattern and one a byte that the place moved.
struct MatchWork {
  TextBudget& budget;
  size_t place = 0;

  static int count(pcre2_callout_block* block, void* data) {
    auto& work = *static_cast<MatchWork*>(data);
    const size_t at = block->current_position;
    const size_t moved = at > work.place ? at - work.place : work.place - at;
    work.place = at;
    return work.budget.take(moved + 1) ? 0 : PCRE2_ERROR_CALLOUT;
  }
};

PatternCut isolate(const char* pattern, const std::string& place) {
  return {Regex(pattern, Regex::Syntax::kPattern, place), true, true};
}

}  // namespace

Replacement Replacement::read(const JsonObject& object) {
  Replacement replacement{object.object("pattern").string("String"), object.string("content")};
  if (replacement.from.empty()) object.refuse("pattern", "expected a text to replace");
  return replacement;
}

void Replacement::apply(std::string& text, TextBudget& budget, const std::string& place) const {
  budget.take(text.size() + 1, place);
  std::string replaced;
  size_t copied = 0;
  for (size_t at = find_text(text, from); at != std::string::npos; at = find_text(text, from, copied)) {
    replaced.append(text, copied, at - copied).append(to);
    budget.check_size(replaced.size(), place);
    copied = at + from.size();
  }
  if (copied != 0) text = std::move(replaced.append(text, copied));
}

Normalizer::Normalizer(const nlohmann::json& json, const std::string& place) : place_(place) {
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
    for_each_stage(object, "normalizers", place, [this](const auto& stage, const auto& at) { add_stages(stage, at); });
  } else if (type == "Prepend") {
    stages_.emplace_back(Prepend{object.string("prepend")});
  } else if (type == "Replace") {
    stages_.emplace_back(Replacement::read(object));
  } else {
    object.refuse("type", "expected Sequence, Prepend, Replace, NFC, NFD, NFKC or NFKD");
  }
}

std::string Normalizer::apply(std::string text, TextBudget& budget) const {
  if (text.empty()) return text;
  for (const auto& stage : stages_) {
    if (const auto* form = std::get_if<NormalForm>(&stage)) {
      budget.take(kNormalizationSteps * text.size(), place_);
      text = normalize(text, *form);
    } else if (const auto* prepend = std::get_if<Prepend>(&stage)) {
      budget.take(text.size() + 1, place_);
      text.insert(0, prepend->prefix);
    } else if (const auto* replace = std::get_if<Replacement>(&stage)) {
      replace->apply(text, budget, place_);
    }
    budget.check_size(text.size(), place_);
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

TokenDecoder::TokenDecoder(const nlohmann::json& json, const std::string& place) : place_(place) {
  add_stages(json, place);
}

void TokenDecoder::add_stages(const nlohmann::json& json, const std::string& place) {
  const JsonObject object(json, place);
  const std::string type = object.string("type");
  if (type == "Sequence") {
    for_each_stage(object, "decoders", place, [this](const auto& stage, const auto& at) { add_stages(stage, at); });
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

std::string TokenDecoder::piece(std::string_view token, TextBudget& budget) const {
  std::string bytes;
  // Added tokens may hold characters outside the alphabet; they are spelled as themselves.
  if (byte_level_ && append_from_byte_alphabet(bytes, token)) return bytes;
  if (const int byte = byte_fallback_ ? byte_of_token(token) : -1; byte >= 0)
    return std::string(1, static_cast<char>(byte));
  bytes = token;
  for (const Replacement& replacement : replacements_) replacement.apply(bytes, budget, place_);
  return bytes;
}

size_t TokenDecoder::prefix_size(std::string_view text) const {
  size_t size = 0;
  for (size_t i = 0; i < prefix_count_ && text.substr(size).starts_with(prefix_); ++i) size += prefix_.size();
  return size;
}

void Regex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Regex::Regex(std::string_view pattern, Syntax syntax, const std::string& place) : place_(place) {
  const bool literal = syntax == Syntax::kLiteral;
  if (!literal && pattern.find("&&") != std::string_view::npos) {
    throw Error(place + ": pattern " + in_quotes(pattern) + " has an intersection of classes, which is not supported");
  }
  const std::string source = literal ? std::string(pattern) : with_unicode_spaces(pattern);
  // Oniguruma lets ^ and $ match at every line. Callouts count the work.
  const uint32_t options = PCRE2_UTF | PCRE2_AUTO_CALLOUT | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(), options, &error, &offset, nullptr));
  if (code_ == nullptr) throw Error(place + ": pattern " + in_quotes(pattern) + ": " + message_of(error));
}

std::vector<std::pair<size_t, size_t>> Regex::matches(std::string_view text, TextBudget& budget) const {
  const MatchData data(pcre2_match_data_create_from_pattern(code_.get(), nullptr), &pcre2_match_data_free);
  const MatchContext context(pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  if (data == nullptr || context == nullptr) throw std::bad_alloc();
  MatchWork work{budget};
  pcre2_set_callout(context.get(), &MatchWork::count, &work);
  // PCRE2's own limit starts anew at every place of the text and does not see characters that an item runs over.
  pcre2_set_match_limit(context.get(), UINT32_MAX);
  pcre2_set_heap_limit(context.get(), kMaxMatchKibibytes);

  std::vector<std::pair<size_t, size_t>> found;
  for (size_t at = 0; at < text.size();) {
    const int count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                  PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count == PCRE2_ERROR_CALLOUT) budget.refuse_work(place_);
    if (count < 0) throw Error(place_ + ": matching failed at byte " + std::to_string(at) + ": " + message_of(count));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    if (range[1] > range[0]) found.emplace_back(range[0], range[1]);
    // An empty match must not be found again.
    at = range[1] > at ? range[1] : at + utf8_character_size(text.substr(at));
  }
  return found;
}

PreTokenizer::PreTokenizer(const nlohmann::json& json, const std::string& place) : place_(place) {
  if (!json.is_null()) add_stages(json, place);
}

void PreTokenizer::add_stages(const nlohmann::json& json, const std::string& place) {
  const JsonObject object(json, place);
  const std::string type = object.string("type");
  if (byte_level_) throw Error(place + ": " + type + " after ByteLevel is not supported");
  if (type == "Sequence") {
    for_each_stage(object, "pretokenizers", place,
                   [this](const auto& stage, const auto& at) { add_stages(stage, at); });
  } else if (type == "Split") {
    stages_.emplace_back(read_split(object));
  } else if (type == "Digits") {
    stages_.emplace_back(isolate(object.boolean("individual_digits", false) ? "\\p{N}" : "\\p{N}+", place));
  } else if (type == "Metaspace") {
    stages_.emplace_back(read_metaspace(object));
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    if (object.boolean("add_prefix_space", true)) {
      stages_.emplace_back(SpaceMarker{place, " ", SpaceMarker::Prepend::kAlways, false});
    }
    if (object.boolean("use_regex", true)) stages_.emplace_back(isolate(kByteLevelPattern, place));
  } else {
    object.refuse("type", "expected Sequence, Split, Digits, Metaspace or ByteLevel");
  }
}

std::vector<std::string> PreTokenizer::split(std::string text, TextBudget& budget) const {
  std::vector<std::string> words;
  if (!text.empty()) words.push_back(std::move(text));
  for (const auto& stage : stages_) {
    std::vector<std::string> shorter;
    bool first = true;
    for (std::string& word : words) {
      budget.take(word.size() + kWordSteps, place_);
      std::visit([&](const auto& kind) { kind.apply(std::move(word), first, budget, shorter); }, stage);
      first = false;
    }
    words = std::move(shorter);
    size_t size = 0;
    for (const std::string& word : words) size += word.size();
    budget.check_size(size, place_);
  }
  return words;
}

void PatternCut::apply(const std::string& word, bool /*first*/, TextBudget& budget,
                       std::vector<std::string>& words) const {
  const auto add = [&words](std::string_view part, bool keep) {
    if (keep && !part.empty()) words.emplace_back(part);
  };
  for (const Utf8Run& run : utf8_runs(word)) {
    if (!run.valid) {
      add(run.text, true);
      continue;
    }
    size_t end_before = 0;
    for (const auto& [begin, end] : pattern.matches(run.text, budget)) {
      add(run.text.substr(end_before, begin - end_before), keep_others);
      add(run.text.substr(begin, end - begin), keep_matches);
      end_before = end;
    }
    add(run.text.substr(end_before), keep_others);
  }
}

void SpaceMarker::apply(std::string word, bool first, TextBudget& budget, std::vector<std::string>& words) const {
  if (marker != " ") Replacement{" ", marker}.apply(word, budget, place);
  const bool wanted = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && first);
  if (wanted && !word.starts_with(marker)) word.insert(0, marker);
  if (!cut) {
    words.push_back(std::move(word));
    return;
  }
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = std::min(word.find(marker, begin + marker.size()), word.size());
    words.push_back(word.substr(begin, end - begin));
    begin = end;
  }
}

}  // namespace llama
