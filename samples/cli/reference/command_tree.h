#pragma once

#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace cli {

/// The commands that `--help` shows, in its order.
std::vector<const CLI::App*> commands_of(const CLI::App& app);

/// The options that `--help` shows, those of groups last.
std::vector<const CLI::Option*> options_of(const CLI::App& app);

}  // namespace cli
