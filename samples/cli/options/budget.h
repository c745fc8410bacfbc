#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cli {

/// How many tokens of a KV head stay, on average: a number, or a share of the prompt.
struct Budget {
  std::string text;      // as it was given
  int32_t tokens = 0;    // 0: a share
  double percent = 0.0;  // of the prompt's tokens

  /// For a prompt of so many tokens; never less than the window, which always stays.
  int32_t of(size_t prompt, int32_t window) const;
};

/// "128" or "5%"; a UsageError that names `--budgets` for anything else, and for less than the window.
Budget parse_budget(const std::string& text, int32_t window);

}  // namespace cli
