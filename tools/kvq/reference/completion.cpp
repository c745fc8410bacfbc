#include "reference/completion.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "kvq.hpp"

namespace cli {
namespace {

constexpr size_t kAboutBytes = 72;
/// Formats that need no file.
constexpr auto kFormatNames =
    std::to_array<const char*>({"fp16", "int8", "int4", "int4+hadamard", "int3", "int3+hadamard", "int2",
                                "int2+hadamard", "gs4", "gs3", "gs2", "gs1", "gt3", "gt2", "gt1"});

std::optional<Option> option_named(Command command, const std::string& name) {
  for (const Option& option : command.options()) {
    if (option.has_name(name)) return option;
  }
  return std::nullopt;
}

std::optional<Command> command_named(Command app, const std::string& name) {
  for (const Command& command : app.commands()) {
    if (command.name() == name) return command;
  }
  return std::nullopt;
}

/// Where the words before the last one lead to.
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
      const std::optional<Option> option = option_named(cursor.command, word);
      if (option && option->takes_value()) cursor.option = option;
    } else if (const std::optional<Command> command = command_named(cursor.command, word)) {
      cursor.command = *command;
    }
  }
  return cursor;
}

std::vector<std::string> values_of(const Option& option) {
  if (option.has_name("--scheme")) return kvq::scheme_names();
  for (const char* name : {"--kv", "--against", "--format"}) {
    if (option.has_name(name)) return {kFormatNames.begin(), kFormatNames.end()};
  }
  if (!option.has_name("--isa")) return option.choices();
  std::vector<std::string> names;
  for (int32_t i = 0; i < kvq_cpu_isa_count(); ++i) names.emplace_back(kvq_cpu_isa_name(i));
  return names;
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

}  // namespace

std::vector<Candidate> complete(Command program, std::span<const std::string> words) {
  const std::string word = words.empty() ? "" : words.back();
  const Cursor cursor = cursor_after(program, words.first(words.empty() ? 0 : words.size() - 1));
  std::vector<Candidate> candidates = candidates_at(cursor, word);
  std::erase_if(candidates, [&word](const Candidate& each) { return !each.text.starts_with(word); });
  return candidates;
}

}  // namespace cli
