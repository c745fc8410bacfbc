#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace cli {

/// The whole file; an Error that says why when it cannot be read, is a directory, or is longer than `max_bytes`.
std::string read_text(const std::filesystem::path& path, size_t max_bytes);

/// The whole of a text to evaluate on; also an Error when it is empty.
std::string read_corpus(const std::filesystem::path& path);
std::vector<std::string> read_corpora(const std::vector<std::string>& paths);

}  // namespace cli
