#pragma once

#include <filesystem>
#include <string>

#include "options/command.h"

namespace cli {

/// Add `--force` and `-f`.
void add_force_flag(Command command, bool& force);

/// Ask on the terminal whether a file may be replaced if there is one; an Error if not, a UsageError that names
/// `option` and `--force` if there is nobody to ask.
void ask_to_replace(const std::filesystem::path& path, const std::string& option);

}  // namespace cli
