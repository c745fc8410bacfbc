#include "reference/command_tree.h"

#include <CLI/CLI.hpp>

namespace cli {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands(
      [](const CLI::App* each) { return !each->get_name().empty() && !each->get_group().empty(); });
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  std::vector<const CLI::Option*> options =
      app.get_options([](const CLI::Option* each) { return each->nonpositional() && !each->get_group().empty(); });
  // CLI11 keeps a group of options as a command without a name.
  for (const CLI::App* group : app.get_subcommands([](const CLI::App* each) { return each->get_name().empty(); })) {
    const std::vector<const CLI::Option*> more = options_of(*group);
    options.insert(options.end(), more.begin(), more.end());
  }
  return options;
}

}  // namespace cli
