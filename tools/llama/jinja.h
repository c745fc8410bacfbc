#pragma once

#include "jinja_syntax.h"

namespace llama::jinja {

/// A template in the part of Jinja that chat templates are written in: for, if, set, macro, namespace(), filters,
/// tests, slices; with `trim_blocks` and `lstrip_blocks`, as transformers sets them. Templates come with downloaded
/// weights: what one may compute, print and nest is limited, and errors name the line.
class Template {
 public:
  /// \param source  for messages.
  Template(std::string_view text, std::string source);

  /// \param variables  a mapping of the names that the template may read.
  std::string render(const Json& variables) const;

 private:
  std::string source_;
  std::vector<Statement> statements_;
};

}  // namespace llama::jinja
