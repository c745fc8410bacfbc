#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "kvq.hpp"
#include "program_run.h"

namespace reference_test {
namespace {

/// What `--help` of a command shows.
struct Help {
  std::vector<std::string> commands;
  std::vector<std::string> options;  // long names
};

Help help_of(const Arguments& command) {
  Help help;
  std::istringstream text(run_text(with(command, {"--help"})));
  bool in_commands = false;
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "Subcommands:") in_commands = true;
    if (line.starts_with("  ") && word.starts_with('-')) {
      const std::string names = word.substr(word.find("--"));
      help.options.push_back(names.substr(0, names.find(',')));  // others are accepted, too, and not offered
    } else if (in_commands && line.starts_with("  ") && line[2] != ' ') {
      help.commands.push_back(word);
    }
  }
  return help;
}

/// Calls `check` for the program and for every command in it.
template <typename Check>
void for_each_command(const Arguments& command, const Check& check) {
  const Help help = help_of(command);
  check(command, help);
  for (const std::string& each : help.commands) for_each_command(with(command, {each}), check);
}

std::set<std::string> completions(const Arguments& words) {
  std::set<std::string> found;
  std::istringstream lines(run_text(with({"complete", "--"}, words)));
  for (std::string line; std::getline(lines, line);) found.insert(line.substr(0, line.find('\t')));
  return found;
}

/// As the manual page writes it.
std::string escaped(std::string text) {
  for (size_t at = text.find('-'); at != std::string::npos; at = text.find('-', at + 2)) text.replace(at, 1, "\\-");
  return text;
}

}  // namespace

TEST_CASE("the manual page has every command, and each of its options below its name") {
  const std::string manual = run_text({"manual"});
  size_t commands = 0;
  for_each_command({}, [&](const Arguments& command, const Help& help) {
    std::string heading = command.empty() ? ".SH OPTIONS\n" : ".SS kvq";
    for (const std::string& word : command) heading += " " + word;
    CAPTURE(heading);
    const size_t begin = manual.find(command.empty() ? heading : heading + "\n");
    REQUIRE(begin != std::string::npos);
    const std::string section = manual.substr(begin, manual.find("\n.S", begin) - begin);
    for (const std::string& option : help.options) {
      CAPTURE(option);
      const bool alone = section.find(escaped(option) + "\\fR") != std::string::npos;
      CHECK((alone || section.find(escaped(option) + ",") != std::string::npos));
    }
    ++commands;
  });
  CHECK(commands > 20);
  CHECK(manual.starts_with(".TH KVQ 1 "));
}

TEST_CASE("shells are told every command and option") {
  for_each_command({}, [](const Arguments& command, const Help& help) {
    CAPTURE(command);
    const std::set<std::string> options = completions(with(command, {"--"}));
    CHECK(options == std::set<std::string>(help.options.begin(), help.options.end()));
    if (help.commands.empty()) return;
    CHECK(completions(with(command, {""})) == std::set<std::string>(help.commands.begin(), help.commands.end()));
  });
}

TEST_CASE("shells are told the values of options, and nothing where files are meant") {
  CHECK(completions({"eval", "perplexity", "--device", ""}) == std::set<std::string>{"cpu", "cuda"});
  CHECK(completions({"eval", "perplexity", "--text", ""}).empty());
  CHECK(completions({"eval", "perplexity", "--kv", "sample.txt"}).empty());
  CHECK(completions({"gen"}) == std::set<std::string>{"generate"});
  CHECK(completions({"eval", "perplexity", "--json", "--text", "sample.txt", "--thr"}) ==
        std::set<std::string>{"--threads"});
  const std::vector<std::string> schemes = kvq::scheme_names();
  CHECK(completions({"quantize", "--scheme", ""}) == std::set<std::string>(schemes.begin(), schemes.end()));
  const std::set<std::string> formats = completions({"bench", "attend", "--kv", ""});
  CHECK(formats.size() > 10);
  const kvq::Context context;
  for (const std::string& format : formats) CHECK_NOTHROW(kvq::Policy::load(context, format));
}

}  // namespace reference_test
