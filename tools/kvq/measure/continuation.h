#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace cli {

/// Where two continuations of a prompt first differ: the index of a token, or the shorter one's length if the longer
/// one begins with it; nothing if they are equal.
std::optional<size_t> first_difference(std::span<const int32_t> a, std::span<const int32_t> b);

/// The index by which at least half of the continuations, of which there must be one, have begun to differ; nothing if
/// most never do.
std::optional<size_t> median_difference(std::span<const std::optional<size_t>> differences);

/// Whether the last quarter of `tokens`, rounded down, has a period: a p from 1 to 64 and at most half of the quarter
/// with quarter[i] = quarter[i - p] for every i from p on.
bool ends_in_repetition(std::span<const int32_t> tokens);

}  // namespace cli
