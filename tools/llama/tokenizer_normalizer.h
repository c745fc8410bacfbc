#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "tokenizer_replacement.h"
#include "unicode.h"

namespace llama {

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

}  // namespace llama
