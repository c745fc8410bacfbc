#include "options/budget.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "options/usage_error.h"

namespace cli {
namespace {

template <typename Number>
bool parse(const char* begin, const char* end, Number& number) {
  const auto [stop, code] = std::from_chars(begin, end, number);
  return code == std::errc() && stop == end;
}

}  // namespace

int32_t Budget::of(size_t prompt, int32_t window) const {
  if (tokens > 0) return tokens;
  return std::max(static_cast<int32_t>(std::lround(percent / 100.0 * static_cast<double>(prompt))), window);
}

Budget parse_budget(const std::string& text, int32_t window) {
  const auto wrong = [&text](const std::string& why) { return UsageError("--budgets " + text + ": " + why); };
  Budget budget{.text = text};
  const char* end = text.data() + text.size();
  if (text.ends_with('%')) {
    const bool share = parse(text.data(), end - 1, budget.percent) && budget.percent > 0.0 && budget.percent <= 100.0;
    if (!share) throw wrong("a share of the prompt must be above 0% and at most 100%");
    return budget;
  }
  if (!parse(text.data(), end, budget.tokens)) {
    throw wrong("must be a number of tokens, or a percentage of the prompt such as 5%");
  }
  if (budget.tokens < window) {
    throw wrong("smaller than the window of " + std::to_string(window) + " newest tokens that are always kept");
  }
  return budget;
}

}  // namespace cli
