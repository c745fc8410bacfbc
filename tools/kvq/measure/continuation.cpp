#include "measure/continuation.h"

#include <algorithm>
#include <limits>

namespace cli {

std::optional<size_t> first_difference(std::span<const int32_t> a, std::span<const int32_t> b) {
  if (std::ranges::equal(a, b)) return std::nullopt;
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

std::optional<size_t> median_difference(std::span<const std::optional<size_t>> differences) {
  constexpr size_t kNever = std::numeric_limits<size_t>::max();
  std::vector<size_t> sorted;
  for (const auto& difference : differences) sorted.push_back(difference.value_or(kNever));
  std::ranges::sort(sorted);
  const size_t middle = sorted[(sorted.size() - 1) / 2];
  return middle == kNever ? std::nullopt : std::optional(middle);
}

bool ends_in_repetition(std::span<const int32_t> tokens) {
  constexpr size_t kLongestPeriod = 64;
  const std::span<const int32_t> quarter = tokens.last(tokens.size() / 4);
  const size_t longest = std::min(kLongestPeriod, quarter.size() / 2);
  for (size_t period = 1; period <= longest; ++period) {
    if (std::ranges::equal(quarter.subspan(period), quarter.first(quarter.size() - period))) return true;
  }
  return false;
}

}  // namespace cli
