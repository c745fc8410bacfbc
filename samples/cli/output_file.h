#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace cli {

/** An Error that says why unless a file can be written there. Leaves no file behind. */
void check_writable(const std::filesystem::path& path);

/** Write a file, which appears under its name when it is whole. */
void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);

}  // namespace cli
