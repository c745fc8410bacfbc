#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "json_document.h"
#include "unicode.h"

namespace llama {

/// One text in place of another, wherever it occurs.
struct Replacement {
  std::string from;
  std::string to;

  /// \param object  a `Replace` of a tokenizer.json; a pattern that is a regular expression is refused.
  static Replacement read(const JsonObject& object);

  void apply(std::string& text) const;
};

/// What a tokenizer does to a text before anything else.
class Normalizer {
 public:
  /// \param json  the `normalizer` of a file: NFC, NFD, NFKC, NFKD, Prepend, Replace, a Sequence of them, or null.
  Normalizer(const nlohmann::json& json, const std::string& place);

  std::string apply(std::string text) const;

 private:
  struct Prepend {
    std::string prefix;
  };

  void add_stages(const nlohmann::json& json, const std::string& place);

  std::vector<std::variant<NormalForm, Prepend, Replacement>> stages_;
};

/// Turns tokens as the vocabulary spells them back into text.
class TokenDecoder {
 public:
  /// \param json  the `decoder` of a file: ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, or a Sequence.
  TokenDecoder(const nlohmann::json& json, const std::string& place);

  /// The bytes of one token inside a text.
  std::string piece(std::string_view token) const;

  /// How much of the front of a whole text was put there by the encoder.
  size_t prefix_size(std::string_view text) const;

 private:
  void add_stages(const nlohmann::json& json, const std::string& place);

  std::vector<Replacement> replacements_;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fused_ = false;
  std::string prefix_;  // at most prefix_count_ times in front of a text
  size_t prefix_count_ = 0;
};

/// The byte that a token like "<0x0A>" stands for, or -1.
int byte_of_token(std::string_view token);

}  // namespace llama
