#pragma once

#include <array>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <unordered_map>
#include <utility>
#include <variant>

#include "json_document.h"
#include "text_budget.h"
#include "unicode.h"

struct pcre2_real_code_8;

namespace llama {

/// One text in place of another, wherever it occurs.
struct Replacement {
  std::string from;
  std::string to;

  /// \param object  a `Replace` of a tokenizer.json; a pattern that is a regular expression is refused.
  static Replacement read(const JsonObject& object);
  void apply(std::string& text, TextBudget& budget, const std::string& place) const;
};

/// What a tokenizer does to a text before anything else.
class Normalizer {
 public:
  /// \param json  the `normalizer` of a file: NFC, NFD, NFKC, NFKD, Prepend, Replace, a Sequence of them, or null.
  Normalizer(const nlohmann::json& json, const std::string& place);
  std::string apply(std::string text, TextBudget& budget) const;

 private:
  struct Prepend {
    std::string prefix;
  };

  void add_stages(const nlohmann::json& json, const std::string& place);

  std::string place_;
  std::vector<std::variant<NormalForm, Prepend, Replacement>> stages_;
};

/// Turns tokens as the vocabulary spells them back into text.
class TokenDecoder {
 public:
  /// \param json  the `decoder` of a file: ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, or a Sequence.
  TokenDecoder(const nlohmann::json& json, const std::string& place);

  /// The bytes of one token inside a text; `budget` is that of the whole vocabulary.
  std::string piece(std::string_view token, TextBudget& budget) const;

  const std::string& place() const { return place_; }

  /// How much of the front of a whole text was put there by the encoder.
  size_t prefix_size(std::string_view text) const;

 private:
  void add_stages(const nlohmann::json& json, const std::string& place);

  std::string place_;
  std::vector<Replacement> replacements_;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fused_ = false;
  std::string prefix_;  // at most prefix_count_ times in front of a text
  size_t prefix_count_ = 0;
};

/// The byte that a token like "<0x0A>" stands for, or -1.
int byte_of_token(std::string_view token);

/// A compiled Unicode pattern of a `tokenizer.json`. Constant calls may run concurrently.
class Regex {
 public:
  enum class Syntax { kPattern, kLiteral };

  /// Throws Error, naming `place` and the pattern, for one that cannot be compiled with the meaning it has there.
  Regex(std::string_view pattern, Syntax syntax, const std::string& place);

  /// Begin and end of the successive non-empty matches in `text`, which must be valid UTF-8. Backtracking takes from
  /// the budget.
  std::vector<std::pair<size_t, size_t>> matches(std::string_view text, TextBudget& budget) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };

  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::string place_;
};

/// Cuts words at the matches of a pattern. Bytes that are not UTF-8 become words of their own.
struct PatternCut {
  Regex pattern;
  bool keep_matches;
  bool keep_others;

  void apply(const std::string& word, bool first, TextBudget& budget, std::vector<std::string>& words) const;
};

/// Writes spaces as another character, gives words that do not begin with one a leading one, cuts before each.
struct SpaceMarker {
  enum class Prepend { kNever, kFirst, kAlways };
  std::string place;
  std::string marker;
  Prepend prepend;
  bool cut;

  void apply(std::string word, bool first, TextBudget& budget, std::vector<std::string>& words) const;
};

/// Cuts a normalized text into the words inside which byte pairs are merged.
class PreTokenizer {
 public:
  /// \param json  the `pre_tokenizer` of a file: Split, Digits, Metaspace, ByteLevel, a Sequence of them, or null.
  PreTokenizer(const nlohmann::json& json, const std::string& place);
  std::vector<std::string> split(std::string text, TextBudget& budget) const;

  /// The vocabulary spells bytes in the byte-level alphabet.
  bool byte_level() const { return byte_level_; }

 private:
  void add_stages(const nlohmann::json& json, const std::string& place);

  std::string place_;
  std::vector<std::variant<PatternCut, SpaceMarker>> stages_;
  bool byte_level_ = false;
};

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

using Vocabulary = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

/// Byte-pair encoding of one word: of all neighbours that may be merged, the pair that comes first in the list of
/// merges is, the leftmost if it occurs several times, until no more can be.
class BytePairEncoder {
 public:
  /// \param model       the `model` of a tokenizer.json
  /// \param byte_level  words start as bytes in the byte-level alphabet instead of as characters
  BytePairEncoder(const JsonObject& model, bool byte_level);

  /// Append the ids of `word` to `ids`. Time grows as n log n.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    uint32_t rank;
    int32_t merged;
  };

  void read_vocabulary(const JsonObject& model);
  void read_unknowns(const JsonObject& model);
  void read_merges(const JsonObject& model);
  std::vector<int32_t> initial_symbols(std::string_view word) const;
  const Merge* find_merge(int32_t left, int32_t right) const;
  void merge_all(const std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const;

  Vocabulary vocabulary_;
  std::unordered_map<uint64_t, Merge> merges_;  // key: left id, right id
  std::array<int32_t, 256> byte_tokens_{};      // of the byte-level alphabet or "<0x00>" to "<0xFF>"; -1: none
  bool byte_level_;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool fuse_unknown_ = false;
  int32_t unknown_ = -1;
};

}  // namespace llama
