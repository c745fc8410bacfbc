#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "llama/model.h"

namespace cli {

/// The length of windows to train on: 2048, or what a model or a few tokens allow.
int32_t calibration_window(int32_t max_positions, int64_t tokens);

/// Tokens to train on: about `tokens` in windows of `window`, as many from each text and spread evenly over it. Where a
/// text is too short for its share, the others give more; one shorter than a window gives what it has. Windows of
/// different texts alternate. Refer to `texts`.
std::vector<std::span<const int32_t>> calibration_windows(const std::vector<std::vector<int32_t>>& texts,
                                                          int64_t tokens, int32_t window);

/// Run a model over windows, each from an empty session, for what the session's observers see. Ends with an Error on an
/// interruption. \param label  of the progress bar.
void run_windows(llama::Session& session, std::span<const std::span<const int32_t>> windows, const std::string& label);

/// A number that changes with any token.
uint64_t fingerprint(const std::vector<std::span<const int32_t>>& windows);

/// What was trained on, in words: the same only for the same tokens in the same windows. `files`: the texts' names.
std::string describe_windows(const std::vector<std::string>& files,
                             const std::vector<std::span<const int32_t>>& windows, int32_t window);

}  // namespace cli
