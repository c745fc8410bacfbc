#include "options/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "llama/system.h"

namespace cli {

Option Option::required() { return Option(option_->required()); }
Option Option::repeatable() { return Option(option_->expected(1)->take_all()); }
Option Option::repeatable_with_dots() { return Option(option_->take_all()->allow_extra_args(false)); }
Option Option::separated_by(char delimiter) { return Option(option_->delimiter(delimiter)); }

Option Option::not_empty() {
  return check([](const std::string& text) { return text.empty() ? "must not be empty" : std::string(); });
}

Option Option::range(int32_t low, int32_t high) { return Option(option_->check(CLI::Range(low, high))); }
Option Option::range(int64_t low, int64_t high) { return Option(option_->check(CLI::Range(low, high))); }

Option Option::range(double low, double high) {
  const std::string description = CLI::Range(low, high).get_description();
  const auto wrong = [description, low, high](const std::string& text) {
    double number = 0.0;
    // NaN is not within, unlike for CLI::Range.
    const bool is_within = CLI::detail::lexical_cast(text, number) && number >= low && number <= high;
    return is_within ? std::string() : "Value " + text + " not in " + description;
  };
  return Option(option_->check(wrong, description));
}

Option Option::one_of(std::initializer_list<int32_t> values) {
  return Option(option_->check(CLI::IsMember(std::vector<int32_t>(values))));
}
Option Option::one_of(const std::vector<std::string>& values) { return Option(option_->check(CLI::IsMember(values))); }
Option Option::check(std::function<std::string(const std::string&)> wrong) {
  return Option(option_->check(std::move(wrong)));
}

Option Option::show_default() {
  option_->capture_default_str();
  return *this;
}
Option Option::show_default(const std::string& text) { return Option(option_->default_str(text)); }

std::vector<std::string> Option::names() const {
  std::vector<std::string> names;
  for (const std::string& name : option_->get_snames()) names.push_back("-" + name);
  for (const std::string& name : option_->get_lnames()) names.push_back("--" + name);
  return names;
}

bool Option::has_name(const std::string& name) const { return option_->check_name(name); }
std::string Option::help() const { return option_->get_description(); }
bool Option::takes_value() const { return option_->get_type_size() != 0; }

std::vector<std::string> Option::choices() const {
  const std::string type = option_->get_type_name();  // as "TEXT:{cpu,cuda}"
  const size_t begin = type.find('{');
  const size_t end = type.find('}', begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

std::string Option::shown_default() const { return option_->get_default_str(); }
std::string Option::value_text() const { return CLI::Formatter().make_option_opts(option_); }

Command Command::add_command(const std::string& name, const std::string& help) {
  return Command(app_->add_subcommand(name, help));
}

void Command::require_command() { app_->require_subcommand(1); }
void Command::hide() { app_->group(""); }
void Command::footer(const std::string& text) { app_->footer(text); }

Command Command::add_alternatives(const std::string& title) {
  CLI::App* group = app_->add_option_group(title);
  group->require_option(1);
  return Command(group);
}

template <typename Target>
Option Command::add_option(const std::string& names, Target& target, const std::string& help) {
  return Option(app_->add_option(names, target, help));
}

/// CLI11 would make a path of a std::string, which Windows reads by its code page.
Option Command::add_option(const std::string& names, std::filesystem::path& target, const std::string& help) {
  const auto take = [&target](const std::string& name) { target = llama::path_of(name); };
  return add_option_function(names, take, help);
}

template Option Command::add_option(const std::string&, std::string&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<std::string>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template Option Command::add_option(const std::string&, int32_t&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<int32_t>&, const std::string&);
template Option Command::add_option(const std::string&, int64_t&, const std::string&);
template Option Command::add_option(const std::string&, uint64_t&, const std::string&);
template Option Command::add_option(const std::string&, double&, const std::string&);

Option Command::add_option_function(const std::string& names, const std::function<void(const std::string&)>& take,
                                    const std::string& help) {
  return Option(app_->add_option_function<std::string>(names, take, help));
}

void Command::add_flag(const std::string& names, bool& target, const std::string& help) {
  app_->add_flag(names, target, help);
}

void Command::on_parsed(std::function<void()> function) { app_->parse_complete_callback(std::move(function)); }
void Command::on_run(std::function<void()> function) { app_->callback(std::move(function)); }

bool Command::was_given(const std::string& option) const {
  const CLI::Option* found = app_->get_option_no_throw(option);
  return found != nullptr && found->count() > 0;
}

std::string Command::name() const { return app_->get_name(); }
std::string Command::help() const { return app_->get_description(); }

std::vector<Command> Command::commands() const {
  std::vector<Command> commands;
  for (CLI::App* each : app_->get_subcommands([](const CLI::App*) { return true; })) {
    if (!each->get_name().empty() && !each->get_group().empty()) commands.emplace_back(each);
  }
  return commands;
}

std::vector<Option> Command::options() const {
  std::vector<Option> options;
  for (CLI::Option* each : app_->get_options()) {
    if (each->nonpositional() && !each->get_group().empty()) options.emplace_back(each);
  }
  // CLI11 keeps a group of options as a command without a name.
  for (CLI::App* group : app_->get_subcommands([](const CLI::App* each) { return each->get_name().empty(); })) {
    const std::vector<Option> more = Command(group).options();
    options.insert(options.end(), more.begin(), more.end());
  }
  return options;
}

Program::Program(const std::string& name, const std::string& help, const std::string& version)
    : app_(std::make_unique<CLI::App>(help, name)) {
  root().require_command();
  app_->set_version_flag("--version", name + " " + version);
}

Program::~Program() = default;

bool Program::run(std::vector<std::string> words) {
  std::ranges::reverse(words);  // as CLI11 takes them
  try {
    app_->parse(std::move(words));
    return true;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help or --version
      app_->exit(error);
      return false;
    }
    std::string message = error.what();
    const std::vector<std::string> unknown = app_->remaining(true);
    if (!unknown.empty() && message.find(unknown.front()) == std::string::npos) message += ", not " + unknown.front();
    throw UsageError(message + " (see --help)");
  }
}

}  // namespace cli
