#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cli {

/** Tokens to train on: about `tokens` in windows of `window`, as many from each text and spread evenly over it. Where a
 *  text is too short for its share, the others give more; one shorter than a window gives what it has. Windows of
 *  different texts alternate. Refer to `texts`. */
std::vector<std::span<const int32_t>> calibration_windows(const std::vector<std::vector<int32_t>>& texts,
                                                          int64_t tokens, int32_t window);

/** A number that changes with any token. */
uint64_t fingerprint(const std::vector<std::span<const int32_t>>& windows);

}  // namespace cli
