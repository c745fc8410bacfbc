#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace cli {

/// A check of texts that must say something.
inline std::string not_empty(const std::string& text) { return text.empty() ? "must not be empty" : ""; }

/// From `low` to `high`, which NaN is not, unlike for CLI::Range.
CLI::Validator number_between(double low, double high);

/// Add `--seed`, whose value is the default.
void add_seed_option(CLI::App& command, uint64_t& seed, const std::string& help);

}  // namespace cli
