#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "options/engine.h"

namespace cli {

/// Plain English sentences about nothing in particular, at least `bytes` long, without digits. The same seed gives the
/// same text everywhere.
std::string make_filler(size_t bytes, uint64_t seed);

/// Tokens of prose between which a fact of a prompt of `context` tokens may hide: of the file `text` or, if that is
/// empty, of what comes with the model or else made up.
std::vector<int32_t> filler_tokens(const Engine& engine, const std::filesystem::path& model, const std::string& text,
                                   int32_t context, uint64_t seed);

}  // namespace cli
