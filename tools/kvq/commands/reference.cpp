#include <algorithm>
#include <array>

#include "commands/commands.h"

namespace cli {
namespace {

struct Candidate {
  std::string text;
  std::string about;  // may be empty
};

constexpr size_t kAboutBytes = 72;

struct Cursor {
  Command command;
  std::optional<Option> option = std::nullopt;  // whose value comes next
};

Cursor cursor_after(Command program, std::span<const std::string> words) {
  Cursor cursor{.command = program};
  for (const std::string& word : words) {
    if (cursor.option) {
      cursor.option.reset();
    } else if (word.starts_with('-')) {
      for (const Option& option : cursor.command.options()) {
        if (!cursor.option && option.has_name(word) && option.takes_value()) cursor.option = option;
      }
    } else {
      const std::vector<Command> commands = cursor.command.commands();
      const auto found = std::ranges::find(commands, word, &Command::name);
      if (found != commands.end()) cursor.command = *found;
    }
  }
  return cursor;
}

std::vector<std::string> values_of(const Option& option) {
  if (option.has_name("--scheme")) return kvq::scheme_names();
  for (const char* name : {"--kv", "--against", "--format"}) {
    if (option.has_name(name)) return format_names();
  }
  return option.has_name("--isa") ? instruction_sets() : option.choices();
}

std::string about(const std::string& description) {
  const std::string line = description.substr(0, description.find('\n'));
  if (line.size() <= kAboutBytes) return line;
  return line.substr(0, line.rfind(' ', kAboutBytes)) + " ...";
}

std::vector<Candidate> candidates_at(const Cursor& cursor, const std::string& word) {
  std::vector<Candidate> candidates;
  if (cursor.option) {
    for (const std::string& value : values_of(*cursor.option)) candidates.push_back({value, ""});
    return candidates;
  }
  if (!word.starts_with('-')) {
    for (const Command& command : cursor.command.commands()) {
      candidates.push_back({command.name(), about(command.help())});
    }
    if (!candidates.empty()) return candidates;
  }
  for (const Option& option : cursor.command.options()) {
    const std::vector<std::string> names = option.names();
    const auto is_long = [](const std::string& name) { return name.starts_with("--"); };
    const auto name = std::ranges::find_if(names, is_long);  // others are accepted, too, and not offered
    if (name != names.end()) candidates.push_back({*name, about(option.help())});
  }
  return candidates;
}

/// Text as roff shows it: backslashes, hyphens that may be copied, and no line that begins like a request.
std::string roff(std::string_view text) {
  std::string escaped;
  for (const char character : text) {
    if (character == '\\') {
      escaped += "\\e";
    } else if (character == '-') {
      escaped += "\\-";
    } else if (character == '\n') {
      escaped += "\n.br\n";
    } else {
      if (escaped.empty() && (character == '.' || character == '\'')) escaped += "\\&";
      escaped += character;
    }
  }
  return escaped;
}

/// What stands behind an option's name in `--help`, but for the default of `--threads`, which is this machine's.
std::string value_text(const Option& option) {
  std::string text = option.value_text();
  const std::string machine = "=" + option.shown_default();
  if (option.has_name("--threads") && text.ends_with(machine)) text.resize(text.size() - machine.size());
  return text;
}

std::string options_text(Command command) {
  std::string text;
  for (const Option& option : command.options()) {
    text += ".TP\n\\fB" + roff(joined(option.names(), ",")) + "\\fR" + roff(value_text(option)) + "\n" +
            roff(option.help()) + "\n";
  }
  return text;
}

std::string commands_text(Command app, const std::string& before) {
  std::string text;
  for (const Command& command : app.commands()) {
    const std::string name = before + " " + command.name();
    text += ".SS " + roff(name) + "\n" + roff(command.help()) + ".\n" + options_text(command) +
            commands_text(command, name);
  }
  return text;
}

/// What the last of `words`, those behind the program's name, may become: commands, options, or values of the option
/// before it. Nothing where any text or a file is meant.
std::vector<Candidate> complete(Command program, std::span<const std::string> words) {
  const std::string word = words.empty() ? "" : words.back();
  const Cursor cursor = cursor_after(program, words.first(words.empty() ? 0 : words.size() - 1));
  std::vector<Candidate> candidates = candidates_at(cursor, word);
  std::erase_if(candidates, [&word](const Candidate& each) { return !each.text.starts_with(word); });
  return candidates;
}

/// The program's manual page, in the macros of man(7): every command with its options as `--help` has them.
std::string manual(Command program) {
  const std::string name = program.name();
  return ".TH KVQ 1 \"\" \"kvq " + std::string(kvq_version_string()) + "\" \"User Commands\"\n" + ".SH NAME\n" + name +
         " \\- compressed key/value caches and low\\-bit linear layers for language models\n" + ".SH SYNOPSIS\n.B " +
         name + "\n.I COMMAND\n[\\fIOPTIONS\\fR]\n" + ".SH DESCRIPTION\n" + roff(program.help()) + "\n" +
         "Models are directories in Hugging Face's layout: config.json, tokenizer.json and *.safetensors.\n" +
         ".SH OPTIONS\n" + options_text(program) + ".SH COMMANDS\n" + commands_text(program, name) +
         ".SH EXIT STATUS\n0: done. 1: it failed, with the reason on standard error. 2: wrong usage.\n";
}

}  // namespace

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
