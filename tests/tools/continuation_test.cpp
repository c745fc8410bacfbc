// What continuations of a prompt have in common, and whether they repeat.
#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "measure/generation.h"

namespace continuation_test {
namespace {

std::vector<int32_t> different_tokens(int32_t n) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 1000);
  return tokens;
}

/// `n` tokens that end in `tail` tokens of this period.
std::vector<int32_t> tokens_with_tail(int32_t n, int32_t tail, int32_t period) {
  std::vector<int32_t> tokens = different_tokens(n);
  for (int32_t i = 0; i < tail; ++i) tokens[static_cast<size_t>(n - tail + i)] = i % period;
  return tokens;
}

}  // namespace

TEST_CASE("a continuation repeats if its last quarter has a period that fits in it twice") {
  CHECK(!cli::ends_in_repetition({}));
  CHECK(!cli::ends_in_repetition(different_tokens(512)));
  for (const int32_t period : {1, 2, 3, 37, 63, 64}) {
    CAPTURE(period);
    CHECK(cli::ends_in_repetition(tokens_with_tail(512, 128, period)));
    CHECK(cli::ends_in_repetition(tokens_with_tail(512, 400, period)));
    CHECK(!cli::ends_in_repetition(tokens_with_tail(512, 127, period)));  // the quarter's first token is another
    std::vector<int32_t> broken = tokens_with_tail(512, 128, period);
    broken.back() = 7777;
    CHECK(!cli::ends_in_repetition(broken));
  }
  CHECK(!cli::ends_in_repetition(tokens_with_tail(512, 128, 65)));  // fits less than twice
  CHECK(cli::ends_in_repetition(tokens_with_tail(2048, 512, 64)));
  CHECK(!cli::ends_in_repetition(tokens_with_tail(2048, 512, 65)));  // too long, however often it fits
  CHECK(cli::ends_in_repetition(std::vector<int32_t>{1, 2, 3, 4, 5, 6, 9, 9}));
  CHECK(!cli::ends_in_repetition(std::vector<int32_t>{9, 9, 9, 9}));  // a quarter of one token
}

TEST_CASE("continuations differ first where a token or the end of one differs, or never") {
  const std::vector<int32_t> tokens{5, 6, 7};
  CHECK(cli::first_difference(tokens, tokens) == std::nullopt);
  CHECK(cli::first_difference({}, {}) == std::nullopt);
  CHECK(cli::first_difference(tokens, std::vector<int32_t>{5, 6, 8}) == 2);
  CHECK(cli::first_difference(std::vector<int32_t>{4, 6, 7}, tokens) == 0);
  CHECK(cli::first_difference(tokens, std::vector<int32_t>{5, 6}) == 2);
  CHECK(cli::first_difference({}, tokens) == 0);
}

TEST_CASE("the median difference is where half have differed, and never if most never do") {
  using Differences = std::vector<std::optional<size_t>>;
  constexpr std::nullopt_t never = std::nullopt;
  CHECK(cli::median_difference(Differences{9}) == 9);
  CHECK(cli::median_difference(Differences{never}) == std::nullopt);
  CHECK(cli::median_difference(Differences{30, 10, 20}) == 20);
  CHECK(cli::median_difference(Differences{never, 40, 10, 20}) == 20);
  CHECK(cli::median_difference(Differences{never, 0, never, 7}) == 7);
  CHECK(cli::median_difference(Differences{never, 10, never}) == std::nullopt);
}

}  // namespace continuation_test
