#pragma once

#include <string>

namespace CLI {
class App;
}

namespace cli {

/// The program's manual page, in the macros of man(7): every command with its options as `--help` has them.
std::string manual(const CLI::App& program);

}  // namespace cli
