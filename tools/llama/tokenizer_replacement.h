#pragma once

#include <string>

#include "json_document.h"

namespace llama {

/// One text in place of another, wherever it occurs.
struct Replacement {
  std::string from;
  std::string to;

  /// \param object  a `Replace` of a tokenizer.json; a pattern that is a regular expression is refused.
  static Replacement read(const JsonObject& object);

  void apply(std::string& text) const;
};

}  // namespace llama
