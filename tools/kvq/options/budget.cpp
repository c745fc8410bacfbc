#include "options/budget.h"

#include <charconv>

#include "llama/cache_format.h"
#include "options/usage_error.h"

namespace cli {
namespace {

template <typename Number>
bool parse(const char* begin, const char* end, Number& number) {
  const auto [stop, code] = std::from_chars(begin, end, number);
  return code == std::errc() && stop == end;
}

}  // namespace

int32_t Budget::of(int32_t prompt, int32_t window) const {
  return tokens > 0 ? tokens : llama::budget_of_share(percent / 100.0, prompt, window);
}

Budget parse_budget(const std::string& given, const std::string& text) {
  Budget budget{.text = text};
  const char* end = text.data() + text.size();
  if (text.ends_with('%')) {
    const bool share = parse(text.data(), end - 1, budget.percent) && budget.percent > 0.0 && budget.percent <= 100.0;
    if (!share) throw UsageError(given + ": a share of the prompt must be above 0% and at most 100%");
    return budget;
  }
  if (!parse(text.data(), end, budget.tokens) || budget.tokens < 1) {
    throw UsageError(given + ": the budget must be a number of tokens, or a percentage of the prompt such as 5%");
  }
  return budget;
}

}  // namespace cli
