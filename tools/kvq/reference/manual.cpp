#include "reference/manual.h"

#include <string_view>

#include "kvq.h"

namespace cli {
namespace {

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

std::string names_text(const Option& option) {
  std::string text;
  for (const std::string& name : option.names()) text += (text.empty() ? "" : ",") + name;
  return text;
}

std::string options_text(Command command) {
  std::string text;
  for (const Option& option : command.options()) {
    text +=
        ".TP\n\\fB" + roff(names_text(option)) + "\\fR" + roff(value_text(option)) + "\n" + roff(option.help()) + "\n";
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

}  // namespace

std::string manual(Command program) {
  const std::string name = program.name();
  return ".TH KVQ 1 \"\" \"kvq " + std::string(kvq_version_string()) + "\" \"User Commands\"\n" + ".SH NAME\n" + name +
         " \\- compressed key/value caches and low\\-bit linear layers for language models\n" + ".SH SYNOPSIS\n.B " +
         name + "\n.I COMMAND\n[\\fIOPTIONS\\fR]\n" + ".SH DESCRIPTION\n" + roff(program.help()) + "\n" +
         "Models are directories in Hugging Face's layout: config.json, tokenizer.json and *.safetensors.\n" +
         ".SH OPTIONS\n" + options_text(program) + ".SH COMMANDS\n" + commands_text(program, name) +
         ".SH EXIT STATUS\n0: done. 1: it failed, with the reason on standard error. 2: wrong usage.\n";
}

}  // namespace cli
