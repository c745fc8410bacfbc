#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "reference/completion.h"
#include "reference/manual.h"
#include "terminal/output.h"

namespace cli {

void add_reference(CLI::App& app) {
  const std::string hidden;  // from --help: for shells and for installing
  app.add_subcommand("manual", "Print the manual page")->group(hidden)->callback([&app] { print_text(manual(app)); });

  CLI::App* command = app.add_subcommand("complete", "What the last WORD may become, a line each")->group(hidden);
  const auto words = std::make_shared<std::vector<std::string>>();
  command->add_option("WORD", *words, "Words of a command line behind the program's name");
  command->callback([&app, words] {
    std::string lines;
    for (const Candidate& each : complete(app, *words)) lines += each.text + "\t" + each.about + "\n";
    print_text(lines);
  });
}

}  // namespace cli
