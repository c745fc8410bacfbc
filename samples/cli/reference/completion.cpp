#include "reference/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>

#include "kvq.hpp"
#include "reference/command_tree.h"

namespace cli {
namespace {

constexpr size_t kAboutBytes = 72;
/// Formats that need no file.
constexpr auto kFormatNames =
    std::to_array<const char*>({"fp16", "int8", "int4", "int4+hadamard", "int3", "int3+hadamard", "int2",
                                "int2+hadamard", "gs4", "gs3", "gs2", "gs1", "gt3", "gt2", "gt1"});

bool takes_value(const CLI::Option& option) { return option.get_type_size() != 0; }

const CLI::Option* option_named(const CLI::App& command, const std::string& name) {
  for (const CLI::Option* option : options_of(command)) {
    if (option->check_name(name)) return option;
  }
  return nullptr;
}

const CLI::App* command_named(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : commands_of(app)) {
    if (command->check_name(name)) return command;
  }
  return nullptr;
}

/// Where the words before the last one lead to.
struct Place {
  const CLI::App* command;
  const CLI::Option* option = nullptr;  // whose value comes next
};

Place place_of(const CLI::App& program, std::span<const std::string> words) {
  Place place{.command = &program};
  for (const std::string& word : words) {
    if (place.option != nullptr) {
      place.option = nullptr;
    } else if (word.starts_with('-')) {
      const CLI::Option* option = option_named(*place.command, word);
      if (option != nullptr && takes_value(*option)) place.option = option;
    } else if (const CLI::App* command = command_named(*place.command, word); command != nullptr) {
      place.command = command;
    }
  }
  return place;
}

/// Of a type like "TEXT:{cpu,cuda}", the names within the braces.
std::vector<std::string> members_of(const std::string& type) {
  const size_t begin = type.find('{');
  const size_t end = type.find('}', begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

std::vector<std::string> values_of(const CLI::Option& option) {
  if (option.check_name("--scheme")) return kvq::scheme_names();
  for (const char* name : {"--kv", "--against", "--format"}) {
    if (option.check_name(name)) return {kFormatNames.begin(), kFormatNames.end()};
  }
  if (!option.check_name("--isa")) return members_of(option.get_type_name());
  std::vector<std::string> names;
  for (int32_t i = 0; i < kvq_cpu_isa_count(); ++i) names.emplace_back(kvq_cpu_isa_name(i));
  return names;
}

std::string about(const std::string& description) {
  const std::string line = description.substr(0, description.find('\n'));
  if (line.size() <= kAboutBytes) return line;
  return line.substr(0, line.rfind(' ', kAboutBytes)) + " ...";
}

std::vector<Candidate> candidates_at(const Place& place, const std::string& word) {
  std::vector<Candidate> candidates;
  if (place.option != nullptr) {
    for (const std::string& value : values_of(*place.option)) candidates.push_back({value, ""});
    return candidates;
  }
  if (!word.starts_with('-')) {
    for (const CLI::App* command : commands_of(*place.command)) {
      candidates.push_back({command->get_name(), about(command->get_description())});
    }
    if (!candidates.empty()) return candidates;
  }
  for (const CLI::Option* option : options_of(*place.command)) {
    const std::vector<std::string>& names = option->get_lnames();
    if (!names.empty()) candidates.push_back({"--" + names.front(), about(option->get_description())});
  }
  return candidates;
}

}  // namespace

std::vector<Candidate> complete(const CLI::App& program, std::span<const std::string> words) {
  const std::string word = words.empty() ? "" : words.back();
  const Place place = place_of(program, words.first(words.empty() ? 0 : words.size() - 1));
  std::vector<Candidate> candidates = candidates_at(place, word);
  std::erase_if(candidates, [&word](const Candidate& each) { return !each.text.starts_with(word); });
  return candidates;
}

}  // namespace cli
