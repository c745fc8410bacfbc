#pragma once

#include <cstdint>
#include <string>

namespace cli {

/// How many tokens of a KV head stay, on average: a number, or a share of the prompt.
struct Budget {
  std::string text;      // as it was given
  int32_t tokens = 0;    // 0: a share
  double percent = 0.0;  // of the prompt's tokens

  /// For a prompt of so many tokens; never less than the window, which always stays.
  int32_t of(int32_t prompt, int32_t window) const;
};

/// "128" or "5%"; a UsageError for anything else that begins with what was `given`, option and value.
Budget parse_budget(const std::string& given, const std::string& text);

}  // namespace cli
