#include "pretokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "error.h"
#include "json_document.h"
#include "tokenizer_replacement.h"
#include "unicode.h"

namespace llama {

namespace {

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
  SpaceMarker spaces{object.string("replacement"), SpaceMarker::Prepend::kAlways, object.boolean("split", true)};
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

PatternCut isolate(const char* pattern, const std::string& place) {
  return {Regex(pattern, Regex::Syntax::kPattern, place), true, true};
}

}  // namespace

PreTokenizer::PreTokenizer(const nlohmann::json& json, const std::string& place) {
  if (!json.is_null()) add_stages(json, place);
}

void PreTokenizer::add_stages(const nlohmann::json& json, const std::string& place) {
  const JsonObject object(json, place);
  const std::string type = object.string("type");
  if (byte_level_) throw Error(place + ": " + type + " after ByteLevel is not supported");
  if (type == "Sequence") {
    const nlohmann::json& list = object.at("pretokenizers");
    if (!list.is_array()) object.refuse("pretokenizers", "expected a list");
    for (size_t i = 0; i < list.size(); ++i) add_stages(list[i], place + "[" + std::to_string(i) + "]");
  } else if (type == "Split") {
    stages_.emplace_back(read_split(object));
  } else if (type == "Digits") {
    stages_.emplace_back(isolate(object.boolean("individual_digits", false) ? "\\p{N}" : "\\p{N}+", place));
  } else if (type == "Metaspace") {
    stages_.emplace_back(read_metaspace(object));
  } else if (type == "ByteLevel") {
    byte_level_ = true;
    if (object.boolean("add_prefix_space", true)) {
      stages_.emplace_back(SpaceMarker{" ", SpaceMarker::Prepend::kAlways, false});
    }
    if (object.boolean("use_regex", true)) stages_.emplace_back(isolate(kByteLevelPattern, place));
  } else {
    object.refuse("type", "expected Sequence, Split, Digits, Metaspace or ByteLevel");
  }
}

std::vector<std::string> PreTokenizer::split(std::string text) const {
  std::vector<std::string> words;
  if (!text.empty()) words.push_back(std::move(text));
  for (const auto& stage : stages_) {
    std::vector<std::string> shorter;
    bool first = true;
    for (std::string& word : words) {
      std::visit([&](const auto& kind) { kind.apply(std::move(word), first, shorter); }, stage);
      first = false;
    }
    words = std::move(shorter);
  }
  return words;
}

void PatternCut::apply(const std::string& word, bool /*first*/, std::vector<std::string>& words) const {
  const auto add = [&words](std::string_view part, bool keep) {
    if (keep && !part.empty()) words.emplace_back(part);
  };
  for (const Utf8Run& run : utf8_runs(word)) {
    if (!run.valid) {
      add(run.text, true);
      continue;
    }
    size_t end_before = 0;
    for (const auto& [begin, end] : pattern.matches(run.text)) {
      add(run.text.substr(end_before, begin - end_before), keep_others);
      add(run.text.substr(begin, end - begin), keep_matches);
      end_before = end;
    }
    add(run.text.substr(end_before), keep_others);
  }
}

void SpaceMarker::apply(std::string word, bool first, std::vector<std::string>& words) const {
  if (marker != " ") Replacement{" ", marker}.apply(word);
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
