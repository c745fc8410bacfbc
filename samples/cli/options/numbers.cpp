#include "options/numbers.h"

#include <charconv>

namespace cli {

CLI::Validator number_between(double low, double high) {
  const CLI::Validator range = CLI::Range(low, high);
  const auto check = [range, low, high](const std::string& text) {
    double number = 0.0;
    const bool is_within = CLI::detail::lexical_cast(text, number) && number >= low && number <= high;
    return is_within ? std::string() : "Value " + text + " not in " + range.get_description();
  };
  return CLI::Validator(check, range.get_description());
}

void add_seed_option(CLI::App& command, uint64_t& seed, const std::string& help) {
  command.add_option("--seed", seed, help)
      ->check([](const std::string& text) {
        uint64_t number = 0;
        const char* end = text.data() + text.size();
        const auto [stop, code] = std::from_chars(text.data(), end, number);
        const bool is_seed = code == std::errc() && stop == end;
        return is_seed ? std::string() : "must be an integer from 0 to 18446744073709551615, not \"" + text + "\"";
      })
      ->capture_default_str();
}

}  // namespace cli
