#include "core/number_text.h"

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <ios>
#include <limits>
#include <locale>
#include <sstream>
#include <string>

namespace kvq {
namespace {

template <typename Number>
std::string text_of(Number value, std::ios_base& (*notation)(std::ios_base&), int digits) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << notation << std::setprecision(digits) << value;
  return text.str();
}

}  // namespace

template <typename Number>
bool parse_floating(std::string_view text, Number& value) {
  // A stream would also take spaces, a sign of positive numbers, and hexadecimal ones.
  if (text.starts_with('+') || text.find_first_not_of("0123456789.eE+-") != std::string_view::npos) return false;
  std::istringstream stream{std::string(text)};
  stream.imbue(std::locale::classic());
  Number number = 0;
  if (!(stream >> number) || stream.peek() != std::istringstream::traits_type::eof()) return false;
  value = number;
  return true;
}

template <typename Number>
size_t write_floating(std::span<char> out, Number value) {
  int digits = -1;  // after the first one
  std::string shortest;
  Number read = 0;
  do {
    shortest = text_of(value, std::scientific, ++digits);
  } while (digits + 1 < std::numeric_limits<Number>::max_digits10 &&
           !(parse_floating(shortest, read) && read == value));
  const auto exponent = static_cast<int>(std::strtol(shortest.c_str() + shortest.find('e') + 1, nullptr, 10));
  const std::string fixed = text_of(value, std::fixed, std::max(digits - exponent, 0));
  if (fixed.size() <= shortest.size()) shortest = fixed;
  return shortest.copy(out.data(), out.size());
}

template bool parse_floating(std::string_view text, float& value);
template bool parse_floating(std::string_view text, double& value);
template size_t write_floating(std::span<char> out, float value);
template size_t write_floating(std::span<char> out, double value);

}  // namespace kvq
