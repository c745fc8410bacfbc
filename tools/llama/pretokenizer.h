#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "pretokenizer_regex.h"

namespace llama {

/// Cuts words at the matches of a pattern. Bytes that are not UTF-8 become words of their own.
struct PatternCut {
  Regex pattern;
  bool keep_matches;
  bool keep_others;

  void apply(const std::string& word, bool first, std::vector<std::string>& words) const;
};

/// Writes spaces as another character, gives words that do not begin with one a leading one, cuts before each.
struct SpaceMarker {
  enum class Prepend { kNever, kFirst, kAlways };
  std::string marker;
  Prepend prepend;
  bool cut;

  void apply(std::string word, bool first, std::vector<std::string>& words) const;
};

/// Cuts a normalized text into the words inside which byte pairs are merged.
class PreTokenizer {
 public:
  /// \param json  the `pre_tokenizer` of a file: Split, Digits, Metaspace, ByteLevel, a Sequence of them, or null.
  PreTokenizer(const nlohmann::json& json, const std::string& place);

  std::vector<std::string> split(std::string text) const;

  /// The vocabulary spells bytes in the byte-level alphabet.
  bool byte_level() const { return byte_level_; }

 private:
  void add_stages(const nlohmann::json& json, const std::string& place);

  std::vector<std::variant<PatternCut, SpaceMarker>> stages_;
  bool byte_level_ = false;
};

}  // namespace llama
