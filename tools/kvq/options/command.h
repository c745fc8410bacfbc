#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "llama/error.h"

// CLI11 reads command lines. Its headers take seconds to compile, so command.cpp alone includes them.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace cli {

/// The command line asks for something that makes no sense: exit code 2 instead of 1.
class UsageError : public llama::Error {
 public:
  using llama::Error::Error;
};

/// An option of a command: a reference, to be copied freely. What modifies it returns it, to be called in a chain.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option required();
  /// May be given several times, each time with one value.
  Option repeatable();
  /// The same, which `--help` shows by dots behind the value.
  Option repeatable_with_dots();
  /// One word may hold several values.
  Option separated_by(char delimiter);

  /// Checks come in the order of these calls; `--help` shows ranges and choices.
  Option not_empty();
  Option range(int32_t low, int32_t high);
  Option range(int64_t low, int64_t high);
  Option range(double low, double high);
  Option one_of(std::initializer_list<int32_t> values);
  Option one_of(const std::vector<std::string>& values);
  /// \param wrong  what is wrong with a value, or nothing
  Option check(std::function<std::string(const std::string&)> wrong);

  /// `--help` shows the value that the option's target has now, or `text`.
  Option show_default();
  Option show_default(const std::string& text);

  /// As on the command line, with dashes, short ones first.
  std::vector<std::string> names() const;
  bool has_name(const std::string& name) const;
  std::string help() const;
  bool takes_value() const;
  /// Values of `one_of`; empty: any.
  std::vector<std::string> choices() const;
  std::string shown_default() const;
  /// What stands behind the names in `--help`, as " TEXT:{cpu,cuda}=cpu".
  std::string value_text() const;

 private:
  CLI::Option* option_;
};

/// A command, or the program itself: a reference, to be copied freely, as long as its Program is there.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command add_command(const std::string& name, const std::string& help);
  /// One of its commands must be given.
  void require_command();
  /// Keep the command out of `--help`, the manual page and what shells complete.
  void hide();
  /// Text at the end of `--help`.
  void footer(const std::string& text);

  /// Options of which exactly one must be given.
  Command add_alternatives(const std::string& title);

  /// \param names  "--long,-s", or without dashes that of an argument
  /// \param target  a std::string, an optional or vector of them, an int32_t or vector of them, an int64_t, uint64_t or
  ///                double: those that command.cpp lists. It must live as long as the command.
  template <typename Target>
  Option add_option(const std::string& names, Target& target, const std::string& help);
  Option add_option(const std::string& names, std::filesystem::path& target, const std::string& help);
  /// An option whose value is handed to `take`, which may throw a UsageError.
  Option add_option_function(const std::string& names, const std::function<void(const std::string&)>& take,
                             const std::string& help);
  void add_flag(const std::string& names, bool& target, const std::string& help);

  /// A number in [low, high], or one of some words; what `target` holds is the default.
  template <typename Number>
  Option add_number(const std::string& names, Number& target, std::type_identity_t<Number> low,
                    std::type_identity_t<Number> high, const std::string& help) {
    return add_option(names, target, help).range(low, high).show_default();
  }
  Option add_choice(const std::string& names, std::string& target, const std::vector<std::string>& words,
                    const std::string& help) {
    return add_option(names, target, help).one_of(words).show_default();
  }

  /// Call `function` when the options of this command have been read, before any command runs.
  void on_parsed(std::function<void()> function);
  /// What the command does.
  void on_run(std::function<void()> function);
  /// False if there is no such option.
  bool was_given(const std::string& option) const;
  std::string name() const;
  std::string help() const;
  /// Those that `--help` shows, in its order.
  std::vector<Command> commands() const;
  /// Those that `--help` shows, alternatives last.
  std::vector<Option> options() const;

 private:
  CLI::App* app_;
};

/// A program with `--help` and `--version`, which runs one of its commands.
class Program {
 public:
  Program(const std::string& name, const std::string& help, const std::string& version);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Command root() const { return Command(app_.get()); }

  /// Read the words behind the program's name and run the command that they name. A UsageError that names the word if
  /// they make no sense. \returns  false: only help or the version was printed.
  bool run(std::vector<std::string> words);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace cli
