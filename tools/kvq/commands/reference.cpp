#include <memory>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "reference/completion.h"
#include "reference/manual.h"
#include "terminal/output.h"

namespace cli {

// For shells and for installing, not for those who read --help.
void add_reference(Command app) {
  Command page = app.add_command("manual", "Print the manual page");
  page.hide();
  page.on_run([app] { print_text(manual(app)); });

  Command command = app.add_command("complete", "What the last WORD may become, a line each");
  command.hide();
  const auto words = std::make_shared<std::vector<std::string>>();
  command.add_option("WORD", *words, "Words of a command line behind the program's name");
  command.on_run([app, words] {
    std::string lines;
    for (const Candidate& each : complete(app, *words)) lines += each.text + "\t" + each.about + "\n";
    print_text(lines);
  });
}

}  // namespace cli
