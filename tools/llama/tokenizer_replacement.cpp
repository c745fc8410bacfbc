#include "tokenizer_replacement.h"

#include <utility>

namespace llama {

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

}  // namespace llama
