#pragma once

#include <string>

#include "options/command.h"

namespace cli {

/// The program's manual page, in the macros of man(7): every command with its options as `--help` has them.
std::string manual(Command program);

}  // namespace cli
