#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct pcre2_real_code_8;

namespace llama {

/// A compiled Unicode pattern of a `tokenizer.json`. Constant calls may run concurrently.
class Regex {
 public:
  enum class Syntax { kPattern, kLiteral };

  /// Throws Error, naming `place` and the pattern, for one that cannot be compiled with the meaning it has there.
  Regex(std::string_view pattern, Syntax syntax, const std::string& place);

  /// Begin and end of the successive non-empty matches in `text`, which must be valid UTF-8.
  std::vector<std::pair<size_t, size_t>> matches(std::string_view text) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };

  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::string place_;
};

}  // namespace llama
